// View "Process": statistics of the bridge over time, which depend on no model.

import { fetchJson } from "./api.js";
import { addExportButtons } from "./export.js";
import { byId, debounce, formatNumber } from "./dom.js";
import { LatestRequest } from "./latest_request.js";
import { changed, fill, values } from "./form.js";
import { newCanvas } from "./draw_frame.js";
import { drawPlot, showPlot, TIME } from "./line_plot.js";

// Includes the dimensions of common vocabularies: 28 (text8), 256 (bytes), 30522 (BERT), 50258 (GPT-2).
const DIMENSIONS = [
  4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192,
  16384, 30522, 50258,
];
const PLOTS = {
  alpha: { title: "α: weight of the token in the mean direction", colour: "--first", yRange: [0] },
  rho: { title: "ρ: spread around the mean", colour: "--second", yRange: [0] },
  radial: { title: "Mean angle to the token, radians", colour: "--third", yRange: [0] },
  information: { title: "Information about the token, bits", colour: "--cursor", yRange: [0] },
};

export class Process {
  name = "process";
  form = byId("process-form");
  answer = null;

  constructor(app) {
    this.app = app;
    this.request = new LatestRequest(app, this);
    const later = debounce(() => this.run(), 40);
    this.form.addEventListener("input", () => { this.#label(); later(); });
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.#label();
    addExportButtons(byId("process-exports"), "process", {
      picture: (_, scale) => this.picture(scale), data: () => this.answer,
    });
  }

  get parameters() {
    const { start, schedule, noise, dimension } = values(this.form);
    const total = Number((10 ** Number(noise)).toPrecision(4));
    return { start, schedule, noise: total, dimension: DIMENSIONS[Number(dimension)] };
  }

  settings() { return changed(this.form); }

  apply(settings) {
    fill(this.form, settings);
    this.#label();
  }

  show() { this.run(); }

  #label() {
    const { noise, dimension } = this.parameters;
    byId("process-noise").value = formatNumber(noise);
    byId("process-dimension").value = String(dimension);
    this.form.elements.noise.setAttribute("aria-valuetext", formatNumber(noise));
    this.form.elements.dimension.setAttribute("aria-valuetext", String(dimension));
  }

  async run() {
    await this.request.run(this.form, async (signal) => {
      const parameters = this.parameters;
      const answer = await fetchJson(`v1/process?${new URLSearchParams(parameters)}`, { signal });
      this.answer = { request: parameters, ...answer };
      byId("process-exports").hidden = false;
      byId("process-note").textContent = answer.note ?? "";
      this.draw();
      this.app.remember();
    });
  }

  #specs() {
    return Object.entries(PLOTS).map(([name, { title, colour, yRange }]) => {
      const y = this.answer[name];
      const series = y ? [{ x: this.answer.time, y, colour }] : [];
      return { ...TIME, title, yRange, series, empty: y ? undefined : "not available for these settings" };
    });
  }

  draw() {
    if (!this.answer) return;
    this.#specs().forEach((spec, i) => showPlot(byId(`process-${Object.keys(PLOTS)[i]}`), spec));
  }

  picture(scale = 2) {
    return newCanvas(820, 480, (ctx) => {
      this.#specs().forEach((spec, i) =>
        drawPlot(ctx, { left: (i % 2) * 410, top: Math.floor(i / 2) * 240, width: 410, height: 240 }, spec));
    }, scale);
  }
}
