// Score: how many bits every position of a text costs the model, and the bound on the whole in words.

import { ask } from "./api.js";
import { css, heat } from "./colour.js";
import { offer } from "./export.js";
import { byId, fixed, glyph, make, spoken } from "./dom.js";
import { Errand } from "./errand.js";
import { changed, fill, number, onEnter, values } from "./fields.js";
import { paintStrip, sheet } from "./picture.js";
import { paintPlot, penOf, showPlot } from "./plot.js";
import { Strip } from "./strip.js";

const WIDTH = 760;

function paintLegend(pen, { left, top, width }, most) {
  const bar = width - 60;
  for (let x = 0; x < bar; x++) {
    pen.fillStyle = heat(x / bar).fill;
    pen.fillRect(left + 24 + x, top + 4, 1.5, 12);
  }
  pen.strokeStyle = css("--edge");
  pen.strokeRect(left + 24.5, top + 4.5, bar - 1, 11);
  pen.fillStyle = css("--quiet");
  pen.font = `12px ${css("--sans")}`;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  pen.fillText("0", left + 18, top + 10);
  pen.textAlign = "left";
  pen.fillText(fixed(most), left + 30 + bar, top + 10);
}

export class Score {
  name = "score";
  form = byId("score-form");
  answer = null;

  constructor(app) {
    this.app = app;
    this.errand = new Errand(app, this);
    this.strip = new Strip(byId("score-strip"), "Text, one option for each position");
    this.strip.addEventListener("inspect", ({ detail }) => this.#inspect(detail));
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.run(); });
    onEnter(this.form.elements.text, () => this.run(), { control: true });
    offer(byId("score-exports"), "score", { picture: (_, scale) => this.picture(scale), data: () => this.answer });
  }

  get row() { return this.answer.data[0]; }
  get most() { return Math.max(1, Math.ceil(Math.max(...this.row.positions))); }

  settings() {
    const found = changed(this.form);
    return this.answer && this.asked === JSON.stringify(found) ? { ...found, ran: 1 } : found;
  }

  apply(settings) {
    fill(this.form, settings);
    this.errand.cancel();
    this.answer = null;
    this.strip.clear();
    byId("score-result").hidden = true;
    byId("score-words").textContent = "";
    if (settings.ran) this.run();
  }

  async run() {
    this.asked = JSON.stringify(changed(this.form));
    await this.errand.run(this.form, async (signal) => {
      const model = await this.app.model();
      const { text, steps } = values(this.form);
      const body = { model: model.id, input: text, steps: number(steps) };
      this.answer = await ask("v1/score", { body, signal });
      byId("score-result").hidden = false;
      this.draw();
      this.app.remember();
    });
  }

  // The finding as a sentence: a bound says what it bounds.
  sentence() {
    const { bits_per_char: bits, claims_bound: bound, chars } = this.row;
    // The service gives the interval of the whole text, in nats.
    const [low, high] = [this.row.low, this.row.high].map((nats) => (nats / chars / Math.LN2).toFixed(2));
    const interval = `95% interval ${low} to ${high}`;
    const kind = bound ? `a true bound for the sampler with ${this.answer.steps} steps` : "an estimate, not a bound";
    const value = `${bound ? "At most" : "About"} ${bits.toFixed(2)} bits per character`;
    const whole = this.row.positions.length ? "" : " This method tells it for the text as a whole, not by position.";
    return `${value}, ${interval}; ${kind}, over ${chars} characters.${whole}`;
  }

  #cell(i) {
    return { text: this.row.tokens[i], ...heat(this.row.positions[i] / this.most) };
  }

  #words(i) {
    return `position ${i + 1}: ${spoken(this.row.tokens[i])}, ${this.row.positions[i].toFixed(2)} bits`;
  }

  #inspect(i) {
    const root = byId("score-inspector");
    if (!(i >= 0)) {
      const how = "Point at a position, or move with the arrow keys, to read its value.";
      root.replaceChildren(make("p", { class: "hint" }, how));
      return;
    }
    const token = this.row.tokens[i];
    root.replaceChildren(make("h3", {}, `Position ${i + 1}`),
      make("p", { class: "hint" }, token === " " ? "space" : glyph(token)),
      make("p", { class: "reading" }, this.row.positions[i].toFixed(2), make("small", {}, " bits")));
  }

  draw() {
    if (!this.answer) return;
    byId("score-words").textContent = this.sentence();
    byId("score-positions").hidden = !this.row.positions.length;
    this.strip.show(this.row.positions.length, (i) => this.#cell(i), (i) => this.#words(i));
    this.#inspect(this.strip.active);
    const legend = byId("score-legend");
    if (legend.clientWidth) paintLegend(penOf(legend), { left: 0, top: 0, width: legend.clientWidth }, this.most);
    legend.setAttribute("aria-label", `Scale: the colour of the paper is 0 bits, the strongest is ${this.most} bits`);
    showPlot(byId("score-plot"), this.#spec());
  }

  #spec() {
    const y = this.row.positions;
    const x = y.map((_, i) => i + 1);
    const mean = y.reduce((sum, bits) => sum + bits, 0) / y.length;
    return {
      title: "Bits by position", xLabel: "position", xRange: [1, Math.max(y.length, 2)], yRange: [Math.min(0, ...y)],
      series: [{ x, y, name: "position", colour: "--first" },
        { x: [1, y.length], y: [mean, mean], name: "mean", colour: "--second", dash: true }],
    };
  }

  picture(scale = 2) {
    const box = { left: 20, top: 70, width: WIDTH - 40 };
    const { length } = this.row.positions;
    let high = 0;
    sheet(WIDTH, 10, (pen) => { high = paintStrip(pen, box, length, (i) => this.#cell(i)); }, 1);
    return sheet(WIDTH, high + 310, (pen) => {
      pen.fillStyle = css("--ink");
      pen.font = `14px ${css("--sans")}`;
      pen.fillText(this.sentence(), 20, 28, WIDTH - 40);
      paintLegend(pen, { left: 0, top: 38, width: 260 }, this.most);
      paintStrip(pen, box, length, (i) => this.#cell(i));
      paintPlot(pen, { left: 0, top: high + 90, width: WIDTH, height: 210 }, this.#spec());
    }, scale);
  }
}
