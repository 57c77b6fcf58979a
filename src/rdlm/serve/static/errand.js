// An errand: one request of a view at a time. A newer one cancels the older, and what goes wrong stands in the form.

import { clearProblem, showProblem } from "./fields.js";

export class Errand {
  #stop = null;

  constructor(app, view) {
    this.app = app;
    this.view = view;
  }

  cancel() { this.#stop?.abort(); }

  // `action(signal)` does the work; whether it came to an end, neither cancelled nor failed, is returned.
  async run(form, action) {
    this.cancel();
    const stop = (this.#stop = new AbortController());
    clearProblem(form);
    this.app.busy(this.view, true);
    try {
      await action(stop.signal);
      return true;
    } catch (failure) {
      if (failure.name !== "AbortError") showProblem(form, failure);
      stop.abort();
      return false;
    } finally {
      if (stop === this.#stop) this.app.busy(this.view, false);
    }
  }
}
