// List of the tokens of a sample, one cell per position: a list box in which the arrow keys move.

import { tokenGlyph, make, tokenName } from "./dom.js";

export class TokenList extends EventTarget {
  #cells = [];
  #active = -1;
  #describe = null;

  constructor(root, label) {
    super();
    this.root = root;
    this.root.setAttribute("role", "listbox");
    this.root.setAttribute("aria-label", label);
    this.root.tabIndex = 0;
    root.addEventListener("keydown", (event) => this.#key(event));
    root.addEventListener("focus", () => this.activate(Math.max(this.#active, 0)));
    root.addEventListener("pointerover", (event) => this.#at(event, (i) => this.activate(i)));
    root.addEventListener("click", (event) => this.#at(event, (i) => this.#pick(i)));
  }

  // `cell(i)` returns {text, fill, ink, known}; `describe(i)` returns the label of a cell. It must refer to the frame
  // shown here, because it is called later, when the pointer or focus moves. Cells are created once and updated.
  show(count, cell, describe) {
    this.#describe = describe;
    if (this.#cells.length !== count) this.#build(count);
    for (let i = 0; i < count; i++) {
      const { text, fill, ink, known } = cell(i);
      const place = this.#cells[i];
      const shown = text === " " ? text : tokenGlyph(text); // lines break at spaces
      if (place.textContent !== shown) {
        place.textContent = shown;
        place.setAttribute("aria-label", tokenName(text));
      }
      place.style.backgroundColor = fill;
      place.style.color = ink;
      place.classList.toggle("known", Boolean(known));
    }
    if (this.#active >= 0) this.#name(this.#active);
  }

  // Marks the selected position.
  select(position) {
    this.#cells.forEach((cell, i) => cell.setAttribute("aria-selected", String(i === position)));
  }

  activate(position) {
    if (!this.#cells.length) return;
    const place = Math.min(position, this.#cells.length - 1);
    this.#cells[this.#active]?.classList.remove("active");
    this.#active = place;
    this.#cells[place].classList.add("active");
    this.root.setAttribute("aria-activedescendant", this.#cells[place].id);
    this.#name(place);
    this.dispatchEvent(new CustomEvent("inspect", { detail: place }));
  }

  get active() { return this.#active; }

  clear() { this.#build(0); }

  #build(count) {
    this.#active = -1;
    this.root.removeAttribute("aria-activedescendant");
    this.#cells = Array.from({ length: count }, (_, i) =>
      make("span", { role: "option", id: `${this.root.id}-${i}`, "aria-selected": "false", "data-position": i }));
    this.root.replaceChildren(...this.#cells);
  }

  #name(i) {
    this.#cells[i].setAttribute("aria-label", this.#describe(i));
  }

  #at(event, action) {
    const cell = event.target.closest("[data-position]");
    if (cell) action(Number(cell.dataset.position));
  }

  #pick(i) {
    this.activate(i);
    this.dispatchEvent(new CustomEvent("pick", { detail: i }));
  }

  // Nearest cell in the line above or below.
  #vertical(direction) {
    const here = this.#cells[this.#active].getBoundingClientRect();
    let best = this.#active;
    let distance = Infinity;
    for (let i = this.#active + direction; i >= 0 && i < this.#cells.length; i += direction) {
      const there = this.#cells[i].getBoundingClientRect();
      if (Math.abs(there.top - here.top) < 2) continue;
      if (Math.abs(there.top - here.top) > 1.5 * here.height + 8) break;
      if (Math.abs(there.left - here.left) < distance) [best, distance] = [i, Math.abs(there.left - here.left)];
    }
    return best;
  }

  #key(event) {
    if (!this.#cells.length) return;
    const last = this.#cells.length - 1;
    const moves = {
      ArrowRight: () => Math.min(this.#active + 1, last), ArrowLeft: () => Math.max(this.#active - 1, 0),
      ArrowDown: () => this.#vertical(1), ArrowUp: () => this.#vertical(-1), Home: () => 0, End: () => last,
    };
    if (event.key in moves) this.activate(moves[event.key]());
    else if (event.key === "Enter" || event.key === " ") this.#pick(Math.max(this.#active, 0));
    else return;
    event.preventDefault();
  }
}
