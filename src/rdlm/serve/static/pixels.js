// An image on a canvas, and the pixel that is looked at: by the pointer, or by the arrow keys.

import { css } from "./colour.js";
import { words } from "./inspector.js";
import { paintImage, shapeOf } from "./picture.js";
import { penOf } from "./plot.js";

export class Pixels extends EventTarget {
  active = -1; // a position of the sample: the pixel's first channel
  #frame = null;
  #model = null;

  constructor(canvas) {
    super();
    this.canvas = canvas;
    canvas.tabIndex = 0;
    canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
      if (!this.#frame) return;
      const { size } = this.#layout();
      this.#look(Math.floor(offsetX / size), Math.floor(offsetY / size));
    });
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  show(frame, model) {
    [this.#frame, this.#model] = [frame, model];
    if (this.active >= frame.tokens.length) this.active = -1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width) return;
    const pen = penOf(this.canvas);
    paintImage(pen, { left: 0, top: 0, width, height }, frame, model);
    const name = "The image at this step; arrow keys look at single pixels";
    this.canvas.setAttribute("aria-label", this.active < 0 ? name : `${name}. ${words(frame, this.active)}`);
    if (this.active < 0) return;
    const { size, x, y } = this.#layout();
    pen.strokeStyle = css("--cursor");
    pen.lineWidth = 2;
    pen.strokeRect(x * size, y * size, size, size);
  }

  // Nothing is left to point at.
  clear() {
    this.active = -1;
    this.#frame = null;
  }

  #layout() {
    const [height, width, depth] = shapeOf(this.#model);
    const size = Math.min(this.canvas.clientWidth / width, this.canvas.clientHeight / height);
    const pixel = Math.max(Math.floor(this.active / depth), 0);
    return { height, width, depth, size, x: pixel % width, y: Math.floor(pixel / width) };
  }

  #look(x, y) {
    const { width, height, depth } = this.#layout();
    if (x < 0 || y < 0 || x >= width || y >= height) return;
    this.active = (y * width + x) * depth;
    this.show(this.#frame, this.#model);
    this.dispatchEvent(new CustomEvent("inspect", { detail: this.active }));
  }

  #key(event) {
    const moves = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
    if (!(event.key in moves) || !this.#frame) return;
    event.preventDefault();
    const { x, y } = this.#layout();
    this.#look(x + moves[event.key][0], y + moves[event.key][1]);
  }
}
