// Image sample on a canvas; the pointer or the arrow keys choose a pixel to inspect.

import { css } from "./colour.js";
import { describePosition } from "./alternatives.js";
import { drawImage, shapeOf } from "./draw_frame.js";
import { contextOf } from "./line_plot.js";

export class ImageView extends EventTarget {
  active = -1; // position in the sample of the pixel's first channel
  #frame = null;
  #model = null;

  constructor(canvas) {
    super();
    this.canvas = canvas;
    canvas.tabIndex = 0;
    canvas.addEventListener("pointermove", ({ offsetX, offsetY }) => {
      if (!this.#frame) return;
      const { size } = this.#layout();
      this.#inspect(Math.floor(offsetX / size), Math.floor(offsetY / size));
    });
    canvas.addEventListener("keydown", (event) => this.#key(event));
  }

  show(frame, model) {
    [this.#frame, this.#model] = [frame, model];
    if (this.active >= frame.tokens.length) this.active = -1;
    const { clientWidth: width, clientHeight: height } = this.canvas;
    if (!width) return;
    const ctx = contextOf(this.canvas);
    drawImage(ctx, { left: 0, top: 0, width, height }, frame, model);
    const pixel = this.active < 0 ? "" : `. ${describePosition(frame, this.active)}`;
    const label = `The image at this step; use the arrow keys to inspect a pixel${pixel}`;
    this.canvas.setAttribute("aria-label", label);
    if (this.active < 0) return;
    const { size, x, y } = this.#layout();
    ctx.strokeStyle = css("--cursor");
    ctx.lineWidth = 2;
    ctx.strokeRect(x * size, y * size, size, size);
  }

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

  #inspect(x, y) {
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
    this.#inspect(x + moves[event.key][0], y + moves[event.key][1]);
  }
}
