// Compare: two models, or two ways to walk one, from the same text and seed, on one clock.

import { Problem } from "./api.js";
import { offer } from "./export.js";
import { byId, make } from "./dom.js";
import { Errand } from "./errand.js";
import { changed, choices, fill, onEnter, values } from "./fields.js";
import { words } from "./inspector.js";
import { cellOf, paintFrame, sheet } from "./picture.js";
import { Pixels } from "./pixels.js";
import { paintPlot, showPlot, TIME } from "./plot.js";
import { Strip } from "./strip.js";
import { Timeline } from "./timeline.js";
import { Trajectory, wish } from "./trajectory.js";

const MOMENTS = 100;
const WIDTH = 820;
const SIDES = ["left", "right"];
const COLOURS = { left: "--first", right: "--second" };

function field(side, title, name, control) {
  control.name = `${side}_${name}`;
  return make("label", { class: "field" }, make("span", {}, title), control);
}

const numeric = (attributes) => make("input", { type: "number", ...attributes });

export class Compare {
  name = "compare";
  form = byId("compare-form");
  walks = null;

  constructor(app) {
    this.app = app;
    this.errand = new Errand(app, this);
    this.#controls();
    this.timeline = new Timeline(byId("compare-player"), (at) => `time ${(at / MOMENTS).toFixed(2)}`);
    this.timeline.addEventListener("show", () => this.draw());
    this.strips = Object.fromEntries(SIDES.map((side) =>
      [side, new Strip(byId(`compare-${side}-strip`), `Sample on the ${side}`)]));
    this.pixels = Object.fromEntries(SIDES.map((side) => [side, new Pixels(byId(`compare-${side}-image`))]));
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.run(); });
    onEnter(this.form.elements.text, () => this.run());
    offer(byId("compare-exports"), "compare", {
      picture: (at, scale) => this.picture(at, scale), data: () => this.data(), count: () => MOMENTS + 1,
    });
  }

  #controls() {
    for (const side of SIDES) {
      byId(`compare-${side}`).append(make("div", { class: "row" },
        field(side, "Model", "model", make("select")),
        field(side, "Steps", "steps", numeric({ min: 1, max: 1024, value: side === "left" ? "" : 8 })),
        field(side, "Temperature", "temperature", numeric({ min: 0, max: 2, step: 0.05, value: 1 })),
        field(side, "Solver", "solver", make("select")), field(side, "Grid", "grid", make("select")),
        field(side, "Window", "window", numeric({ min: 0, max: 1, step: 0.05 })),
        field(side, "Chunk", "chunk", numeric({ min: 0, max: 4096 }))));
    }
  }

  // Called once the models are known.
  ready() {
    const ids = this.app.models.map((model) => model.id);
    for (const side of SIDES) {
      const fields = this.form.elements;
      choices(fields[`${side}_model`], ids, ids[0]);
      this.app.walks(fields[`${side}_solver`], fields[`${side}_grid`]);
    }
  }

  settings() {
    const found = changed(this.form);
    return this.walks && this.asked === JSON.stringify(found) ? { ...found, ran: 1, at: this.timeline.at } : found;
  }

  apply(settings) {
    fill(this.form, settings);
    this.errand.cancel();
    this.walks = null;
    this.timeline.reset(0);
    for (const side of SIDES) {
      this.strips[side].clear();
      this.pixels[side].clear();
    }
    byId("compare-result").hidden = true;
    byId("compare-status").textContent = "";
    if (settings.ran) this.run(settings.at);
  }

  data() {
    return Object.fromEntries(SIDES.map((side) => {
      const { body, start, frames, done } = this.walks[side];
      return [side, { request: body, start, frames, done }];
    }));
  }

  #wish(side, model) {
    const all = values(this.form);
    const names = ["steps", "temperature", "solver", "grid", "window", "chunk"];
    const own = Object.fromEntries(names.map((name) => [name, all[`${side}_${name}`]]));
    return wish({ ...own, text: all.text, length: all.length, seed: all.seed }, model);
  }

  async run(at) {
    this.asked = JSON.stringify(changed(this.form));
    const walks = { left: new Trajectory(), right: new Trajectory() };
    const finished = await this.errand.run(this.form, async (signal) => {
      await Promise.all(SIDES.map((side) => this.#walk(side, walks, signal, at)));
      this.timeline.end();
      if (at !== undefined) this.timeline.show(Number(at));
      byId("compare-status").textContent = SIDES.map((side) => this.#report(side)).join(" ");
      this.app.remember();
    });
    if (!finished && this.walks === walks) this.timeline.end();
  }

  async #walk(side, walks, signal, at) {
    const walk = walks[side];
    try {
      walk.model = await this.app.model(this.form.elements[`${side}_model`].value);
      await walk.run(this.#wish(side, walk.model), signal, () => this.#arrived(walks, at));
    } catch (failure) {
      const own = failure.param && this.form.elements[`${side}_${failure.param}`];
      if (!(failure instanceof Problem) || !own) throw failure;
      throw new Problem(failure.message, { param: `${side}_${failure.param}` });
    }
  }

  #arrived(walks, at) {
    const both = SIDES.map((side) => walks[side]);
    if (!both.every((walk) => walk.frames.length)) return;
    if (this.walks !== walks) {
      this.walks = walks;
      byId("compare-result").hidden = false;
      byId("compare-status").textContent = "";
      for (const side of SIDES) byId(`compare-${side}-name`).textContent = this.#title(side);
      this.timeline.reset(MOMENTS + 1);
      if (at === undefined) this.timeline.play();
    }
    const time = Math.min(...both.map((walk) => (walk.done ? 1 : walk.frames.at(-1).time)));
    this.timeline.grow(Math.floor(time * MOMENTS) + 1);
  }

  #title(side) {
    const { model, start, body } = this.walks[side];
    return `${model.id}, ${start.steps} steps${body.solver ? `, ${body.solver}` : ""}`;
  }

  #report(side) {
    const { done, model } = this.walks[side];
    const what = model.rdlm.kind === "image" ? "an image" : done.text;
    return `${side === "left" ? "Left" : "Right"}, ${done.network_calls} network calls: ${what}.`;
  }

  // The newest frame that is not later than the common time.
  #frame(side, at = this.timeline.at) {
    const { frames } = this.walks[side];
    return frames[Math.max(frames.findLastIndex((frame) => frame.time <= at / MOMENTS + 1e-9), 0)];
  }

  draw() {
    if (!this.walks) return;
    for (const side of SIDES) {
      const [frame, { model }] = [this.#frame(side), this.walks[side]];
      const image = model.rdlm.kind === "image";
      byId(`compare-${side}-strip`).hidden = image;
      byId(`compare-${side}-image`).hidden = !image;
      if (image) this.pixels[side].show(frame, model);
      else this.strips[side].show(frame.tokens.length, cellOf(frame, model), (i) => words(frame, i));
    }
    showPlot(byId("compare-plot"), this.#spec(this.timeline.at));
    this.app.remember();
  }

  #spec(at) {
    const series = SIDES.map((side) => {
      const walk = this.walks[side];
      return { name: side, x: walk.times, y: walk.entropies(), colour: COLOURS[side] };
    });
    return { ...TIME, title: "Entropy, bits per open position", yRange: [0], cursor: at / MOMENTS, series };
  }

  picture(at = this.timeline.at, scale = 2) {
    const boxes = { left: { left: 20, top: 44, width: 370 }, right: { left: 430, top: 44, width: 370 } };
    const paintSide = (pen, side) => paintFrame(pen, boxes[side], this.#frame(side, at), this.walks[side].model);
    const paint = (pen) => Math.max(...SIDES.map((side) => paintSide(pen, side)));
    let high = 0;
    sheet(WIDTH, 10, (pen) => { high = paint(pen); }, 1);
    return sheet(WIDTH, Math.ceil(high) + 280, (pen) => {
      paint(pen);
      paintPlot(pen, { left: 0, top: high + 60, width: WIDTH, height: 210 }, this.#spec(at));
      const ink = byId("compare-left-name");
      pen.font = `600 14px ${getComputedStyle(ink).fontFamily}`;
      pen.fillStyle = getComputedStyle(ink).color;
      pen.textAlign = "left";
      for (const side of SIDES) pen.fillText(this.#title(side), boxes[side].left, 26, 370);
    }, scale);
  }
}
