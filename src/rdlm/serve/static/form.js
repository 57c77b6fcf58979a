// Forms: read and set values, fill selects, and show errors next to the field they concern.

import { make } from "./dom.js";

// Tooltips shared by the forms.
export const HELP = {
  order: "Order of generation. synchronous: all tokens move together in every step. random, strided: each token is "
    + "decoded in one step. left-to-right: block by block. auto: the order with the best measured bound, or the "
    + "model's own.",
  window: "Token schedule: the fraction of the sampling time in which one position is denoised (its active window). "
    + "1 denoises all positions together; small values denoise them one after another. Empty: the model's default.",
  block: "Tokens per block. Blocks are generated from left to right; 0 generates all tokens in one block. "
    + "Empty: the model's default.",
};

export function values(form) {
  const found = {};
  for (const field of form.elements) if (field.name) found[field.name] = field.value;
  return found;
}

// Resets the form, then sets the given values.
export function fill(form, wanted) {
  form.reset();
  clearError(form);
  for (const field of form.elements) if (field.name && field.name in wanted) field.value = wanted[field.name];
}

// Values that differ from the defaults; keeps links short.
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

// Empty: undefined, so that the server uses its default. Text that is not a number is sent unchanged, and the server
// reports the error.
export function number(text) {
  if (text === undefined || text.trim() === "") return undefined;
  const value = Number(text);
  return Number.isFinite(value) ? value : text;
}

// The field `normalise` of a request; not sent to models that have no rule of normalisation.
export const canNormalise = (model, chosen) => (chosen && model.rdlm.normalisation ? true : undefined);

// Enter submits; with `control`, only Ctrl+Enter does, and Enter starts a new line.
export function onEnter(field, submit, { control = false } = {}) {
  field.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" || event.shiftKey || event.isComposing) return;
    if (control && !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    submit();
  });
}

export function setOptions(select, options, chosen) {
  select.replaceChildren(...options.map((value) => {
    const option = make("option", { value }, value || "any");
    option.defaultSelected = value === chosen;
    return option;
  }));
  select.value = chosen ?? options[0] ?? "";
}

export function clearError(form) {
  const place = form.querySelector("p.error[role=alert]");
  place.hidden = true;
  place.textContent = "";
  for (const field of form.querySelectorAll("[aria-invalid]")) {
    field.removeAttribute("aria-invalid");
    field.removeAttribute("aria-errormessage");
  }
  form.querySelectorAll(".field .error").forEach((message) => message.remove());
}

function fieldOf(form, param) {
  const names = { infill: "text", prompt: "text", input: "text" };
  return [...form.elements].find((field) => field.name && field.name === (names[param] ?? param));
}

// Shows the message next to the field that the error names, otherwise below the form.
export function showError(form, error) {
  clearError(form);
  const field = error.param ? fieldOf(form, error.param) : null;
  if (!field) {
    const place = form.querySelector("p.error[role=alert]");
    place.hidden = false;
    place.textContent = error.message;
    return;
  }
  const fold = field.closest("details");
  if (fold) fold.open = true;
  const id = `${form.id}-${field.name}-error`;
  const message = make("span", { class: "error", role: "alert", id }, error.message);
  field.setAttribute("aria-invalid", "true");
  field.setAttribute("aria-errormessage", id);
  field.closest(".field").append(message);
}
