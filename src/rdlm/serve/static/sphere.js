// View "Sphere": the trajectory of one position on a sphere that can be rotated.

import { addExportButtons } from "./export.js";
import { byId, prefersReducedMotion, tokenName } from "./dom.js";
import { changed, fill, showError } from "./form.js";
import { drawSphere } from "./sphere_plot.js";
import { describePosition } from "./alternatives.js";
import { cellOf, newCanvas } from "./draw_frame.js";
import { contextOf, drawPlot, showPlot, TIME } from "./line_plot.js";
import { ApiError } from "./api.js";
import { TokenList } from "./token_list.js";
import { Player } from "./player.js";

const ROTATION = 0.0025; // radians per frame of the screen
const FEW = 12; // steps of a position below which the full window is offered

export class Sphere {
  name = "sphere";
  form = byId("sphere-form");
  view = { yaw: 0.5, pitch: 0.35 };
  rotating = !prefersReducedMotion();
  shown = false;

  constructor(app, generate) {
    this.app = app;
    this.generate = generate;
    this.canvas = byId("sphere-canvas");
    this.player = new Player(byId("sphere-player"), (at) => generate.trajectory.describe(at));
    this.tokenList = new TokenList(byId("sphere-tokens"), "Sample; Enter selects a position");
    this.player.addEventListener("show", () => this.draw());
    this.tokenList.addEventListener("pick", ({ detail }) => this.#select(detail));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#select(Number(this.form.elements.position.value) - 1);
    });
    generate.addEventListener("cleared", () => this.#clear());
    generate.addEventListener("start", () => this.player.reset(generate.trajectory.start.frames));
    generate.addEventListener("interrupted", () => this.player.end());
    for (const event of ["frame", "done"]) generate.addEventListener(event, () => this.#arrived(event));
    this.#addListeners();
    addExportButtons(byId("sphere-exports"), "sphere", {
      picture: (at, scale) => this.picture(at, scale), data: () => generate.data(),
      count: () => generate.trajectory.frames.length,
    });
  }

  get frame() { return this.generate.trajectory?.frames[this.player.at]; }

  settings() {
    const found = { ...changed(this.generate.form), ...changed(this.form) };
    return this.generate.trajectory ? { ...found, at: this.player.at } : found;
  }

  apply(settings) {
    fill(this.generate.form, settings);
    fill(this.form, settings);
    this.generate.clear();
    this.at = settings.at;
    this.generate.position = "position" in settings ? Number(settings.position) - 1 : null;
  }

  // Uses the trajectory of the view "Generate" if it already follows this position.
  show() {
    this.shown = true;
    const { trajectory, position, player } = this.generate;
    if (trajectory) this.at = player.at;
    const same = position === null || trajectory?.position === position;
    if (!same || !trajectory?.done) this.follow(position);
    else this.#arrived("done");
    cancelAnimationFrame(this.spinning);
    this.#spin();
  }

  hide() {
    this.shown = false;
    this.player.pause();
  }

  // Requests the same sample (same seed) with the states of another position.
  follow(position) {
    const length = this.generate.trajectory?.start?.length ?? Infinity;
    if (position !== null && !(position >= 0 && position < length)) {
      const message = `There is no position ${position + 1}: the sample has positions 1 to ${length}.`;
      showError(this.form, new ApiError(message, { param: "position" }));
      return;
    }
    this.generate.position = position;
    this.generate.run({ at: this.at, form: this.form });
  }

  // Another position at the same time.
  #select(position) {
    this.at = this.player.at;
    this.follow(position);
  }

  // With a narrow active window a position takes few steps: offer to denoise all positions together instead.
  #updateWindowButton() {
    const { trajectory, form, model } = this.generate;
    const full = form.elements.window.value === "1";
    const button = byId("sphere-full-window");
    button.hidden = model.rdlm.window === 1 || !(full || trajectory.stepsPerToken < FEW);
    button.setAttribute("aria-pressed", String(full));
  }

  #toggleWindow() {
    const { window } = this.generate.form.elements;
    window.value = window.value === "1" ? "" : "1";
    this.at = undefined;
    this.follow(this.generate.trajectory.position);
  }

  #clear() {
    this.player.reset(0);
    this.tokenList.clear();
    byId("sphere-result").hidden = true;
  }

  #arrived(event) {
    if (!this.shown) return;
    const { frames, position } = this.generate.trajectory;
    this.form.elements.position.value = position + 1;
    this.#updateWindowButton();
    byId("sphere-result").hidden = false;
    this.player.grow(frames.length);
    if (event === "frame" && frames.length === 1 && this.at === undefined) this.player.play();
    if (event !== "done") return;
    this.player.end();
    if (this.at !== undefined) this.player.show(Number(this.at));
    this.at = undefined;
    byId("sphere-status").textContent = this.#shares();
    this.draw();
  }

  // Once the sample is complete, the server sends all states in the coordinates of the final tokens. Until then, and
  // for very large vocabularies, the tokens of the last frame are used, and earlier coordinates on other tokens count
  // as the rest. The sampled token comes first.
  #scene(at) {
    const { frames, start, done } = this.generate.trajectory;
    if (done?.sphere) {
      const { tokens, states } = done.sphere;
      return { tokens, mask: start.mask, trail: [...states, [1, 0, 0, 0, 0]].slice(0, at + 1), mean: start.path };
    }
    const end = frames.at(-1);
    const own = end.tokens[end.sphere.position];
    const corners = [...end.sphere.tokens].sort((a, b) => (b === own) - (a === own));
    const trail = frames.slice(0, at + 1).map(({ sphere }) => {
      const on = corners.map((token) => sphere.state[sphere.tokens.indexOf(token)] ?? 0);
      const shown = [...on, ...Array(3 - on.length).fill(0), sphere.state[3]];
      return [...shown, Math.sqrt(Math.max(1 - shown.reduce((sum, c) => sum + c * c, 0), 0))];
    });
    return { tokens: corners, mask: start.mask, trail, mean: start.path };
  }

  #spec(at) {
    const { start, times, frames } = this.generate.trajectory;
    const { trail, tokens } = this.#scene(frames.length - 1);
    const x = times;
    const meanTimes = start.times ?? start.path.map((_, i) => i / (start.path.length - 1));
    const series = [
      { name: `token ${tokenName(tokens[0])}`, x, y: trail.map((s) => s[0]), colour: "--first" },
      { name: "mask", x, y: trail.map((s) => s[3]), colour: "--quiet" },
      { name: "mean of the bridge", x: meanTimes, y: start.path.map(([on]) => on), colour: "--first", dash: true },
      { x: meanTimes, y: start.path.map(([, mask]) => mask), colour: "--quiet", dash: true },
    ].filter((line) => start.mask || line.colour !== "--quiet");
    return { ...TIME, title: "Coordinates of the state", yRange: [-0.2, 1], cursor: frames[at].time, series };
  }

  draw() {
    if (!this.shown || !this.generate.trajectory) return;
    const frame = this.frame;
    this.#drawSphere();
    this.tokenList.show(frame.tokens.length, cellOf(frame, this.generate.model), (i) => describePosition(frame, i));
    this.tokenList.select(frame.sphere.position);
    showPlot(byId("sphere-plot"), this.#spec(this.player.at));
    byId("sphere-description").textContent = this.#description();
    this.app.remember();
  }

  #shares() {
    const { sphere, time } = this.frame;
    const scene = this.#scene(this.player.at);
    const share = scene.trail.at(-1).map((c) => Math.round(100 * c * c));
    const on = scene.tokens.map((token, k) => `${share[k]}% on “${tokenName(token)}”`).join(", ");
    const mask = scene.mask ? `, ${share[3]}% on the mask` : "";
    return `Position ${sphere.position + 1} at time ${time.toFixed(2)}: ${on}${mask}, ${share[4]}% on other tokens.`;
  }

  #description() {
    const { stepsPerToken, start } = this.generate.trajectory;
    const window = stepsPerToken < start.steps
      ? ` Each position is denoised in an active window of ${stepsPerToken} of the ${start.steps} steps; the mean path `
        + "is drawn as if the window were the whole sampling time."
      : "";
    return `${this.#shares()} Percentages are squared coordinates. The solid line is the trajectory, dotted lines are `
      + `the mean paths to the tokens. Points inside the ball have weight on tokens that are not shown.${window}`;
  }

  #drawSphere() {
    if (!this.shown || !this.generate.trajectory || !this.canvas.clientWidth) return;
    const box = { left: 0, top: 0, width: this.canvas.clientWidth, height: this.canvas.clientHeight };
    const ctx = contextOf(this.canvas);
    const scene = this.#scene(this.player.at);
    drawSphere(ctx, box, this.view, scene);
    const { tokens } = scene;
    const where = `position ${this.frame.sphere.position + 1} between the vertices ${tokens.map(tokenName).join(", ")}`;
    this.canvas.setAttribute("aria-label", `State of ${where}; use the arrow keys to rotate the sphere`);
  }

  #spin() {
    if (!this.shown) return;
    if (this.rotating && !this.dragging) {
      this.view.yaw += ROTATION;
      this.#drawSphere();
    }
    this.spinning = requestAnimationFrame(() => this.#spin());
  }

  #rotateBy(yaw, pitch) {
    this.view.yaw += yaw;
    this.view.pitch = Math.min(Math.max(this.view.pitch + pitch, -1.4), 1.4);
    this.#drawSphere();
  }

  #addListeners() {
    byId("sphere-full-window").addEventListener("click", () => this.#toggleWindow());
    const button = byId("sphere-rotate");
    const press = () => button.setAttribute("aria-pressed", String(this.rotating));
    press();
    button.addEventListener("click", () => { this.rotating = !this.rotating; press(); });
    this.canvas.addEventListener("pointerdown", (event) => {
      this.dragging = true;
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (this.dragging) this.#rotateBy(-event.movementX / 150, event.movementY / 150);
    });
    for (const end of ["pointerup", "pointercancel"]) {
      this.canvas.addEventListener(end, () => { this.dragging = false; });
    }
    this.canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [0.1, 0], ArrowRight: [-0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
      if (!(event.key in moves)) return;
      event.preventDefault();
      this.#rotateBy(...moves[event.key]);
    });
  }

  picture(at = this.player.at, scale = 2) {
    return newCanvas(760, 400, (ctx) => {
      drawSphere(ctx, { left: 0, top: 0, width: 400, height: 400 }, this.view, this.#scene(at));
      drawPlot(ctx, { left: 400, top: 90, width: 350, height: 220 }, this.#spec(at));
    }, scale);
  }
}
