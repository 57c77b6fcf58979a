// A sphere seen from afar: the mask and three tokens as the corners of a tetrahedron, a state, its trail, mean paths.
//
// A state has more coordinates than a picture has room for. Those on the four shown vertices give a direction, and
// great circles between vertices stay great circles; how deep it lies inside says how much of it is on other tokens.

import { css } from "./colour.js";
import { glyph } from "./dom.js";

const LOW = Math.sqrt(8) / 3;
export const VERTICES = [
  ...[90, 210, 330].map((degrees) => {
    const angle = (degrees * Math.PI) / 180;
    return [LOW * Math.cos(angle), -1 / 3, LOW * Math.sin(angle)];
  }),
  [0, 1, 0],
];

// The point of a state (three tokens, mask, rest) in the unit ball.
export function place(state) {
  const shown = state.slice(0, 4);
  const sum = [0, 1, 2].map((axis) => shown.reduce((total, c, k) => total + c * VERTICES[k][axis], 0));
  const reach = Math.hypot(...shown);
  const length = Math.hypot(...sum);
  // Where the vertices nearly cancel there is no direction to keep.
  const scale = reach / Math.max(length, 0.3 * reach, 1e-9);
  return sum.map((v) => v * scale);
}

// States with points of the great circle between them, so that a large step is drawn as the way that it went.
function filled(states) {
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

  // Pixels to the right and down, and the depth towards the reader.
  at(point) {
    const [x, y, z] = turn(point, this.view);
    return [this.middle[0] + this.radius * x, this.middle[1] - this.radius * y, z];
  }
}

function circle(pen, projection, normal) {
  const points = [];
  for (let i = 0; i <= 72; i++) {
    const [c, s] = [Math.cos((i * Math.PI) / 36), Math.sin((i * Math.PI) / 36)];
    points.push(normal === "y" ? [c, 0, s] : normal === "x" ? [0, c, s] : [c, s, 0]);
  }
  path(pen, projection, points, { colour: "--grid", width: 1 });
}

// Parts behind the sphere's middle are fainter.
function path(pen, projection, points, { colour, width, dash = [], alpha = 1 }) {
  pen.strokeStyle = css(colour);
  pen.lineWidth = width;
  pen.setLineDash(dash);
  pen.lineJoin = pen.lineCap = "round";
  for (const front of [false, true]) {
    pen.globalAlpha = alpha * (front ? 1 : 0.4);
    pen.beginPath();
    for (let i = 1; i < points.length; i++) {
      const [from, to] = [projection.at(points[i - 1]), projection.at(points[i])];
      if (from[2] + to[2] >= 0 !== front) continue;
      pen.moveTo(from[0], from[1]);
      pen.lineTo(to[0], to[1]);
    }
    pen.stroke();
  }
  pen.globalAlpha = 1;
  pen.setLineDash([]);
}

function dot(pen, [x, y, z], radius, colour) {
  pen.globalAlpha = z < 0 ? 0.65 : 1;
  pen.fillStyle = css(colour);
  pen.beginPath();
  pen.arc(x, y, radius, 0, 7);
  pen.fill();
  pen.globalAlpha = 1;
}

function label(pen, projection, vertex, text, colour) {
  const [x, y, z] = projection.at(vertex);
  const away = [x - projection.middle[0], y - projection.middle[1]];
  const length = Math.hypot(...away);
  // Near the middle of the picture there is no outward direction; up is as good as any.
  const direction = length > 12 ? away.map((v) => v / length) : [0, -1];
  pen.font = `600 16px ${css("--mono")}`;
  pen.textAlign = "center";
  pen.textBaseline = "middle";
  pen.globalAlpha = z < -0.2 ? 0.75 : 1;
  const spot = [x + direction[0] * (16 + 4 * Math.min(text.length, 8)), y + direction[1] * 20];
  pen.lineWidth = 4;
  pen.strokeStyle = css("--card");
  pen.strokeText(text, ...spot);
  pen.fillStyle = css(colour);
  pen.fillText(text, ...spot);
  pen.globalAlpha = 1;
}

const COLOURS = ["--first", "--second", "--third"];

function ball(pen, projection) {
  const [x, y] = projection.middle;
  const radius = projection.radius;
  const light = pen.createRadialGradient(x - radius / 3, y - radius / 3, radius / 8, x, y, radius);
  light.addColorStop(0, css("--ball-light"));
  light.addColorStop(1, css("--ball-dark"));
  pen.fillStyle = light;
  pen.beginPath();
  pen.arc(x, y, radius, 0, 7);
  pen.fill();
  pen.strokeStyle = css("--grid");
  pen.lineWidth = 1;
  pen.stroke();
  for (const normal of ["x", "y", "z"]) circle(pen, projection, normal);
}

// scene: tokens (at most 3, the sample's own first), mask (whether a path begins there), trail (states up to now),
// mean ([on token, on mask, rest]...).
export function paintGlobe(pen, box, view, scene) {
  const projection = new Projection(box, view);
  ball(pen, projection);
  scene.tokens.forEach((_, k) => {
    const points = scene.mean.map(([on, mask, rest]) => {
      const state = [0, 0, 0, mask, rest];
      state[k] = on;
      return place(state);
    });
    path(pen, projection, points, { colour: COLOURS[k], width: 1.8, dash: [3, 6], alpha: k === 0 ? 1 : 0.55 });
  });
  path(pen, projection, filled(scene.trail).map(place), { colour: "--cursor", width: 2.5 });
  scene.tokens.forEach((token, k) => {
    dot(pen, projection.at(VERTICES[k]), 6, COLOURS[k]);
    label(pen, projection, VERTICES[k], token === " " ? "space" : glyph(token), COLOURS[k]);
  });
  if (scene.mask) {
    dot(pen, projection.at(VERTICES[3]), 6, "--quiet");
    label(pen, projection, VERTICES[3], "mask", "--quiet");
  }
  if (scene.trail.length) dot(pen, projection.at(place(scene.trail.at(-1))), 7, "--cursor");
}
