// Entry point: models, tabs, access token, connection status, and the state kept in the URL.

import { ApiError, connection, fetchJson, isAlive, onTokenNeeded } from "./api.js";
import { Compare } from "./compare.js";
import { byId, debounce, formatNumber } from "./dom.js";
import { setOptions } from "./form.js";
import { Generate } from "./generate.js";
import { readLink, writeLink } from "./url_state.js";
import { Process } from "./process.js";
import { Restore } from "./restore.js";
import { Score } from "./score.js";
import { Sphere } from "./sphere.js";

const SOLVERS = ["mixture", "drift", "heun", "corrector", "deterministic", "euler"];
const GRIDS = ["time", "log", "information"];
const ORDERS = ["auto", "synchronous", "random", "strided", "left-to-right"];
const RETRY = 2000; // milliseconds between attempts to reconnect

class App {
  models = [];
  current = null;
  working = new Set();
  remember = debounce(() => this.#write(), 150);

  constructor() {
    const generate = new Generate(this);
    const others = [new Sphere(this, generate), new Score(this), new Compare(this), new Process(this)];
    this.views = [generate, new Restore(this), ...others];
    this.loading = this.#load();
  }

  async #load() {
    this.models = (await fetchJson("v1/models")).data;
    setOptions(byId("model"), this.models.map((model) => model.id), this.models[0]?.id);
  }

  // The selected model, or the one with this id; loads the list again if the server was unreachable.
  async model(id) {
    if (!this.models.length) {
      this.loading = this.#load();
      await this.loading;
      this.ready();
    }
    const wanted = id ?? byId("model").value;
    const found = this.models.find((model) => model.id === wanted);
    if (!found) throw new ApiError(`The server has no model “${wanted}”.`, { param: "model" });
    return found;
  }

  ready() {
    const { elements } = byId("generate-form");
    this.samplerOptions(elements.solver, elements.grid, elements.order);
    this.views.find((view) => view.name === "compare").ready();
    this.about();
  }

  // Fills the selects of solver, time grid and order; the defaults are those of the model.
  samplerOptions(solver, grid, order) {
    const { rdlm } = this.models.find((model) => model.id === byId("model").value) ?? this.models[0];
    const own = (all, value) => (all.includes(value) || !value ? all : [value, ...all]);
    setOptions(solver, own(SOLVERS, rdlm.solver), rdlm.solver ?? SOLVERS[0]);
    setOptions(grid, own(GRIDS, rdlm.grid), rdlm.grid ?? GRIDS[0]);
    setOptions(order, ORDERS, ORDERS[0]);
  }

  about() {
    const model = this.models.find(({ id }) => id === byId("model").value);
    if (!model) return;
    const { kind, length, parameters, steps, gap, method, window, block, classes, normalisation } = model.rdlm;
    const size = parameters >= 1e6 ? `${formatNumber(parameters / 1e6)}M` : `${Math.round(parameters / 1e3)}k`;
    byId("about").textContent = `Method ${method}, data ${kind}, length ${length} tokens, ${size} parameters`;
    document.querySelectorAll("kbd.gap").forEach((mark) => { mark.textContent = gap; });
    const standard = { length, steps, window: formatNumber(window ?? 1), block: block ?? 0 };
    for (const [name, value] of Object.entries(standard)) {
      for (const field of document.querySelectorAll(`input[name$=${name}]`)) field.placeholder = `default ${value}`;
    }
    for (const field of document.querySelectorAll(".classes")) field.hidden = !classes.length;
    for (const field of document.querySelectorAll(".normalise")) {
      field.hidden = !normalisation;
      field.title = `Characters that the model does not know. The rule of normalisation: ${normalisation}.`;
    }
    setOptions(byId("generate-form").elements.label, ["", ...classes], "");
    const example = kind === "dna" ? `ACGT${gap.repeat(8)}TATA` : `the ${gap.repeat(8)} of the`;
    byId("generate-form").elements.text.placeholder =
      kind === "image" ? "Empty, or pixel levels as numbers" : `Empty. For example: ${example}`;
    for (const view of this.views) view.adapt?.(model);
  }

  busy(view, is) {
    if (is) this.working.add(view);
    else this.working.delete(view);
    document.querySelector("main").setAttribute("aria-busy", String(this.working.size > 0));
  }

  go(name, { focus = false } = {}) {
    const next = this.views.find((view) => view.name === name) ?? this.views[0];
    if (this.current === next) return;
    this.current?.hide?.();
    this.current = next;
    for (const { name: other } of this.views) {
      const tab = byId(`tab-${other}`);
      tab.setAttribute("aria-selected", String(other === next.name));
      tab.tabIndex = other === next.name ? 0 : -1;
      byId(`view-${other}`).hidden = other !== next.name;
    }
    document.title = `rdlm: ${next.name}`;
    if (focus) byId(`tab-${next.name}`).focus();
    next.show?.();
    next.draw?.();
    this.remember();
  }

  // Shows the view with the settings of a link.
  follow(address) {
    const { view, settings } = readLink(address);
    const named = this.models.find(({ id }) => id === settings.model) ?? this.models[0];
    if (named) byId("model").value = named.id;
    this.about();
    const found = this.views.find(({ name }) => name === view);
    found?.apply(settings);
    if (found && found === this.current) found.show?.();
    else this.go(view);
  }

  #write() {
    const model = byId("model").value;
    const chosen = model && model !== this.models[0]?.id ? { model } : {};
    writeLink(this.current.name, { ...chosen, ...this.current.settings() });
  }
}

function addTabs(app) {
  const list = document.querySelector("[role=tablist]");
  const all = [...list.querySelectorAll("[role=tab]")];
  const name = (tab) => tab.id.slice("tab-".length);
  list.addEventListener("click", (event) => {
    const tab = event.target.closest("[role=tab]");
    if (tab) app.go(name(tab));
  });
  list.addEventListener("keydown", (event) => {
    const at = all.indexOf(document.activeElement);
    const count = all.length;
    const moves = { ArrowRight: (at + 1) % count, ArrowLeft: (at + count - 1) % count, Home: 0, End: count - 1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    app.go(name(all[moves[event.key]]), { focus: true });
  });
}

// Dialog for the access token; if it is cancelled, the request fails.
function addTokenDialog() {
  const dialog = byId("token-dialog");
  onTokenNeeded((message) => new Promise((done) => {
    byId("token-message").textContent = message;
    byId("token").value = "";
    dialog.returnValue = "";
    const answer = () => done(dialog.returnValue === "ok" ? byId("token").value : null);
    dialog.addEventListener("close", answer, { once: true });
    dialog.showModal();
  }));
}

function watchConnection() {
  const banner = byId("banner");
  let timer = null;
  const back = () => {
    clearInterval(timer);
    timer = null;
    banner.hidden = true;
  };
  connection.addEventListener("lost", () => {
    banner.textContent = "Connection to the server lost. Trying to reconnect; results on this page are kept.";
    banner.hidden = false;
    timer ??= setInterval(async () => { if (await isAlive()) back(); }, RETRY);
  });
  connection.addEventListener("back", back);
}

async function begin() {
  watchConnection();
  addTokenDialog();
  const app = new App();
  addTabs(app);
  document.addEventListener("themechange", () => app.current?.draw?.());
  addEventListener("resize", debounce(() => app.current?.draw?.(), 100));
  byId("model").addEventListener("change", () => { app.about(); app.remember(); });
  for (const { form } of app.views) form.addEventListener("input", app.remember);
  try {
    await app.loading;
    app.ready();
  } catch (failure) {
    byId("banner").textContent = failure.message;
    byId("banner").hidden = false;
  }
  app.follow(location.href);
  // `remember` may already have overwritten the URL; the event still has the new one.
  addEventListener("hashchange", ({ newURL }) => app.follow(newURL));
  document.body.dataset.ready = "true";
}

begin();
