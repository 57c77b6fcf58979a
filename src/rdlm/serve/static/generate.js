// Generate: a text with gaps goes in, and every position is watched as it sharpens.

import { offer } from "./export.js";
import { byId } from "./dom.js";
import { Errand } from "./errand.js";
import { changed, fill, onEnter, values } from "./fields.js";
import { inspect, words } from "./inspector.js";
import { cellOf, paintFrame, sheet } from "./picture.js";
import { Pixels } from "./pixels.js";
import { paintPlot, showPlot, TIME } from "./plot.js";
import { Strip } from "./strip.js";
import { Timeline } from "./timeline.js";
import { Trajectory, wish } from "./trajectory.js";

const WIDTH = 760;

export class Generate extends EventTarget {
  name = "generate";
  form = byId("generate-form");
  trajectory = null; // what is shown: from its first frame on, so that there is always one to look at
  position = null; // the position that the sphere follows; null: the first open one

  constructor(app) {
    super();
    this.app = app;
    this.errand = new Errand(app, this);
    this.timeline = new Timeline(byId("generate-player"), (at) => this.trajectory.describe(at));
    this.strip = new Strip(byId("generate-strip"), "Sample, one option for each position");
    this.timeline.addEventListener("show", () => this.draw());
    this.strip.addEventListener("inspect", () => this.#inspect());
    this.strip.addEventListener("pick", ({ detail }) => this.#choose(detail));
    this.pixels = new Pixels(byId("generate-image"));
    this.pixels.addEventListener("inspect", () => this.#inspect());
    this.form.addEventListener("input", () => { this.position = null; });
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.run(); });
    onEnter(this.form.elements.text, () => this.run());
    byId("generate-again").addEventListener("click", () => {
      this.form.elements.seed.value = Math.floor(Math.random() * 2 ** 31);
      this.run();
    });
    offer(byId("generate-exports"), "sample", {
      picture: (at, scale) => this.picture(at, scale), data: () => this.data(),
      count: () => this.trajectory.frames.length, text: () => this.trajectory.done?.text ?? this.frame.tokens.join(""),
    });
  }

  get frame() { return this.trajectory?.frames[this.timeline.at]; }
  get model() { return this.trajectory.model; }

  settings() {
    const found = changed(this.form);
    // Settings that were changed since belong to no result yet.
    if (this.trajectory && this.asked === JSON.stringify(found)) Object.assign(found, { ran: 1, at: this.timeline.at });
    return found;
  }

  apply(settings) {
    fill(this.form, settings);
    this.forget();
    if (settings.ran) this.run({ at: settings.at });
  }

  // No result belongs to the form as it stands.
  forget() {
    this.errand.cancel();
    this.trajectory = this.position = null;
    this.timeline.reset(0);
    this.strip.clear();
    this.pixels.clear();
    byId("generate-result").hidden = true;
    byId("generate-status").textContent = "";
    this.dispatchEvent(new Event("forget"));
  }

  data() {
    const { body, start, frames, done } = this.trajectory;
    return { request: body, start, frames, done };
  }

  // Asks for the trajectory of the form; `at` is where to look once it is there, else it is played.
  async run({ at, form = this.form } = {}) {
    this.asked = JSON.stringify(changed(this.form));
    const trajectory = new Trajectory();
    const finished = await this.errand.run(form, async (signal) => {
      trajectory.model = await this.app.model();
      const body = { ...wish(values(this.form), trajectory.model), position: this.position ?? undefined };
      await trajectory.run(body, signal, (event) => this.#arrived(trajectory, event, at));
      byId("generate-status").textContent = this.#report();
    });
    if (finished || this.trajectory !== trajectory) return;
    this.timeline.end();
    this.dispatchEvent(new Event("cut"));
  }

  #arrived(trajectory, event, at) {
    if (this.trajectory !== trajectory) {
      this.trajectory = trajectory;
      byId("generate-result").hidden = false;
      byId("generate-status").textContent = "";
      this.timeline.reset(trajectory.start.frames);
      this.dispatchEvent(new Event("start"));
    }
    this.timeline.grow(trajectory.frames.length);
    if (event === "frame" && trajectory.frames.length === 1 && at === undefined) this.timeline.play();
    if (event === "done") {
      this.timeline.end();
      if (at !== undefined) this.timeline.show(Number(at));
      this.app.remember();
    }
    this.#plots();
    this.dispatchEvent(new Event(event));
  }

  #report() {
    const { done, frames } = this.trajectory;
    const calls = `${done.network_calls} network call${done.network_calls === 1 ? "" : "s"}`;
    const text = this.model.rdlm.kind === "image" ? "The image is finished." : `Finished: ${done.text}`;
    return `${text} (${calls}, seed ${done.seed}, ${frames.at(-1).information.toFixed(0)} bits of information)`;
  }

  draw() {
    if (!this.trajectory) return;
    const frame = this.frame;
    const image = this.model.rdlm.kind === "image";
    byId("generate-strip").hidden = image;
    byId("generate-image").hidden = !image;
    byId("generate-scale").className = `scale ${this.model.rdlm.kind}`;
    if (image) this.pixels.show(frame, this.model);
    else this.strip.show(frame.tokens.length, cellOf(frame, this.model), (i) => words(frame, i));
    this.strip.select(this.position ?? this.trajectory.position);
    this.#inspect();
    this.#plots();
    this.app.remember();
  }

  #inspect() {
    const { active } = this.model.rdlm.kind === "image" ? this.pixels : this.strip;
    inspect(byId("generate-inspector"), this.frame, active);
  }

  #choose(position) {
    this.position = position;
    this.strip.select(position);
  }

  #specs(at = this.timeline.at) {
    const { times: x, frames } = this.trajectory;
    const shared = { ...TIME, yRange: [0], cursor: frames[at].time };
    const entropy = { x, y: this.trajectory.entropies(), colour: "--first" };
    const information = { x, y: frames.map((frame) => frame.information), colour: "--second" };
    return [
      { ...shared, title: "Entropy, bits per open position", series: [entropy] },
      { ...shared, title: "Information, bits", series: [information] },
    ];
  }

  #plots() {
    const [entropy, information] = this.#specs();
    showPlot(byId("generate-entropy"), entropy);
    showPlot(byId("generate-information"), information);
  }

  picture(at = this.timeline.at, scale = 2) {
    const box = { left: 20, top: 20, width: this.model.rdlm.kind === "image" ? 320 : WIDTH - 40 };
    let high = 0;
    sheet(WIDTH, 10, (pen) => { high = paintFrame(pen, box, this.trajectory.frames[at], this.model); }, 1);
    return sheet(WIDTH, Math.ceil(high) + 250, (pen) => {
      paintFrame(pen, box, this.trajectory.frames[at], this.model);
      this.#specs(at).forEach((spec, i) =>
        paintPlot(pen, { left: i * (WIDTH / 2), top: high + 40, width: WIDTH / 2, height: 200 }, spec));
    }, scale);
  }
}
