// Panel with the most probable tokens of one position and their probabilities.

import { make, percent, tokenGlyph, tokenName } from "./dom.js";

export function describePosition(frame, i) {
  if (frame.tokens[i] === null) return `position ${i + 1}: ${tokenName(null)}`;
  const token = `position ${i + 1}: ${tokenName(frame.tokens[i])}`;
  if (frame.known[i]) return `${token}, given`;
  const others = (frame.alternatives[i] ?? []).map(([token, p]) => `${tokenName(token)} ${percent(p)}`).join(", ");
  return `${token}, probability ${percent(frame.certainty[i])}; most probable: ${others}`;
}

// One token with its probability, as an item of a list.
export function bar([token, p]) {
  const fill = make("span", { class: "fill" });
  fill.style.width = `${100 * Math.min(Math.max(p, 0), 1)}%`;
  return make("li", {}, make("span", { class: "token" }, token === " " ? "space" : tokenGlyph(token)),
    make("span", { class: "bar" }, fill), make("span", { class: "value" }, percent(p)));
}

// Fills the panel for position `i` of a frame; without a position it explains how to choose one.
export function inspect(root, frame, i) {
  if (!frame || i < 0) {
    const how = "Point at a position, or use the arrow keys, to see its most probable tokens.";
    root.replaceChildren(make("p", { class: "hint" }, how));
    return;
  }
  const open = `entropy ${frame.entropy[i].toFixed(2)} bits`;
  const state = frame.known[i] ? "given in the prompt" : frame.settled[i] ? "final" : open;
  root.replaceChildren(make("h3", {}, `Position ${i + 1}`), make("p", { class: "hint" }, state),
    make("ol", { class: "alternatives" }, ...(frame.alternatives[i] ?? []).map(bar)));
}
