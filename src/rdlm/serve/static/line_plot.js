// Line plots on a canvas: axes, title, legend and a cursor.

import { css } from "./colour.js";
import { formatNumber } from "./dom.js";

const MARGIN = { left: 54, right: 16, top: 34, bottom: 40 };
const LINE = 18;

// Time axis that most plots share.
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

// Whether the legend needs a line of its own below the title.
function isNarrow(ctx, box, spec) {
  ctx.font = `600 13px ${css("--sans")}`;
  const names = spec.series.filter((line) => line.name).map((line) => ctx.measureText(line.name).width + 36);
  return ctx.measureText(spec.title).width + names.reduce((sum, width) => sum + width, 40) > box.width;
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

function drawAxes(ctx, box, frame, spec) {
  ctx.font = `12px ${css("--sans")}`;
  ctx.lineWidth = 1;
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  for (const y of ticks(frame.y0, frame.y1, (frame.bottom - frame.top) / 40)) {
    ctx.strokeStyle = css("--grid");
    ctx.beginPath();
    ctx.moveTo(frame.left, frame.toY(y));
    ctx.lineTo(frame.right, frame.toY(y));
    ctx.stroke();
    ctx.fillStyle = css("--quiet");
    ctx.fillText(formatNumber(y), frame.left - 8, frame.toY(y));
  }
  ctx.textAlign = "center";
  const wanted = Math.min((frame.right - frame.left) / 55, 10);
  for (const x of ticks(frame.x0, frame.x1, wanted)) ctx.fillText(formatNumber(x), frame.toX(x), frame.bottom + 13);
  ctx.fillText(spec.xLabel, (frame.left + frame.right) / 2, frame.bottom + 30);
  ctx.textAlign = "left";
  ctx.textBaseline = "alphabetic";
  ctx.fillStyle = css("--ink");
  ctx.font = `600 13px ${css("--sans")}`;
  ctx.fillText(spec.title, box.left + 14, box.top + 20);
}

function drawLine(ctx, frame, line) {
  ctx.strokeStyle = css(line.colour);
  ctx.lineWidth = line.dash ? 1.5 : 2;
  ctx.setLineDash(line.dash ? [5, 4] : []);
  ctx.beginPath();
  let open = false;
  line.x.forEach((x, i) => {
    if (!Number.isFinite(line.y[i])) { open = false; return; }
    const place = [frame.toX(x), frame.toY(line.y[i])];
    if (open) ctx.lineTo(...place);
    else ctx.moveTo(...place);
    open = true;
  });
  ctx.stroke();
  ctx.setLineDash([]);
}

function drawLegend(ctx, frame, series) {
  const named = series.filter((line) => line.name);
  ctx.font = `12px ${css("--sans")}`;
  ctx.textBaseline = "middle";
  let right = frame.right;
  for (const line of [...named].reverse()) {
    const width = ctx.measureText(line.name).width;
    ctx.textAlign = "right";
    ctx.fillStyle = css("--quiet");
    ctx.fillText(line.name, right, frame.top - 18);
    const [x, y] = [[right - width - 24, right - width - 6], [frame.top - 18, frame.top - 18]];
    drawLine(ctx, { toX: (at) => at, toY: (at) => at }, { ...line, x, y });
    right -= width + 36;
  }
}

function drawCursor(ctx, frame, spec) {
  if (!Number.isFinite(spec.cursor)) return;
  ctx.strokeStyle = css("--cursor");
  ctx.lineWidth = 1;
  ctx.beginPath();
  ctx.moveTo(frame.toX(spec.cursor), frame.top);
  ctx.lineTo(frame.toX(spec.cursor), frame.bottom);
  ctx.stroke();
  for (const line of spec.series) {
    if (line.dash) continue;
    const at = line.x.findLastIndex((x) => x <= spec.cursor + 1e-9);
    if (at < 0 || !Number.isFinite(line.y[at])) continue;
    ctx.fillStyle = css(line.colour);
    ctx.beginPath();
    ctx.arc(frame.toX(line.x[at]), frame.toY(line.y[at]), 4, 0, 7);
    ctx.fill();
  }
}

// Draws a plot into a box of a canvas; `spec.empty` is shown in place of missing data.
export function drawPlot(ctx, box, spec) {
  const frame = frameOf(box, spec, isNarrow(ctx, box, spec) ? 1 : 0);
  drawAxes(ctx, box, frame, spec);
  drawLegend(ctx, frame, spec.series);
  ctx.save();
  ctx.beginPath();
  ctx.rect(frame.left - 3, frame.top - 3, frame.right - frame.left + 6, frame.bottom - frame.top + 6);
  ctx.clip();
  spec.series.forEach((line) => drawLine(ctx, frame, line));
  drawCursor(ctx, frame, spec);
  ctx.restore();
  if (!spec.empty) return;
  ctx.fillStyle = css("--quiet");
  ctx.font = `13px ${css("--sans")}`;
  ctx.textAlign = "center";
  ctx.fillText(spec.empty, (frame.left + frame.right) / 2, (frame.top + frame.bottom) / 2);
}

// Sets the resolution of a canvas to that of the screen; returns its context, scaled to CSS pixels.
export function contextOf(canvas) {
  const ratio = devicePixelRatio || 1;
  const [width, height] = [canvas.clientWidth, canvas.clientHeight];
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(height * ratio);
  const ctx = canvas.getContext("2d");
  ctx.setTransform(ratio, 0, 0, ratio, 0, 0);
  return ctx;
}

function summary(spec) {
  const lines = spec.series.filter((line) => line.y.length).map((line) => {
    const [first, last] = [line.y[0], line.y.at(-1)].map((y) => (Number.isFinite(y) ? formatNumber(y) : "no value"));
    return `${line.name ?? "the curve"} goes from ${first} to ${last}`;
  });
  return `${spec.title}, over ${spec.xLabel}: ${spec.empty ?? (lines.join("; ") || "no data yet")}`;
}

export function showPlot(canvas, spec) {
  if (!canvas.clientWidth) return;
  const ctx = contextOf(canvas);
  drawPlot(ctx, { left: 0, top: 0, width: canvas.clientWidth, height: canvas.clientHeight }, spec);
  canvas.setAttribute("aria-label", summary(spec));
}
