// View "Compare": two models or two sampler settings, with the same text and seed, side by side in time.

import { ApiError } from "./api.js";
import { addExportButtons } from "./export.js";
import { byId, make } from "./dom.js";
import { LatestRequest } from "./latest_request.js";
import { changed, fill, HELP, onEnter, setOptions, values } from "./form.js";
import { describePosition } from "./alternatives.js";
import { cellOf, drawFrame, newCanvas } from "./draw_frame.js";
import { ImageView } from "./image_view.js";
import { drawPlot, showPlot, TIME } from "./line_plot.js";
import { TokenList } from "./token_list.js";
import { Player } from "./player.js";
import { Trajectory, requestBody } from "./trajectory.js";

const TIMES = 100; // positions of the player's slider
const WIDTH = 820;
const SIDES = ["left", "right"];
const COLOURS = { left: "--first", right: "--second" };

function field(side, title, name, control, help) {
  control.name = `${side}_${name}`;
  return make("label", { class: "field", title: help }, make("span", {}, title), control);
}

const numeric = (attributes) => make("input", { type: "number", ...attributes });

export class Compare {
  name = "compare";
  form = byId("compare-form");
  trajectories = null;

  constructor(app) {
    this.app = app;
    this.request = new LatestRequest(app, this);
    this.#controls();
    this.player = new Player(byId("compare-player"), (at) => `time ${(at / TIMES).toFixed(2)}`);
    this.player.addEventListener("show", () => this.draw());
    this.tokenLists = Object.fromEntries(SIDES.map((side) =>
      [side, new TokenList(byId(`compare-${side}-tokens`), `Sample on the ${side}`)]));
    this.imageViews = Object.fromEntries(SIDES.map((side) => [side, new ImageView(byId(`compare-${side}-image`))]));
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.run(); });
    onEnter(this.form.elements.text, () => this.run());
    addExportButtons(byId("compare-exports"), "compare", {
      picture: (at, scale) => this.picture(at, scale), data: () => this.data(), count: () => TIMES + 1,
    });
  }

  #controls() {
    for (const side of SIDES) {
      byId(`compare-${side}`).append(make("div", { class: "row" },
        field(side, "Model", "model", make("select")),
        field(side, "Steps", "steps", numeric({ min: 1, max: 1024, value: side === "left" ? "" : 8 })),
        field(side, "Temperature", "temperature", numeric({ min: 0, max: 2, step: 0.05, value: 1 })),
        field(side, "Solver", "solver", make("select")), field(side, "Time grid", "grid", make("select")),
        field(side, "Order", "order", make("select"), HELP.order),
        field(side, "Active window", "window", numeric({ min: 0, max: 1, step: 0.05 }), HELP.window),
        field(side, "Block size", "block", numeric({ min: 0, max: 4096 }), HELP.block)));
    }
  }

  // Called when the models have been loaded.
  ready() {
    const ids = this.app.models.map((model) => model.id);
    for (const side of SIDES) {
      const fields = this.form.elements;
      setOptions(fields[`${side}_model`], ids, byId("model").value || ids[0]);
      this.app.samplerOptions(fields[`${side}_solver`], fields[`${side}_grid`], fields[`${side}_order`]);
    }
  }

  // Another model is chosen: both sides take it, as settings of one model are what is compared most often.
  adapt(model) {
    const ids = this.app.models.map(({ id }) => id);
    for (const side of SIDES) setOptions(this.form.elements[`${side}_model`], ids, model.id);
  }

  settings() {
    const found = changed(this.form);
    const current = this.trajectories && this.requested === JSON.stringify(found);
    return current ? { ...found, ran: 1, at: this.player.at } : found;
  }

  apply(settings) {
    fill(this.form, settings);
    this.request.cancel();
    this.trajectories = null;
    this.player.reset(0);
    for (const side of SIDES) {
      this.tokenLists[side].clear();
      this.imageViews[side].clear();
    }
    byId("compare-result").hidden = true;
    byId("compare-status").textContent = "";
    if (settings.ran) this.run(settings.at);
  }

  data() {
    return Object.fromEntries(SIDES.map((side) => {
      const { body, start, frames, done } = this.trajectories[side];
      return [side, { request: body, start, frames, done }];
    }));
  }

  #body(side, model) {
    const all = values(this.form);
    const names = ["steps", "temperature", "solver", "grid", "order", "window", "block"];
    const own = Object.fromEntries(names.map((name) => [name, all[`${side}_${name}`]]));
    return requestBody({ ...own, text: all.text, length: all.length, seed: all.seed }, model);
  }

  async run(at) {
    this.requested = JSON.stringify(changed(this.form));
    const trajectories = { left: new Trajectory(), right: new Trajectory() };
    const finished = await this.request.run(this.form, async (signal) => {
      await Promise.all(SIDES.map((side) => this.#sample(side, trajectories, signal, at)));
      this.player.end();
      if (at !== undefined) this.player.show(Number(at));
      byId("compare-status").textContent = SIDES.map((side) => this.#report(side)).join(" ");
      this.app.remember();
    });
    if (!finished && this.trajectories === trajectories) this.player.end();
  }

  async #sample(side, trajectories, signal, at) {
    const trajectory = trajectories[side];
    try {
      trajectory.model = await this.app.model(this.form.elements[`${side}_model`].value);
      await trajectory.run(this.#body(side, trajectory.model), signal, () => this.#arrived(trajectories, at));
    } catch (failure) {
      const own = failure.param && this.form.elements[`${side}_${failure.param}`];
      if (!(failure instanceof ApiError) || !own) throw failure;
      throw new ApiError(failure.message, { param: `${side}_${failure.param}` });
    }
  }

  #arrived(trajectories, at) {
    const both = SIDES.map((side) => trajectories[side]);
    if (!both.every((one) => one.frames.length)) return;
    if (this.trajectories !== trajectories) {
      this.trajectories = trajectories;
      byId("compare-result").hidden = false;
      byId("compare-status").textContent = "";
      for (const side of SIDES) byId(`compare-${side}-name`).textContent = this.#title(side);
      this.player.reset(TIMES + 1);
      if (at === undefined) this.player.play();
    }
    const time = Math.min(...both.map((one) => (one.done ? 1 : one.frames.at(-1).time)));
    this.player.grow(Math.floor(time * TIMES) + 1);
  }

  #title(side) {
    const { model, start, body } = this.trajectories[side];
    return `${model.id}, ${start.steps} steps${body.solver ? `, ${body.solver}` : ""}`;
  }

  #report(side) {
    const { done, model } = this.trajectories[side];
    const what = model.rdlm.kind === "image" ? "an image" : done.text;
    return `${side === "left" ? "Left" : "Right"}, NFE ${done.network_calls}: ${what}.`;
  }

  // Last frame at or before the common time.
  #frame(side, at = this.player.at) {
    const { frames } = this.trajectories[side];
    return frames[Math.max(frames.findLastIndex((frame) => frame.time <= at / TIMES + 1e-9), 0)];
  }

  draw() {
    if (!this.trajectories) return;
    for (const side of SIDES) {
      const [frame, { model }] = [this.#frame(side), this.trajectories[side]];
      const image = model.rdlm.kind === "image";
      byId(`compare-${side}-tokens`).hidden = image;
      byId(`compare-${side}-image`).hidden = !image;
      if (image) this.imageViews[side].show(frame, model);
      else this.tokenLists[side].show(frame.tokens.length, cellOf(frame, model), (i) => describePosition(frame, i));
    }
    showPlot(byId("compare-plot"), this.#spec(this.player.at));
    this.app.remember();
  }

  #spec(at) {
    const series = SIDES.map((side) => {
      const trajectory = this.trajectories[side];
      return { name: side, x: trajectory.times, y: trajectory.entropies(), colour: COLOURS[side] };
    });
    return { ...TIME, title: "Entropy, bits per generated position", yRange: [0], cursor: at / TIMES, series };
  }

  picture(at = this.player.at, scale = 2) {
    const boxes = { left: { left: 20, top: 44, width: 370 }, right: { left: 430, top: 44, width: 370 } };
    const drawSide = (ctx, side) => drawFrame(ctx, boxes[side], this.#frame(side, at), this.trajectories[side].model);
    const paint = (ctx) => Math.max(...SIDES.map((side) => drawSide(ctx, side)));
    let high = 0;
    newCanvas(WIDTH, 10, (ctx) => { high = paint(ctx); }, 1);
    return newCanvas(WIDTH, Math.ceil(high) + 280, (ctx) => {
      paint(ctx);
      drawPlot(ctx, { left: 0, top: high + 60, width: WIDTH, height: 210 }, this.#spec(at));
      const ink = byId("compare-left-name");
      ctx.font = `600 14px ${getComputedStyle(ink).fontFamily}`;
      ctx.fillStyle = getComputedStyle(ink).color;
      ctx.textAlign = "left";
      for (const side of SIDES) ctx.fillText(this.#title(side), boxes[side].left, 26, 370);
    }, scale);
  }
}
