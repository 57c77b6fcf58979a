// View "Score": the likelihood bound of a text, in total and per position.

import { fetchJson } from "./api.js";
import { bitColours, css } from "./colour.js";
import { addExportButtons } from "./export.js";
import { byId, formatNumber, make, tokenGlyph, tokenName } from "./dom.js";
import { LatestRequest } from "./latest_request.js";
import { canNormalise, changed, fill, number, onEnter, values } from "./form.js";
import { drawTokens, newCanvas } from "./draw_frame.js";
import { contextOf, drawPlot, showPlot } from "./line_plot.js";
import { TokenList } from "./token_list.js";

const WIDTH = 760;

function drawLegend(ctx, { left, top, width }, most) {
  const bar = width - 60;
  for (let x = 0; x < bar; x++) {
    ctx.fillStyle = bitColours(x / bar).fill;
    ctx.fillRect(left + 24 + x, top + 4, 1.5, 12);
  }
  ctx.strokeStyle = css("--edge");
  ctx.strokeRect(left + 24.5, top + 4.5, bar - 1, 11);
  ctx.fillStyle = css("--quiet");
  ctx.font = `12px ${css("--sans")}`;
  ctx.textBaseline = "middle";
  ctx.textAlign = "right";
  ctx.fillText("0", left + 18, top + 10);
  ctx.textAlign = "left";
  ctx.fillText(formatNumber(most), left + 30 + bar, top + 10);
}

export class Score {
  name = "score";
  form = byId("score-form");
  answer = null;

  constructor(app) {
    this.app = app;
    this.request = new LatestRequest(app, this);
    this.tokenList = new TokenList(byId("score-tokens"), "Text, one option per position");
    this.tokenList.addEventListener("inspect", ({ detail }) => this.#inspect(detail));
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.run(); });
    onEnter(this.form.elements.text, () => this.run(), { control: true });
    addExportButtons(byId("score-exports"), "score", {
      picture: (_, scale) => this.picture(scale), data: () => this.answer,
    });
  }

  get row() { return this.answer.data[0]; }
  get most() { return Math.max(1, Math.ceil(Math.max(...this.row.positions))); }

  settings() {
    const found = changed(this.form);
    return this.answer && this.requested === JSON.stringify(found) ? { ...found, ran: 1 } : found;
  }

  apply(settings) {
    fill(this.form, settings);
    this.request.cancel();
    this.answer = null;
    this.tokenList.clear();
    byId("score-result").hidden = true;
    byId("score-result-text").textContent = "";
    if (settings.ran) this.run();
  }

  async run() {
    this.requested = JSON.stringify(changed(this.form));
    await this.request.run(this.form, async (signal) => {
      const model = await this.app.model();
      const { text, steps, normalise } = values(this.form);
      const body = { model: model.id, input: text, steps: number(steps), normalise: canNormalise(model, normalise) };
      this.answer = await fetchJson("v1/score", { body, signal });
      byId("score-result").hidden = false;
      this.draw();
      this.app.remember();
    });
  }

  // The result as a sentence; estimates that are not bounds are labelled.
  sentence() {
    const { bits_per_char: bits, claims_bound: bound, chars } = this.row;
    // The server returns the interval of the whole text in nats.
    const [low, high] = [this.row.low, this.row.high].map((nats) => (nats / chars / Math.LN2).toFixed(2));
    const interval = `95% interval ${low} to ${high}`;
    const kind = bound ? `an upper bound for the sampler with ${this.answer.steps} steps` : "an estimate, not a bound";
    const value = `${bound ? "At most" : "About"} ${bits.toFixed(2)} bits per character`;
    const whole = this.row.positions.length ? "" : " This method does not give values per position.";
    const normalised = this.answer.normalised ? ` Normalised: ${this.answer.normalised}.` : "";
    return `${value}, ${interval}; ${kind}, over ${chars} characters.${whole}${normalised}`;
  }

  #cell(i) {
    return { text: this.row.tokens[i], ...bitColours(this.row.positions[i] / this.most) };
  }

  #describe(i) {
    return `position ${i + 1}: ${tokenName(this.row.tokens[i])}, ${this.row.positions[i].toFixed(2)} bits`;
  }

  #inspect(i) {
    const root = byId("score-inspector");
    if (!(i >= 0)) {
      const how = "Point at a position, or use the arrow keys, to see its bits.";
      root.replaceChildren(make("p", { class: "hint" }, how));
      return;
    }
    const token = this.row.tokens[i];
    root.replaceChildren(make("h3", {}, `Position ${i + 1}`),
      make("p", { class: "hint" }, token === " " ? "space" : tokenGlyph(token)),
      make("p", { class: "reading" }, this.row.positions[i].toFixed(2), make("small", {}, " bits")));
  }

  draw() {
    if (!this.answer) return;
    byId("score-result-text").textContent = this.sentence();
    byId("score-positions").hidden = !this.row.positions.length;
    this.tokenList.show(this.row.positions.length, (i) => this.#cell(i), (i) => this.#describe(i));
    this.#inspect(this.tokenList.active);
    const legend = byId("score-legend");
    if (legend.clientWidth) drawLegend(contextOf(legend), { left: 0, top: 0, width: legend.clientWidth }, this.most);
    legend.setAttribute("aria-label", `Colour scale from 0 bits to ${this.most} bits`);
    showPlot(byId("score-plot"), this.#spec());
  }

  #spec() {
    const y = this.row.positions;
    const x = y.map((_, i) => i + 1);
    const mean = y.reduce((sum, bits) => sum + bits, 0) / y.length;
    return {
      title: "Bits per position", xLabel: "position", xRange: [1, Math.max(y.length, 2)], yRange: [Math.min(0, ...y)],
      series: [{ x, y, name: "position", colour: "--first" },
        { x: [1, y.length], y: [mean, mean], name: "mean", colour: "--second", dash: true }],
    };
  }

  picture(scale = 2) {
    const box = { left: 20, top: 70, width: WIDTH - 40 };
    const { length } = this.row.positions;
    let high = 0;
    newCanvas(WIDTH, 10, (ctx) => { high = drawTokens(ctx, box, length, (i) => this.#cell(i)); }, 1);
    return newCanvas(WIDTH, high + 310, (ctx) => {
      ctx.fillStyle = css("--ink");
      ctx.font = `14px ${css("--sans")}`;
      ctx.fillText(this.sentence(), 20, 28, WIDTH - 40);
      drawLegend(ctx, { left: 0, top: 38, width: 260 }, this.most);
      drawTokens(ctx, box, length, (i) => this.#cell(i));
      drawPlot(ctx, { left: 0, top: high + 90, width: WIDTH, height: 210 }, this.#spec());
    }, scale);
  }
}
