// A player: a slider through the frames, play and pause. It may run ahead of nothing: it waits for frames to arrive.

import { calm, make } from "./dom.js";

const TICK = 70; // milliseconds per frame

export class Timeline extends EventTarget {
  #timer = null;
  #known = 0;

  constructor(root, words) {
    super();
    this.words = words;
    this.button = make("button", { type: "button", class: "play" });
    this.slider = make("input", { type: "range", min: 0, max: 0, value: 0, step: 1, "aria-label": "Time" });
    this.label = make("output", { class: "clock" });
    root.append(this.button, this.slider, this.label);
    this.button.addEventListener("click", () => (this.playing ? this.pause() : this.play()));
    this.slider.addEventListener("input", () => {
      this.pause();
      this.show(Number(this.slider.value));
    });
    this.ended = false;
    this.#face();
  }

  get at() { return Math.min(Number(this.slider.value), Math.max(this.#known - 1, 0)); }
  get playing() { return this.#timer !== null; }

  // Begins anew: `expected` frames are to come.
  reset(expected) {
    this.pause();
    this.#known = 0;
    this.ended = false;
    this.slider.max = Math.max(expected - 1, 0);
    this.slider.value = 0;
    this.label.value = "";
  }

  // Says that so many frames have arrived.
  grow(known) {
    const first = this.#known === 0 && known > 0;
    this.#known = known;
    if (known > Number(this.slider.max) + 1) this.slider.max = known - 1;
    if (first) this.show(0);
    else if (calm() && !this.ended) this.show(known - 1);
  }

  end() {
    this.ended = true;
    this.slider.max = Math.max(this.#known - 1, 0);
    if (this.playing && this.at >= this.#known - 1) this.pause();
  }

  show(at) {
    if (!this.#known) return;
    const place = Math.min(Math.max(Math.round(at) || 0, 0), this.#known - 1);
    this.slider.value = place;
    this.label.value = this.words(place);
    this.slider.setAttribute("aria-valuetext", this.label.value);
    this.dispatchEvent(new CustomEvent("show", { detail: place }));
  }

  play() {
    if (this.playing) return;
    if (this.ended && this.at >= this.#known - 1) this.show(0);
    this.#timer = setInterval(() => this.#tick(), TICK);
    this.#face();
  }

  pause() {
    clearInterval(this.#timer);
    this.#timer = null;
    this.#face();
  }

  #tick() {
    if (this.at < this.#known - 1) this.show(this.at + 1);
    else if (this.ended) this.pause();
  }

  #face() {
    this.button.textContent = this.playing ? "Pause" : "Play";
    this.button.classList.toggle("running", this.playing);
  }
}
