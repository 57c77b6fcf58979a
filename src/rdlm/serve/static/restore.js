// View "Restore": the posterior of an uncertain text, its alternatives, and texts drawn from the joint posterior.

import { bar } from "./alternatives.js";
import { fetchJson } from "./api.js";
import { css, tokenColours } from "./colour.js";
import { byId, make, percent, tokenGlyph, tokenName } from "./dom.js";
import { drawTokens, newCanvas } from "./draw_frame.js";
import { addExportButtons } from "./export.js";
import { canNormalise, changed, fill, number, onEnter, values } from "./form.js";
import { LatestRequest } from "./latest_request.js";
import { TokenList } from "./token_list.js";

const WIDTH = 760;
const EXAMPLES = { dna: "ACGT??GA[CT]TATAA?", text: "the presidebt of the ?n?ted st[ao]tes wqs ??????? to" };

// A text as it is drawn in a list; characters that differ from `best` are marked.
function marked(text, best) {
  const wanted = [...best];
  const parts = [...text].map((letter, i) => (letter === wanted[i] ? letter : make("mark", {}, tokenGlyph(letter))));
  return make("li", {}, ...parts);
}

export class Restore {
  name = "restore";
  form = byId("restore-form");
  answer = null;
  model = null;

  constructor(app) {
    this.app = app;
    this.request = new LatestRequest(app, this);
    this.tokenList = new TokenList(byId("restore-tokens"), "Restored text, one option per position");
    this.tokenList.addEventListener("inspect", ({ detail }) => this.#inspect(detail));
    this.tokenList.addEventListener("pick", ({ detail }) => this.tokenList.select(detail));
    this.form.addEventListener("submit", (event) => { event.preventDefault(); this.run(); });
    this.form.elements.channel.addEventListener("input", () => this.#enable());
    onEnter(this.form.elements.text, () => this.run());
    byId("restore-example").addEventListener("click", () => {
      this.form.elements.text.value = EXAMPLES[this.model?.rdlm.kind] ?? EXAMPLES.text;
      this.run();
    });
    addExportButtons(byId("restore-exports"), "restore", {
      picture: (_, scale) => this.picture(scale), data: () => this.answer, text: () => this.answer.text,
    });
  }

  // Called when another model is chosen: one that cannot restore says so, and which of those served can.
  adapt(model) {
    this.model = model;
    const { available, reason } = model.rdlm.restore;
    const usable = available && model.rdlm.kind !== "image";
    byId("restore-form").hidden = !usable;
    byId("restore-unavailable").hidden = usable;
    if (usable) return this.#enable();
    byId("restore-result").hidden = true;
    const able = this.app.models.filter(({ rdlm }) => rdlm.restore.available && rdlm.kind !== "image");
    const names = able.map(({ id }) => `“${id}”`).join(", ");
    const advice = able.length ? `Choose ${names} above.`
      : "Train one with a preset of this version, for example rdlm train demo, and serve its run.";
    byId("restore-unavailable").textContent =
      `${model.id} cannot restore: ${available ? "it is a model of images" : reason}. ${advice}`;
  }

  // An error rate belongs to a channel.
  #enable() {
    this.form.elements.error.disabled = this.form.elements.channel.value === "";
  }

  settings() {
    const found = changed(this.form);
    return this.answer && this.requested === JSON.stringify(found) ? { ...found, ran: 1 } : found;
  }

  apply(settings) {
    fill(this.form, settings);
    this.#enable();
    this.request.cancel();
    this.answer = null;
    this.tokenList.clear();
    byId("restore-result").hidden = true;
    byId("restore-sentence").textContent = "";
    if (settings.ran) this.run();
  }

  async run() {
    this.requested = JSON.stringify(changed(this.form));
    await this.request.run(this.form, async (signal) => {
      const model = await this.app.model();
      const { text, channel, error, samples, passes, steps, seed, literal, normalise } = values(this.form);
      const body = {
        model: model.id, text, samples: number(samples), passes: number(passes), steps: number(steps),
        seed: number(seed), literal: literal !== "", normalise: canNormalise(model, normalise), ...(channel ? { channel, error: number(error) } : {}),
      };
      this.answer = await fetchJson("v1/restore", { body, signal });
      byId("restore-result").hidden = false;
      this.draw();
      this.app.remember();
    });
  }

  sentence() {
    const { positions, changed: count, expected_errors: wrong, error, error_interval: range } = this.answer;
    const sure = positions.reduce((sum, { probability }) => sum + probability, 0) / positions.length;
    const rate = error === null ? "" : ` Error rate of the reading: ${percent(error)}${range ? ` (${range.map(percent).join(" to ")})` : ""}.`;
    const word = `${positions.length === 1 ? "character" : "characters"} ${count === 1 ? "differs" : "differ"}`;
    const expected = wrong < 0.05 ? "fewer than 0.1" : `about ${wrong.toFixed(1)}`;
    const normalised = this.answer.normalised ? ` Normalised: ${this.answer.normalised}.` : "";
    return `${count} of ${positions.length} ${word} from the reading; ${percent(sure)} sure on average, `
      + `${expected} expected to be wrong.${rate}${normalised}`;
  }

  #cell(i) {
    const { char: symbol, read, probability } = this.answer.positions[i];
    return { text: symbol, known: symbol !== read, ...tokenColours("text", symbol, probability) };
  }

  #describe(i) {
    const { char: symbol, read, probability, alternatives } = this.answer.positions[i];
    const others = Object.entries(alternatives).map(([token, p]) => `${tokenName(token)} ${percent(p)}`).join(", ");
    const was = symbol === read ? "" : read === "?" ? ", was unreadable" : `, read as ${tokenName(read)}`;
    return `position ${i + 1}: ${tokenName(symbol)}, probability ${percent(probability)}${was}`
      + (others ? `; alternatives: ${others}` : "");
  }

  #inspect(i) {
    const root = byId("restore-inspector");
    if (!(i >= 0)) {
      const how = "Click a position, or use the arrow keys, to see its alternatives.";
      root.replaceChildren(make("p", { class: "hint" }, how));
      return;
    }
    const { char: symbol, read, probability, alternatives } = this.answer.positions[i];
    const was = read === "?" ? "unreadable or uncertain" : `read as ${tokenName(read)}`;
    const rows = [[symbol, probability], ...Object.entries(alternatives)];
    const left = 1 - rows.reduce((sum, [, p]) => sum + p, 0);
    root.replaceChildren(make("h3", {}, `Position ${i + 1}`), make("p", { class: "hint" }, was),
      make("ol", { class: "alternatives" }, ...rows.map(bar)),
      ...(left >= 0.001 ? [make("p", { class: "hint" }, `${percent(left)} on other characters`)] : []));
  }

  draw() {
    if (!this.answer) return;
    const { positions, samples = [], text } = this.answer;
    byId("restore-sentence").textContent = this.sentence();
    this.tokenList.show(positions.length, (i) => this.#cell(i), (i) => this.#describe(i));
    this.#inspect(this.tokenList.active);
    byId("restore-samples").hidden = !samples.length;
    byId("restore-sample-list").replaceChildren(...samples.map((sample) => marked(sample, text)));
  }

  picture(scale = 2) {
    const box = { left: 20, top: 50, width: WIDTH - 40 };
    const { length } = this.answer.positions;
    let high = 0;
    newCanvas(WIDTH, 10, (ctx) => { high = drawTokens(ctx, box, length, (i) => this.#cell(i)); }, 1);
    return newCanvas(WIDTH, high + 70, (ctx) => {
      ctx.fillStyle = css("--ink");
      ctx.font = `14px ${css("--sans")}`;
      ctx.fillText(this.sentence(), 20, 28, WIDTH - 40);
      drawTokens(ctx, box, length, (i) => this.#cell(i));
    }, scale);
  }
}
