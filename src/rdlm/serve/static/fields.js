// Forms: their values, problems shown beside the field that caused them, and choices.

import { make } from "./dom.js";

export function values(form) {
  const found = {};
  for (const field of form.elements) if (field.name) found[field.name] = field.value;
  return found;
}

// The form as it was written, but for the wanted values.
export function fill(form, wanted) {
  form.reset();
  clearProblem(form);
  for (const field of form.elements) if (field.name && field.name in wanted) field.value = wanted[field.name];
}

// What differs from the form as it was written, so that links stay short.
export function changed(form) {
  const found = {};
  for (const field of form.elements) {
    if (!field.name) continue;
    const initial = field.tagName === "SELECT"
      ? ([...field.options].find((option) => option.defaultSelected) ?? field.options[0])?.value
      : field.defaultValue;
    if (field.value !== initial) found[field.name] = field.value;
  }
  return found;
}

// An empty field means that the service decides; what is no number is sent as it is, and refused in plain words.
export function number(text) {
  if (text === undefined || text.trim() === "") return undefined;
  const value = Number(text);
  return Number.isFinite(value) ? value : text;
}

// A field in which a key begins: Enter alone, or with Control where a text has lines of its own.
export function onEnter(field, begin, { control = false } = {}) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    if (control && !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    begin();
  });
}

export function choices(select, options, chosen) {
  select.replaceChildren(...options.map((value) => {
    const option = make("option", { value }, value || "any");
    option.defaultSelected = value === chosen;
    return option;
  }));
  select.value = chosen ?? options[0] ?? "";
}

export function clearProblem(form) {
  const place = form.querySelector("p.problem[role=alert]");
  place.hidden = true;
  place.textContent = "";
  for (const field of form.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-errormessage");
  }
  form.querySelectorAll(".field .problem").forEach((words) => words.remove());
}

function fieldOf(form, param) {
  const names = { infill: "text", prompt: "text", input: "text" };
  return [...form.elements].find((field) => field.name && field.name === (names[param] ?? param));
}

// Beside the field that the service names, else below the form; either way it is announced.
export function showProblem(form, problem) {
  clearProblem(form);
  const field = problem.param ? fieldOf(form, problem.param) : null;
  if (!field) {
    const place = form.querySelector("p.problem[role=alert]");
    place.hidden = false;
    place.textContent = problem.message;
    return;
  }
  const fold = field.closest("details");
  if (fold) fold.open = true;
  const id = `${form.id}-${field.name}-problem`;
  const words = make("span", { class: "problem", role: "alert", id }, problem.message);
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-errormessage", id);
  field.closest(".field").append(words);
}
