// Draws one frame of a trajectory on a canvas: the tokens of a text, or an image.

import { css, tokenColours } from "./colour.js";
import { tokenGlyph } from "./dom.js";

// [height, width, channels] of the model card; a square image if it has none.
export function shapeOf(model) {
  const { length, image } = model.rdlm;
  if (image) return image;
  const side = Math.sqrt(length);
  if (Number.isInteger(side)) return [side, side, 1];
  const third = Math.sqrt(length / 3);
  return Number.isInteger(third) ? [third, third, 3] : [1, length, 1];
}

// Expected brightness under the listed probabilities; the remaining mass counts as mid-grey.
function expectedLevel(frame, i, top) {
  if (frame.certainty[i] > 0.9995) return (255 * Number(frame.tokens[i])) / top;
  let [sum, mass] = [0, 0];
  for (const [token, p] of frame.alternatives[i]) {
    sum += (p * Number(token)) / top;
    mass += p;
  }
  return 255 * (sum + 0.5 * Math.max(1 - mass, 0));
}

export function drawImage(ctx, box, frame, model) {
  const [height, width, depth] = shapeOf(model);
  const top = (model.rdlm.vocabulary?.length ?? 256) - 1;
  const size = Math.min(box.width / width, box.height / height);
  for (let y = 0; y < height; y++) {
    for (let x = 0; x < width; x++) {
      const at = (y * width + x) * depth;
      const parts = [0, 1, 2].map((c) => Math.round(expectedLevel(frame, at + (depth === 3 ? c : 0), top)));
      ctx.fillStyle = `rgb(${parts.join(" ")})`;
      ctx.fillRect(box.left + x * size, box.top + y * size, size + 0.5, size + 0.5);
    }
  }
  return height * size;
}

// Text and colours of each position, for `TokenList.show` and `drawTokens`.
export function cellOf(frame, model) {
  const kind = model.rdlm.kind;
  return (i) => {
    const text = frame.tokens[i];
    return { text, known: frame.known[i], ...tokenColours(kind, text, frame.certainty[i]) };
  };
}

// Draws tokens line by line; returns the height in pixels.
export function drawTokens(ctx, box, count, cell) {
  const [line, gap] = [30, 1];
  ctx.font = `19px ${css("--mono")}`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  let [x, y] = [box.left, box.top];
  for (let i = 0; i < count; i++) {
    const { text, fill, ink, known } = cell(i);
    const width = Math.max(ctx.measureText(tokenGlyph(text)).width, 11.5) + 3;
    if (x + width > box.left + box.width) [x, y] = [box.left, y + line];
    ctx.fillStyle = fill;
    ctx.fillRect(x, y, width, line - 3);
    ctx.fillStyle = ink;
    ctx.fillText(tokenGlyph(text), x + width / 2, y + line / 2 - 1);
    if (known) {
      ctx.fillStyle = css("--accent");
      ctx.fillRect(x, y + line - 5, width, 2);
    }
    x += width + gap;
  }
  return y + line - box.top;
}

// Draws a frame of text or image; returns the height in pixels.
export function drawFrame(ctx, box, frame, model) {
  if (model.rdlm.kind === "image") return drawImage(ctx, { ...box, height: box.width }, frame, model);
  return drawTokens(ctx, box, frame.tokens.length, cellOf(frame, model));
}

// New canvas with the card's background; `scale` 2 doubles the resolution.
export function newCanvas(width, height, draw, scale = 2) {
  const canvas = document.createElement("canvas");
  canvas.width = width * scale;
  canvas.height = height * scale;
  const ctx = canvas.getContext("2d");
  ctx.scale(scale, scale);
  ctx.fillStyle = css("--card");
  ctx.fillRect(0, 0, width, height);
  draw(ctx);
  return canvas;
}
