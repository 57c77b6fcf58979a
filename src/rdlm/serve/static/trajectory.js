// Trajectory of a sample: frames streamed by the server, and the request that produced them.

import { events } from "./api.js";
import { canNormalise, number } from "./form.js";

const FRAMES = 96;

const isCharacters = (model) => model.rdlm.vocabulary?.every((token) => [...token].length === 1) ?? false;

// Request body from the values of a form: an infill if the text has gaps, otherwise a prompt.
export function requestBody(values, model) {
  const { gap = "_", kind } = model.rdlm;
  const text = values.text ?? "";
  const length = number(values.length);
  const body = {
    model: model.id, seed: number(values.seed), steps: number(values.steps), frames: FRAMES,
    solver: values.solver || undefined, grid: values.grid || undefined, window: number(values.window),
    order: values.order && values.order !== "auto" ? values.order : undefined,
    block: number(values.block), normalise: canNormalise(model, values.normalise),
    temperature: number(values.temperature), top_p: number(values.top_p),
  };
  if (body.top_p === 1) delete body.top_p;
  if (values.label) Object.assign(body, { label: values.label, guidance: number(values.guidance) });
  if (text.includes(gap) && kind !== "image") {
    // A gap is one token; only for character tokenizers does the page know how many are missing at the end.
    const pad = isCharacters(model) && length ? Math.max(length - [...text].length, 0) : 0;
    return { ...body, infill: text + gap.repeat(pad) };
  }
  return { ...body, prompt: text || undefined, length };
}

export class Trajectory {
  start = null;
  frames = [];
  done = null;
  body = null;
  model = null;

  // Reads the stream; `onChange(event)` is called after every frame and at the end, with at least one frame present.
  async run(body, signal, onChange) {
    this.body = body;
    for await (const { event, data } of events("v1/trajectory", { body, signal })) {
      signal.throwIfAborted(); // events received after a cancellation
      if (event === "start") this.start = data;
      else if (event === "frame") this.frames.push(data);
      else if (event === "done") this.#finish(data);
      if (this.frames.length) onChange(event);
    }
  }

  // Appends the final sample as a frame, because the last prediction may still be uncertain.
  #finish(done) {
    this.done = done;
    const last = this.frames.at(-1);
    const certain = last.certainty.every((p) => p >= 0.9995);
    const same = last.tokens.every((token, i) => token === done.tokens[i]);
    if (certain && same && last.time >= 1) return;
    const left = last.entropy.reduce((sum, bits, i) => sum + (last.known[i] ? 0 : bits), 0);
    this.frames.push({
      ...last, step: this.start.steps, time: 1, tokens: done.tokens, certainty: done.tokens.map(() => 1),
      entropy: done.tokens.map(() => 0), information: last.information + left, settled: done.tokens.map(() => true),
      alternatives: done.tokens.map((token) => [[token, 1]]), sphere: this.#end(last.sphere, done.tokens),
    });
  }

  #end(sphere, tokens) {
    if (!sphere) return sphere;
    const token = tokens[sphere.position];
    // The sampled token may be none of the three shown.
    const corners = sphere.tokens.includes(token) ? sphere.tokens : [...sphere.tokens.slice(0, 2), token];
    const state = [0, 0, 0, 0, 0];
    state[corners.indexOf(token)] = 1;
    return { ...sphere, tokens: corners, state };
  }

  // Mean entropy in bits of the positions that are not given, for every frame.
  entropies() {
    return this.frames.map(({ entropy, known }) => {
      const open = entropy.filter((_, i) => !known[i]);
      return open.length ? open.reduce((sum, bits) => sum + bits, 0) / open.length : 0;
    });
  }

  // Steps in the active window of one position.
  get stepsPerToken() { return this.start.steps_per_token; }

  // Warnings about a requested order.
  get warnings() { return this.body.order ? this.start.notices.join(". ") : ""; }

  // The position shown in the view "Sphere".
  get position() { return this.frames[0]?.sphere?.position ?? -1; }

  get times() { return this.frames.map((frame) => frame.time); }

  describe(at) {
    const frame = this.frames[at];
    return `step ${frame.step} of ${this.start.steps}, time ${frame.time.toFixed(2)}`;
  }
}
