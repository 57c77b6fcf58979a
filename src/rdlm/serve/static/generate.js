// View "Generate": samples a text or an image and shows the prediction at every step.

import { addExportButtons } from "./export.js";
import { byId } from "./dom.js";
import { LatestRequest } from "./latest_request.js";
import { changed, fill, onEnter, values } from "./form.js";
import { describePosition, inspect } from "./alternatives.js";
import { cellOf, drawFrame, newCanvas } from "./draw_frame.js";
import { ImageView } from "./image_view.js";
import { drawPlot, showPlot, TIME } from "./line_plot.js";
import { TokenList } from "./token_list.js";
import { Player } from "./player.js";
import { Trajectory, requestBody } from "./trajectory.js";

const WIDTH = 760;

export class Generate extends EventTarget {
  name = "generate";
  form = byId("generate-form");
  trajectory = null; // the trajectory shown; set when its first frame arrives
  position = null; // position shown in the view "Sphere"; null: the first one that is not given

  constructor(app) {
    super();
    this.app = app;
    this.request = new LatestRequest(app, this);
    this.player = new Player(byId("generate-player"), (at) => this.trajectory.describe(at));
    this.tokenList = new TokenList(byId("generate-tokens"), "Sample, one option per position");
    this.player.addEventListener("show", () => this.draw());
    this.tokenList.addEventListener("inspect", () => this.#inspect());
    this.tokenList.addEventListener("pick", ({ detail }) => this.#select(detail));
    this.imageView = new ImageView(byId("generate-image"));
    this.imageView.addEventListener("inspect", () => this.#inspect());
    this.form.addEventListener("input", () => { this.position = null; });
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.run(); });
    onEnter(this.form.elements.text, () => this.run());
    byId("generate-again").addEventListener("click", () => {
      this.form.elements.seed.value = Math.floor(Math.random() * 2 ** 31);
      this.run();
    });
    addExportButtons(byId("generate-exports"), "sample", {
      picture: (at, scale) => this.picture(at, scale), data: () => this.data(),
      count: () => this.trajectory.frames.length, text: () => this.trajectory.done?.text ?? this.frame.tokens.join(""),
    });
  }

  get frame() { return this.trajectory?.frames[this.player.at]; }
  get model() { return this.trajectory.model; }

  settings() {
    const found = changed(this.form);
    // Settings changed since the last request have no result yet.
    const current = this.trajectory && this.requested === JSON.stringify(found);
    return current ? { ...found, ran: 1, at: this.player.at } : found;
  }

  apply(settings) {
    fill(this.form, settings);
    this.clear();
    if (settings.ran) this.run({ at: settings.at });
  }

  clear() {
    this.request.cancel();
    this.trajectory = this.position = null;
    this.player.reset(0);
    this.tokenList.clear();
    this.imageView.clear();
    byId("generate-result").hidden = true;
    byId("generate-status").textContent = "";
    this.dispatchEvent(new Event("cleared"));
  }

  data() {
    const { body, start, frames, done } = this.trajectory;
    return { request: body, start, frames, done };
  }

  // Requests a trajectory with the settings of the form; shows frame `at` when complete, or plays it without `at`.
  async run({ at, form = this.form } = {}) {
    this.requested = JSON.stringify(changed(this.form));
    const trajectory = new Trajectory();
    const finished = await this.request.run(form, async (signal) => {
      trajectory.model = await this.app.model();
      const body = { ...requestBody(values(this.form), trajectory.model), position: this.position ?? undefined };
      await trajectory.run(body, signal, (event) => this.#arrived(trajectory, event, at));
      byId("generate-status").textContent = this.#report();
    });
    if (finished || this.trajectory !== trajectory) return;
    this.player.end();
    this.dispatchEvent(new Event("interrupted"));
  }

  #arrived(trajectory, event, at) {
    if (this.trajectory !== trajectory) {
      this.trajectory = trajectory;
      byId("generate-result").hidden = false;
      byId("generate-status").textContent = "";
      this.player.reset(trajectory.start.frames);
      this.dispatchEvent(new Event("start"));
    }
    this.player.grow(trajectory.frames.length);
    if (event === "frame" && trajectory.frames.length === 1 && at === undefined) this.player.play();
    if (event === "done") {
      this.player.end();
      if (at !== undefined) this.player.show(Number(at));
      this.app.remember();
    }
    this.#plots();
    this.dispatchEvent(new Event(event));
  }

  #report() {
    const { done, frames, start, warnings } = this.trajectory;
    const normalised = start.normalised ? `Normalised: ${start.normalised}. ` : "";
    const nfe = `NFE ${done.network_calls}, order ${start.order}`;
    const text = this.model.rdlm.kind === "image" ? "Image complete." : `Complete: ${done.text}`;
    return `${text} (${nfe}, seed ${done.seed}, ${frames.at(-1).information.toFixed(0)} bits of information) ${normalised}${warnings}`;
  }

  draw() {
    if (!this.trajectory) return;
    const frame = this.frame;
    const image = this.model.rdlm.kind === "image";
    byId("generate-tokens").hidden = image;
    byId("generate-image").hidden = !image;
    byId("generate-scale").className = `scale ${this.model.rdlm.kind}`;
    if (image) this.imageView.show(frame, this.model);
    else this.tokenList.show(frame.tokens.length, cellOf(frame, this.model), (i) => describePosition(frame, i));
    this.tokenList.select(this.position ?? this.trajectory.position);
    this.#inspect();
    this.#plots();
    this.app.remember();
  }

  #inspect() {
    const { active } = this.model.rdlm.kind === "image" ? this.imageView : this.tokenList;
    inspect(byId("generate-inspector"), this.frame, active);
  }

  #select(position) {
    this.position = position;
    this.tokenList.select(position);
  }

  #specs(at = this.player.at) {
    const { times: x, frames } = this.trajectory;
    const shared = { ...TIME, yRange: [0], cursor: frames[at].time };
    const entropy = { x, y: this.trajectory.entropies(), colour: "--first" };
    const information = { x, y: frames.map((frame) => frame.information), colour: "--second" };
    return [
      { ...shared, title: "Entropy, bits per generated position", series: [entropy] },
      { ...shared, title: "Information gained, bits", series: [information] },
    ];
  }

  #plots() {
    const [entropy, information] = this.#specs();
    showPlot(byId("generate-entropy"), entropy);
    showPlot(byId("generate-information"), information);
  }

  picture(at = this.player.at, scale = 2) {
    const box = { left: 20, top: 20, width: this.model.rdlm.kind === "image" ? 320 : WIDTH - 40 };
    let high = 0;
    newCanvas(WIDTH, 10, (ctx) => { high = drawFrame(ctx, box, this.trajectory.frames[at], this.model); }, 1);
    return newCanvas(WIDTH, Math.ceil(high) + 250, (ctx) => {
      drawFrame(ctx, box, this.trajectory.frames[at], this.model);
      this.#specs(at).forEach((spec, i) =>
        drawPlot(ctx, { left: i * (WIDTH / 2), top: high + 40, width: WIDTH / 2, height: 200 }, spec));
    }, scale);
  }
}
