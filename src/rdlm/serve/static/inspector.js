// What the model thinks of one position: its likeliest tokens with bars.

import { glyph, make, percent, spoken } from "./dom.js";

export function words(frame, i) {
  if (frame.tokens[i] === null) return `position ${i + 1}: ${spoken(null)}`;
  const what = frame.known[i] ? "given" : `${percent(frame.certainty[i])} certain`;
  const others = (frame.alternatives[i] ?? []).map(([token, p]) => `${spoken(token)} ${percent(p)}`).join(", ");
  return `position ${i + 1}: ${spoken(frame.tokens[i])}, ${what}${frame.known[i] ? "" : `; likeliest: ${others}`}`;
}

function bar([token, p]) {
  const fill = make("span", { class: "fill" });
  fill.style.width = `${100 * Math.min(Math.max(p, 0), 1)}%`;
  return make("li", {}, make("span", { class: "token" }, token === " " ? "space" : glyph(token)),
    make("span", { class: "bar" }, fill), make("span", { class: "value" }, percent(p)));
}

// Fills the panel for position `i` of a frame; nothing chosen yet: how to choose.
export function inspect(root, frame, i) {
  if (!frame || i < 0) {
    const how = "Point at a position, or move with the arrow keys, to see its alternatives.";
    root.replaceChildren(make("p", { class: "hint" }, how));
    return;
  }
  const open = frame.settled[i] ? "settled" : `${frame.entropy[i].toFixed(2)} bits open`;
  const state = frame.known[i] ? "given by you" : open;
  root.replaceChildren(make("h3", {}, `Position ${i + 1}`), make("p", { class: "hint" }, state),
    make("ol", { class: "alternatives" }, ...(frame.alternatives[i] ?? []).map(bar)));
}
