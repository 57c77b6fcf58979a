// Pictures: images that grow sharp, and strips of tokens drawn for export.

import { css, shade } from "./colour.js";
import { glyph } from "./dom.js";

// Height, width and channels: as the model says, else a square.
export function shapeOf(model) {
  const { length, image } = model.rdlm;
  if (image) return image;
  const side = Math.sqrt(length);
  if (Number.isInteger(side)) return [side, side, 1];
  const third = Math.sqrt(length / 3);
  return Number.isInteger(third) ? [third, third, 3] : [1, length, 1];
}

// The brightness that is expected: likely levels count by their probability, the rest is grey.
function level(frame, i, top) {
  if (frame.certainty[i] > 0.9995) return (255 * Number(frame.tokens[i])) / top;
  let [sum, mass] = [0, 0];
  for (const [token, p] of frame.alternatives[i]) {
    sum += (p * Number(token)) / top;
    mass += p;
  }
  return 255 * (sum + 0.5 * Math.max(1 - mass, 0));
}

export function paintImage(pen, box, frame, model) {
  const [height, width, depth] = shapeOf(model);
  const top = (model.rdlm.vocabulary?.length ?? 256) - 1;
  const size = Math.min(box.width / width, box.height / height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const at = (y * width + x) * depth;
      const parts = [0, 1, 2].map((c) => Math.round(level(frame, at + (depth === 3 ? c : 0), top)));
      pen.fillStyle = `rgb(${parts.join(" ")})`;
      pen.fillRect(box.left + x * size, box.top + y * size, size + 0.5, size + 0.5);
    }
  }
  return height * size;
}

// The cell of a position, for `Strip.show` and for `paintStrip`.
export function cellOf(frame, model) {
  const kind = model.rdlm.kind;
  return (i) => ({ text: frame.tokens[i], known: frame.known[i], ...shade(kind, frame.tokens[i], frame.certainty[i]) });
}

// Draws cells in lines; returns how high they are.
export function paintStrip(pen, box, count, cell) {
  const [line, gap] = [30, 1];
  pen.font = `19px ${css("--mono")}`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  let [x, y] = [box.left, box.top];
  for (let i = 0; i < count; i++) {
    const { text, fill, ink, known } = cell(i);
    const width = Math.max(pen.measureText(glyph(text)).width, 11.5) + 3;
    if (x + width > box.left + box.width) [x, y] = [box.left, y + line];
    pen.fillStyle = fill;
    pen.fillRect(x, y, width, line - 3);
    pen.fillStyle = ink;
    pen.fillText(glyph(text), x + width / 2, y + line / 2 - 1);
    if (known) {
      pen.fillStyle = css("--accent");
      pen.fillRect(x, y + line - 5, width, 2);
    }
    x += width + gap;
  }
  return y + line - box.top;
}

// Draws a frame of any kind; returns how high it is.
export function paintFrame(pen, box, frame, model) {
  if (model.rdlm.kind === "image") return paintImage(pen, { ...box, height: box.width }, frame, model);
  return paintStrip(pen, box, frame.tokens.length, cellOf(frame, model));
}

// A sheet of paper: a canvas with the page's background, at twice the size for sharp print.
export function sheet(width, height, draw, scale = 2) {
  const canvas = document.createElement("canvas");
  canvas.width = width * scale;
  canvas.height = height * scale;
  const pen = canvas.getContext("2d");
  pen.scale(scale, scale);
  pen.fillStyle = css("--card");
  pen.fillRect(0, 0, width, height);
  draw(pen);
  return canvas;
}
