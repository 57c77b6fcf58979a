// Sphere: the way of one position of the sample, on a sphere that can be turned.

import { offer } from "./export.js";
import { byId, calm, spoken } from "./dom.js";
import { changed, fill, showProblem } from "./fields.js";
import { paintGlobe } from "./globe.js";
import { words } from "./inspector.js";
import { cellOf, sheet } from "./picture.js";
import { paintPlot, penOf, showPlot, TIME } from "./plot.js";
import { Problem } from "./api.js";
import { Strip } from "./strip.js";
import { Timeline } from "./timeline.js";

const TURN = 0.0025; // radians per frame of the screen
const FEW = 12; // steps of a position that make no more than a jump

export class Sphere {
  name = "sphere";
  form = byId("sphere-form");
  view = { yaw: 0.5, pitch: 0.35 };
  turning = !calm();
  shown = false;

  constructor(app, generate) {
    this.app = app;
    this.generate = generate;
    this.canvas = byId("sphere-globe");
    this.timeline = new Timeline(byId("sphere-player"), (at) => generate.trajectory.describe(at));
    this.strip = new Strip(byId("sphere-strip"), "Sample; Enter follows a position");
    this.timeline.addEventListener("show", () => this.draw());
    this.strip.addEventListener("pick", ({ detail }) => this.#stay(detail));
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.#stay(Number(this.form.elements.position.value) - 1);
    });
    generate.addEventListener("forget", () => this.#forget());
    generate.addEventListener("start", () => this.timeline.reset(generate.trajectory.start.frames));
    generate.addEventListener("cut", () => this.timeline.end());
    for (const event of ["frame", "done"]) generate.addEventListener(event, () => this.#arrived(event));
    this.#handles();
    offer(byId("sphere-exports"), "sphere", {
      picture: (at, scale) => this.picture(at, scale), data: () => generate.data(),
      count: () => generate.trajectory.frames.length,
    });
  }

  get frame() { return this.generate.trajectory?.frames[this.timeline.at]; }

  settings() {
    const found = { ...changed(this.generate.form), ...changed(this.form) };
    return this.generate.trajectory ? { ...found, at: this.timeline.at } : found;
  }

  apply(settings) {
    fill(this.generate.form, settings);
    fill(this.form, settings);
    this.generate.forget();
    this.at = settings.at;
    this.generate.position = "position" in settings ? Number(settings.position) - 1 : null;
  }

  // Comes to the front: the trajectory of Generate is used if it follows this position already.
  show() {
    this.shown = true;
    const { trajectory, position, timeline } = this.generate;
    if (trajectory) this.at = timeline.at;
    const same = position === null || trajectory?.position === position;
    if (!same || !trajectory?.done) this.follow(position);
    else this.#arrived("done");
    cancelAnimationFrame(this.spinning);
    this.#spin();
  }

  hide() {
    this.shown = false;
    this.timeline.pause();
  }

  // The same sample once more, with the eyes on another position: the seed makes it the same.
  follow(position) {
    const length = this.generate.trajectory?.start?.length ?? Infinity;
    if (position !== null && !(position >= 0 && position < length)) {
      const message = `There is no position ${position + 1}: the sample has the positions 1 to ${length}.`;
      showProblem(this.form, new Problem(message, { param: "position" }));
      return;
    }
    this.generate.position = position;
    this.generate.run({ at: this.at, form: this.form });
  }

  // Another position at the same moment.
  #stay(position) {
    this.at = this.timeline.at;
    this.follow(position);
  }

  // Where a position has few steps of its own there is little to see: all positions may run all the time instead.
  #offerToSlowDown() {
    const { trajectory, form, model } = this.generate;
    const slow = form.elements.window.value === "1";
    const button = byId("sphere-slow");
    button.hidden = model.rdlm.window === 1 || !(slow || trajectory.lane < FEW);
    button.setAttribute("aria-pressed", String(slow));
  }

  #changePace() {
    const { window } = this.generate.form.elements;
    window.value = window.value === "1" ? "" : "1";
    this.at = undefined;
    this.follow(this.generate.trajectory.position);
  }

  #forget() {
    this.timeline.reset(0);
    this.strip.clear();
    byId("sphere-result").hidden = true;
  }

  #arrived(event) {
    if (!this.shown) return;
    const { frames, position } = this.generate.trajectory;
    this.form.elements.position.value = position + 1;
    this.#offerToSlowDown();
    byId("sphere-result").hidden = false;
    this.timeline.grow(frames.length);
    if (event === "frame" && frames.length === 1 && this.at === undefined) this.timeline.play();
    if (event !== "done") return;
    this.timeline.end();
    if (this.at !== undefined) this.timeline.show(Number(this.at));
    this.at = undefined;
    byId("sphere-status").textContent = this.#shares();
    this.draw();
  }

  // Once the sample is whole the service has told all states on the corners between which it ended. Until then, and of
  // very large alphabets, the last frame's tokens name the corners, and what an earlier frame had elsewhere counts as
  // the rest. The sample's own token comes first.
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
      { name: `on ${spoken(tokens[0])}`, x, y: trail.map((s) => s[0]), colour: "--first" },
      { name: "on mask", x, y: trail.map((s) => s[3]), colour: "--quiet" },
      { name: "bridge's mean", x: meanTimes, y: start.path.map(([on]) => on), colour: "--first", dash: true },
      { x: meanTimes, y: start.path.map(([, mask]) => mask), colour: "--quiet", dash: true },
    ].filter((line) => start.mask || line.colour !== "--quiet");
    return { ...TIME, title: "Coordinates", yRange: [-0.2, 1], cursor: frames[at].time, series };
  }

  draw() {
    if (!this.shown || !this.generate.trajectory) return;
    const frame = this.frame;
    this.#globe();
    this.strip.show(frame.tokens.length, cellOf(frame, this.generate.model), (i) => words(frame, i));
    this.strip.select(frame.sphere.position);
    showPlot(byId("sphere-plot"), this.#spec(this.timeline.at));
    byId("sphere-words").textContent = this.#words();
    this.app.remember();
  }

  #shares() {
    const { sphere, time } = this.frame;
    const scene = this.#scene(this.timeline.at);
    const share = scene.trail.at(-1).map((c) => Math.round(100 * c * c));
    const on = scene.tokens.map((token, k) => `${share[k]}% on “${spoken(token)}”`).join(", ");
    const mask = scene.mask ? `, ${share[3]}% on the mask` : "";
    return `Position ${sphere.position + 1} at time ${time.toFixed(2)}: ${on}${mask}, ${share[4]}% on other tokens.`;
  }

  #words() {
    const { lane, start } = this.generate.trajectory;
    const short = lane < start.steps
      ? ` Each position has ${lane} of the ${start.steps} steps to itself; the mean is drawn on a position's own clock.`
      : "";
    return `${this.#shares()} These are squared coordinates. The solid line is its way, dotted lines are the mean ways `
      + `to the tokens; the deeper inside the ball, the more lies on other tokens.${short}`;
  }

  #globe() {
    if (!this.shown || !this.generate.trajectory || !this.canvas.clientWidth) return;
    const box = { left: 0, top: 0, width: this.canvas.clientWidth, height: this.canvas.clientHeight };
    const pen = penOf(this.canvas);
    const scene = this.#scene(this.timeline.at);
    paintGlobe(pen, box, this.view, scene);
    const { tokens } = scene;
    const where = `position ${this.frame.sphere.position + 1} between the vertices ${tokens.map(spoken).join(", ")}`;
    this.canvas.setAttribute("aria-label", `The state of ${where}; arrow keys turn the sphere`);
  }

  #spin() {
    if (!this.shown) return;
    if (this.turning && !this.dragging) {
      this.view.yaw += TURN;
      this.#globe();
    }
    this.spinning = requestAnimationFrame(() => this.#spin());
  }

  #turnBy(yaw, pitch) {
    this.view.yaw += yaw;
    this.view.pitch = Math.min(Math.max(this.view.pitch + pitch, -1.4), 1.4);
    this.#globe();
  }

  #handles() {
    byId("sphere-slow").addEventListener("click", () => this.#changePace());
    const button = byId("sphere-turn");
    const press = () => button.setAttribute("aria-pressed", String(this.turning));
    press();
    button.addEventListener("click", () => { this.turning = !this.turning; press(); });
    this.canvas.addEventListener("pointerdown", (event) => {
      this.dragging = true;
      this.canvas.setPointerCapture(event.pointerId);
    });
    this.canvas.addEventListener("pointermove", (event) => {
      if (this.dragging) this.#turnBy(-event.movementX / 150, event.movementY / 150);
    });
    for (const end of ["pointerup", "pointercancel"]) {
      this.canvas.addEventListener(end, () => { this.dragging = false; });
    }
    this.canvas.addEventListener("keydown", (event) => {
      const moves = { ArrowLeft: [0.1, 0], ArrowRight: [-0.1, 0], ArrowUp: [0, -0.1], ArrowDown: [0, 0.1] };
      if (!(event.key in moves)) return;
      event.preventDefault();
      this.#turnBy(...moves[event.key]);
    });
  }

  picture(at = this.timeline.at, scale = 2) {
    return sheet(760, 400, (pen) => {
      paintGlobe(pen, { left: 0, top: 0, width: 400, height: 400 }, this.view, this.#scene(at));
      paintPlot(pen, { left: 400, top: 90, width: 350, height: 220 }, this.#spec(at));
    }, scale);
  }
}
