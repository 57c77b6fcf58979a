// Line plots on a canvas: axes with round numbers, a title, names at the lines, and a cursor.

import { css } from "./colour.js";
import { fixed } from "./dom.js";

const MARGIN = { left: 54, right: 16, top: 34, bottom: 40 };
const LINE = 18;

// The axis that most plots share.
export const TIME = { xLabel: "time (0 noise, 1 data)", xRange: [0, 1] };

function ticks(low, high, wanted) {
  const raw = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(raw));
  const step = power * ([1, 2, 2.5, 5, 10].find((m) => m * power >= raw) ?? 10);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i++) found.push(i * step);
  return found;
}

function extent(series, axis, given) {
  const values = series.flatMap((line) => line[axis]).filter(Number.isFinite);
  let low = given?.[0] ?? (values.length ? Math.min(...values) : 0);
  let high = given?.[1] ?? (values.length ? Math.max(...values) : 1);
  if (!(high > low)) [low, high] = [Math.min(low, 0), Math.max(high, low + 1)];
  return [low, high];
}

// Names of lines stand beside the title where there is room, else in a line below it.
function isNarrow(pen, box, spec) {
  pen.font = `600 13px ${css("--sans")}`;
  const names = spec.series.filter((line) => line.name).map((line) => pen.measureText(line.name).width + 36);
  return pen.measureText(spec.title).width + names.reduce((sum, width) => sum + width, 40) > box.width;
}

function frameOf(box, spec, lines) {
  const [x0, x1] = extent(spec.series, "x", spec.xRange);
  const [y0, y1] = extent(spec.series, "y", spec.yRange);
  const inner = {
    left: box.left + MARGIN.left, right: box.left + box.width - MARGIN.right,
    top: box.top + MARGIN.top + lines * LINE, bottom: box.top + box.height - MARGIN.bottom,
  };
  return {
    ...inner, x0, x1, y0, y1,
    toX: (x) => inner.left + ((x - x0) / (x1 - x0)) * (inner.right - inner.left),
    toY: (y) => inner.bottom - ((y - y0) / (y1 - y0)) * (inner.bottom - inner.top),
  };
}

function drawAxes(pen, box, frame, spec) {
  pen.font = `12px ${css("--sans")}`;
  pen.lineWidth = 1;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  for (const y of ticks(frame.y0, frame.y1, (frame.bottom - frame.top) / 40)) {
    pen.strokeStyle = css("--grid");
    pen.beginPath();
    pen.moveTo(frame.left, frame.toY(y));
    pen.lineTo(frame.right, frame.toY(y));
    pen.stroke();
    pen.fillStyle = css("--quiet");
    pen.fillText(fixed(y), frame.left - 8, frame.toY(y));
  }
  pen.textAlign = "center";
  const wanted = Math.min((frame.right - frame.left) / 55, 10);
  for (const x of ticks(frame.x0, frame.x1, wanted)) pen.fillText(fixed(x), frame.toX(x), frame.bottom + 13);
  pen.fillText(spec.xLabel, (frame.left + frame.right) / 2, frame.bottom + 30);
  pen.textAlign = "left";
  pen.textBaseline = "alphabetic";
  pen.fillStyle = css("--ink");
  pen.font = `600 13px ${css("--sans")}`;
  pen.fillText(spec.title, box.left + 14, box.top + 20);
}

function drawLine(pen, frame, line) {
  pen.strokeStyle = css(line.colour);
  pen.lineWidth = line.dash ? 1.5 : 2;
  pen.setLineDash(line.dash ? [5, 4] : []);
  pen.beginPath();
  let open = false;
  line.x.forEach((x, i) => {
    if (!Number.isFinite(line.y[i])) { open = false; return; }
    const place = [frame.toX(x), frame.toY(line.y[i])];
    if (open) pen.lineTo(...place);
    else pen.moveTo(...place);
    open = true;
  });
  pen.stroke();
  pen.setLineDash([]);
}

function drawNames(pen, frame, series) {
  const named = series.filter((line) => line.name);
  pen.font = `12px ${css("--sans")}`;
  pen.textBaseline = "middle";
  let right = frame.right;
  for (const line of [...named].reverse()) {
    const width = pen.measureText(line.name).width;
    pen.textAlign = "right";
    pen.fillStyle = css("--quiet");
    pen.fillText(line.name, right, frame.top - 18);
    const [x, y] = [[right - width - 24, right - width - 6], [frame.top - 18, frame.top - 18]];
    drawLine(pen, { toX: (at) => at, toY: (at) => at }, { ...line, x, y });
    right -= width + 36;
  }
}

function drawCursor(pen, frame, spec) {
  if (!Number.isFinite(spec.cursor)) return;
  pen.strokeStyle = css("--cursor");
  pen.lineWidth = 1;
  pen.beginPath();
  pen.moveTo(frame.toX(spec.cursor), frame.top);
  pen.lineTo(frame.toX(spec.cursor), frame.bottom);
  pen.stroke();
  for (const line of spec.series) {
    if (line.dash) continue;
    const at = line.x.findLastIndex((x) => x <= spec.cursor + 1e-9);
    if (at < 0 || !Number.isFinite(line.y[at])) continue;
    pen.fillStyle = css(line.colour);
    pen.beginPath();
    pen.arc(frame.toX(line.x[at]), frame.toY(line.y[at]), 4, 0, 7);
    pen.fill();
  }
}

// Draws a plot into a box of a canvas; `spec.empty` says why there is nothing to draw.
export function paintPlot(pen, box, spec) {
  const frame = frameOf(box, spec, isNarrow(pen, box, spec) ? 1 : 0);
  drawAxes(pen, box, frame, spec);
  drawNames(pen, frame, spec.series);
  pen.save();
  pen.beginPath();
  pen.rect(frame.left - 3, frame.top - 3, frame.right - frame.left + 6, frame.bottom - frame.top + 6);
  pen.clip();
  spec.series.forEach((line) => drawLine(pen, frame, line));
  drawCursor(pen, frame, spec);
  pen.restore();
  if (!spec.empty) return;
  pen.fillStyle = css("--quiet");
  pen.font = `13px ${css("--sans")}`;
  pen.textAlign = "center";
  pen.fillText(spec.empty, (frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2);
}

// Makes a canvas as sharp as the screen and returns its pen, in units of the page.
export function penOf(canvas) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const pen = canvas.getContext("2d");
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  return pen;
}

function summary(spec) {
  const lines = spec.series.filter((line) => line.y.length).map((line) => {
    const [first, last] = [line.y[0], line.y.at(-1)].map((y) => (Number.isFinite(y) ? fixed(y) : "nothing"));
    return `${line.name ?? "the curve"} goes from ${first} to ${last}`;
  });
  return `${spec.title}, over ${spec.xLabel}: ${spec.empty ?? (lines.join("; ") || "nothing yet")}`;
}

export function showPlot(canvas, spec) {
  if (!canvas.clientWidth) return;
  const pen = penOf(canvas);
  paintPlot(pen, { left: 0, top: 0, width: canvas.clientWidth, height: canvas.clientHeight }, spec);
  canvas.setAttribute("aria-label", summary(spec));
}
