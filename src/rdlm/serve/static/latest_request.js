// At most one request per view: a new request cancels the previous one, and errors are shown in the form.

import { clearError, showError } from "./form.js";

export class LatestRequest {
  #controller = null;

  constructor(app, view) {
    this.app = app;
    this.view = view;
  }

  cancel() { this.#controller?.abort(); }

  // Runs `action(signal)`; returns whether it completed, neither cancelled nor failed.
  async run(form, action) {
    this.cancel();
    const controller = (this.#controller = new AbortController());
    clearError(form);
    this.app.busy(this.view, true);
    try {
      await action(controller.signal);
      return true;
    } catch (failure) {
      if (failure.name !== "AbortError") showError(form, failure);
      controller.abort();
      return false;
    } finally {
      if (controller === this.#controller) this.app.busy(this.view, false);
    }
  }
}
