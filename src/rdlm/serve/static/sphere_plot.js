// 3-D plot of a state on the sphere: mask and three tokens as vertices of a tetrahedron, the trajectory, mean paths.
//
// A state has d coordinates, of which four are shown. They give the direction, and great circles between vertices stay
// great circles; the distance below the surface grows with the part of the state on all other tokens.

import { css } from "./colour.js";
import { tokenGlyph } from "./dom.js";

const LOW = Math.sqrt(8) / 3;
const VERTICES = [
  ...[90, 210, 330].map((degrees) => {
    const angle = (degrees * Math.PI) / 180;
    return [LOW * Math.cos(angle), -1 / 3, LOW * Math.sin(angle)];
  }),
  [0, 1, 0],
];

// Point in the unit ball of a state (three tokens, mask, norm of the rest).
function project(state) {
  const shown = state.slice(0, 4);
  const sum = [0, 1, 2].map((axis) => shown.reduce((total, c, k) => total + c * VERTICES[k][axis], 0));
  const reach = Math.hypot(...shown);
  const length = Math.hypot(...sum);
  // Near the centroid of the vertices the direction is undefined: bound the scale.
  const scale = reach / Math.max(length, 0.3 * reach, 1e-9);
  return sum.map((v) => v * scale);
}

// Adds points on the great circle between consecutive states, so that large steps are drawn as arcs.
function withArcs(states) {
  return states.flatMap((to, i) => {
    const from = states[Math.max(i - 1, 0)];
    const parts = Math.max(Math.ceil(Math.hypot(...to.map((c, k) => c - from[k])) / 0.08), 1);
    return Array.from({ length: parts }, (_, j) => {
      const mixed = to.map((c, k) => from[k] + ((c - from[k]) * (j + 1)) / parts);
      const length = Math.hypot(...mixed) || 1;
      return mixed.map((c) => c / length);
    });
  });
}

function turn([x, y, z], { yaw, pitch }) {
  const [cy, sy, cp, sp] = [Math.cos(yaw), Math.sin(yaw), Math.cos(pitch), Math.sin(pitch)];
  const [u, w] = [cy * x + sy * z, cy * z - sy * x];
  return [u, cp * y - sp * w, sp * y + cp * w];
}

class Projection {
  constructor(box, view) {
    this.radius = Math.min(box.width, box.height) * 0.41;
    this.middle = [box.left + box.width / 2, box.top + box.height / 2];
    this.view = view;
  }

  // Pixel coordinates, and depth towards the viewer.
  at(point) {
    const [x, y, z] = turn(point, this.view);
    return [this.middle[0] + this.radius * x, this.middle[1] - this.radius * y, z];
  }
}

function circle(ctx, projection, normal) {
  const points = [];
  for (let i = 0; i <= 72; i++) {
    const [c, s] = [Math.cos((i * Math.PI) / 36), Math.sin((i * Math.PI) / 36)];
    points.push(normal === "y" ? [c, 0, s] : normal === "x" ? [0, c, s] : [c, s, 0]);
  }
  path(ctx, projection, points, { colour: "--grid", width: 1 });
}

// Draws the rear half fainter.
function path(ctx, projection, points, { colour, width, dash = [], alpha = 1 }) {
  ctx.strokeStyle = css(colour);
  ctx.lineWidth = width;
  ctx.setLineDash(dash);
  ctx.lineJoin = ctx.lineCap = "round";
  for (const front of [false, true]) {
    ctx.globalAlpha = alpha * (front ? 1 : 0.4);
    ctx.beginPath();
    for (let i = 1; i < points.length; i++) {
      const [from, to] = [projection.at(points[i - 1]), projection.at(points[i])];
      if (from[2] + to[2] >= 0 !== front) continue;
      ctx.moveTo(from[0], from[1]);
      ctx.lineTo(to[0], to[1]);
    }
    ctx.stroke();
  }
  ctx.globalAlpha = 1;
  ctx.setLineDash([]);
}

function dot(ctx, [x, y, z], radius, colour) {
  ctx.globalAlpha = z < 0 ? 0.65 : 1;
  ctx.fillStyle = css(colour);
  ctx.beginPath();
  ctx.arc(x, y, radius, 0, 7);
  ctx.fill();
  ctx.globalAlpha = 1;
}

function label(ctx, projection, vertex, text, colour) {
  const [x, y, z] = projection.at(vertex);
  const away = [x - projection.middle[0], y - projection.middle[1]];
  const length = Math.hypot(...away);
  // Near the centre there is no outward direction; use up.
  const direction = length > 12 ? away.map((v) => v / length) : [0, -1];
  ctx.font = `600 16px ${css("--mono")}`;
  ctx.textAlign = "center";
  ctx.textBaseline = "middle";
  ctx.globalAlpha = z < -0.2 ? 0.75 : 1;
  const spot = [x + direction[0] * (16 + 4 * Math.min(text.length, 8)), y + direction[1] * 20];
  ctx.lineWidth = 4;
  ctx.strokeStyle = css("--card");
  ctx.strokeText(text, ...spot);
  ctx.fillStyle = css(colour);
  ctx.fillText(text, ...spot);
  ctx.globalAlpha = 1;
}

const COLOURS = ["--first", "--second", "--third"];

function drawBall(ctx, projection) {
  const [x, y] = projection.middle;
  const radius = projection.radius;
  const light = ctx.createRadialGradient(x - radius / 3, y - radius / 3, radius / 8, x, y, radius);
  light.addColorStop(0, css("--sphere-light"));
  light.addColorStop(1, css("--sphere-dark"));
  ctx.fillStyle = light;
  ctx.beginPath();
  ctx.arc(x, y, radius, 0, 7);
  ctx.fill();
  ctx.strokeStyle = css("--grid");
  ctx.lineWidth = 1;
  ctx.stroke();
  for (const normal of ["x", "y", "z"]) circle(ctx, projection, normal);
}

// scene: tokens (at most 3, the sampled token first), mask (whether paths start at the mask), trail (states so far),
// mean (mean path as [token, mask, rest] coordinates).
export function drawSphere(ctx, box, view, scene) {
  const projection = new Projection(box, view);
  drawBall(ctx, projection);
  scene.tokens.forEach((_, k) => {
    const points = scene.mean.map(([on, mask, rest]) => {
      const state = [0, 0, 0, mask, rest];
      state[k] = on;
      return project(state);
    });
    path(ctx, projection, points, { colour: COLOURS[k], width: 1.8, dash: [3, 6], alpha: k === 0 ? 1 : 0.55 });
  });
  path(ctx, projection, withArcs(scene.trail).map(project), { colour: "--cursor", width: 2.5 });
  scene.tokens.forEach((token, k) => {
    dot(ctx, projection.at(VERTICES[k]), 6, COLOURS[k]);
    label(ctx, projection, VERTICES[k], token === " " ? "space" : tokenGlyph(token), COLOURS[k]);
  });
  if (scene.mask) {
    dot(ctx, projection.at(VERTICES[3]), 6, "--quiet");
    label(ctx, projection, VERTICES[3], "mask", "--quiet");
  }
  if (scene.trail.length) dot(ctx, projection.at(project(scene.trail.at(-1))), 7, "--cursor");
}
