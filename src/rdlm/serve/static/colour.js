// Colours: variables of the style sheet, and colour scales for probabilities, bits and DNA bases.

const sheetColours = new Map();
document.addEventListener("themechange", () => sheetColours.clear());

// Value of a CSS variable, cached because a list of tokens reads it thousands of times.
export function css(name) {
  if (!sheetColours.has(name)) {
    sheetColours.set(name, getComputedStyle(document.documentElement).getPropertyValue(name).trim());
  }
  return sheetColours.get(name);
}

const channels = (hex) => [1, 3, 5].map((at) => parseInt(hex.slice(at, at + 2), 16));
const blend = (a, b, t) => a.map((v, i) => v + (b[i] - v) * t);
const rgb = (colour) => `rgb(${colour.map(Math.round).join(" ")})`;

function luminance(colour) {
  const [r, g, b] = colour.map((v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
}

// Black or white text; one of the two always reaches a contrast of 4.5.
function inkOn(colour) {
  return luminance(colour) > 0.179 ? "#000" : "#fff";
}

function interpolate(stops, t) {
  const place = Math.min(Math.max(t, 0), 1) * (stops.length - 1);
  const from = Math.min(Math.floor(place), stops.length - 2);
  return blend(channels(stops[from]), channels(stops[from + 1]), place - from);
}

// Monotone in brightness, from yellow to blue: readable with every common colour vision deficiency.
const BIT_SCALE = {
  light: ["#fffdf3", "#f0dfa9", "#b9b692", "#5f7f9b", "#16386b"],
  dark: ["#1b1f27", "#2b4361", "#64788a", "#b9ab74", "#fbe38c"],
};
const BASES = { A: "#1b9e77", C: "#3d7fd0", G: "#e6a817", T: "#d3562a" };

// From the uncertain colour at probability 0 to the background of the card at probability 1.
function certaintyColours(certainty) {
  const fill = blend(channels(css("--uncertain")), channels(css("--card")), certainty);
  return { fill: rgb(fill), ink: rgb(blend(channels(css("--uncertain-ink")), channels(css("--ink")), certainty)) };
}

function baseColours(token, certainty) {
  const full = channels(BASES[token] ?? css("--uncertain"));
  const fill = blend(channels(css("--card")), full, certainty ** 1.5);
  return { fill: rgb(fill), ink: inkOn(fill) };
}

export function bitColours(t) {
  const fill = interpolate(BIT_SCALE[document.documentElement.dataset.theme], t);
  return { fill: rgb(fill), ink: inkOn(fill) };
}

export function tokenColours(kind, token, certainty) {
  return kind === "dna" ? baseColours(token, certainty) : certaintyColours(certainty);
}
