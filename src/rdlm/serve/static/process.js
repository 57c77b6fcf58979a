// Process: the path before any learning, drawn anew while the sliders move.

import { ask } from "./api.js";
import { offer } from "./export.js";
import { byId, debounce, fixed } from "./dom.js";
import { Errand } from "./errand.js";
import { changed, fill, values } from "./fields.js";
import { sheet } from "./picture.js";
import { paintPlot, showPlot, TIME } from "./plot.js";

// Dense where it matters, with the sizes of known alphabets: 28 letters, 256 levels, 30522 and 50258 word pieces.
const DIMENSIONS = [
  4, 5, 6, 8, 10, 12, 16, 20, 24, 28, 32, 48, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 1536, 2048, 4096, 8192,
  16384, 30522, 50258,
];
const PLOTS = {
  alpha: { title: "α, how far the mean has come", colour: "--first", yRange: [0] },
  rho: { title: "ρ, the spread about the mean", colour: "--second", yRange: [0] },
  radial: { title: "Angle to the token, radians", colour: "--third", yRange: [0] },
  information: { title: "Information about the token, bits", colour: "--cursor", yRange: [0] },
};

export class Process {
  name = "process";
  form = byId("process-form");
  answer = null;

  constructor(app) {
    this.app = app;
    this.errand = new Errand(app, this);
    const later = debounce(() => this.run(), 40);
    this.form.addEventListener("input", () => { this.#label(); later(); });
    this.form.addEventListener("submit", (event) => event.preventDefault());
    this.#label();
    offer(byId("process-exports"), "process", { picture: (_, scale) => this.picture(scale), data: () => this.answer });
  }

  get wish() {
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
    const { noise, dimension } = this.wish;
    byId("process-noise").value = fixed(noise);
    byId("process-dimension").value = String(dimension);
    this.form.elements.noise.setAttribute("aria-valuetext", fixed(noise));
    this.form.elements.dimension.setAttribute("aria-valuetext", String(dimension));
  }

  async run() {
    await this.errand.run(this.form, async (signal) => {
      const wish = this.wish;
      const answer = await ask(`v1/process?${new URLSearchParams(wish)}`, { signal });
      this.answer = { request: wish, ...answer };
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
      return { ...TIME, title, yRange, series, empty: y ? undefined : "not known for these settings" };
    });
  }

  draw() {
    if (!this.answer) return;
    this.#specs().forEach((spec, i) => showPlot(byId(`process-${Object.keys(PLOTS)[i]}`), spec));
  }

  picture(scale = 2) {
    return sheet(820, 480, (pen) => {
      this.#specs().forEach((spec, i) =>
        paintPlot(pen, { left: (i % 2) * 410, top: Math.floor(i / 2) * 240, width: 410, height: 240 }, spec));
    }, scale);
  }
}
