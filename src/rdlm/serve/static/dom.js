// DOM and formatting: create elements, debounce events, format tokens and numbers.

export const byId = (id) => document.getElementById(id);

// Creates an element; children are nodes or plain text, which is never parsed as HTML.
export function make(tag, attributes = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined) element.setAttribute(name, String(value));
  }
  element.append(...children);
  return element;
}

export function debounce(action, milliseconds) {
  let timer;
  return (...values) => {
    clearTimeout(timer);
    timer = setTimeout(() => action(...values), milliseconds);
  };
}

export const prefersReducedMotion = () => matchMedia("(prefers-reduced-motion: reduce)").matches;

// A token as it is displayed (tokenGlyph) and as a screen reader reads it (tokenName); null: not predicted yet.
export function tokenGlyph(token) {
  if (token === null) return "·";
  if (token === "") return "∅";
  if (token === " ") return "\u00a0";
  return token.replaceAll("\n", "⏎").replaceAll("\t", "⇥").replaceAll(" ", "\u00a0");
}

export function tokenName(token) {
  if (token === null) return "not predicted yet";
  return { "": "empty", " ": "space", "\n": "new line", "\t": "tab" }[token] ?? token;
}

export const percent = (p) => (p > 0.9995 ? "100%" : p < 0.001 ? "<0.1%" : `${(100 * p).toFixed(p < 0.1 ? 1 : 0)}%`);

export function formatNumber(value) {
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (size >= 1000 || size < 0.001) return value.toPrecision(2);
  return String(Number(value.toFixed(size >= 100 ? 0 : size >= 10 ? 1 : size >= 1 ? 2 : 3)));
}
