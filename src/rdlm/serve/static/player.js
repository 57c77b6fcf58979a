// Player of a trajectory: slider, play and pause; waits at the last frame received until more arrive.

import { make, prefersReducedMotion } from "./dom.js";

const TICK = 70; // milliseconds per frame

export class Player extends EventTarget {
  #timer = null;
  #received = 0;

  constructor(root, describe) {
    super();
    this.describe = describe;
    this.button = make("button", { type: "button", class: "play" });
    this.slider = make("input", { type: "range", min: 0, max: 0, value: 0, step: 1, "aria-label": "Time" });
    this.label = make("output", { class: "time" });
    root.append(this.button, this.slider, this.label);
    this.button.addEventListener("click", () => (this.playing ? this.pause() : this.play()));
    this.slider.addEventListener("input", () => {
      this.pause();
      this.show(Number(this.slider.value));
    });
    this.ended = false;
    this.#label();
  }

  get at() { return Math.min(Number(this.slider.value), Math.max(this.#received - 1, 0)); }
  get playing() { return this.#timer !== null; }

  // Starts again, with `expected` frames to come.
  reset(expected) {
    this.pause();
    this.#received = 0;
    this.ended = false;
    this.slider.max = Math.max(expected - 1, 0);
    this.slider.value = 0;
    this.label.value = "";
  }

  // Tells the player how many frames have been received.
  grow(received) {
    const first = this.#received === 0 && received > 0;
    this.#received = received;
    if (received > Number(this.slider.max) + 1) this.slider.max = received - 1;
    if (first) this.show(0);
    else if (prefersReducedMotion() && !this.ended) this.show(received - 1);
  }

  end() {
    this.ended = true;
    this.slider.max = Math.max(this.#received - 1, 0);
    if (this.playing && this.at >= this.#received - 1) this.pause();
  }

  show(at) {
    if (!this.#received) return;
    const frame = Math.min(Math.max(Math.round(at) || 0, 0), this.#received - 1);
    this.slider.value = frame;
    this.label.value = this.describe(frame);
    this.slider.setAttribute("aria-valuetext", this.label.value);
    this.dispatchEvent(new CustomEvent("show", { detail: frame }));
  }

  play() {
    if (this.playing) return;
    if (this.ended && this.at >= this.#received - 1) this.show(0);
    this.#timer = setInterval(() => this.#tick(), TICK);
    this.#label();
  }

  pause() {
    clearInterval(this.#timer);
    this.#timer = null;
    this.#label();
  }

  #tick() {
    if (this.at < this.#received - 1) this.show(this.at + 1);
    else if (this.ended) this.pause();
  }

  #label() {
    this.button.textContent = this.playing ? "Pause" : "Play";
    this.button.classList.toggle("running", this.playing);
  }
}
