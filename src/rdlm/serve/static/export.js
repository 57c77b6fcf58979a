// Export buttons: PNG and JSON of the current view, GIF of an animation, text to the clipboard.

import { make } from "./dom.js";
import { encodeGif } from "./gif_encoder.js";

const LAST_DELAY = 2000; // milliseconds
const DELAY = 80;
const MOST_FRAMES = 48;

function save(name, blob) {
  const link = make("a", { href: URL.createObjectURL(blob), download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10000);
}

const png = (canvas) => new Promise((done) => canvas.toBlob(done, "image/png"));
const json = (data) => new Blob([JSON.stringify(data, null, 1)], { type: "application/json" });

async function gif(count, picture) {
  const kept = Math.min(count, MOST_FRAMES);
  const frames = Array.from({ length: kept }, (_, i) => {
    const canvas = picture(kept > 1 ? Math.round((i * (count - 1)) / (kept - 1)) : 0, 1);
    return canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height);
  });
  return encodeGif(frames, frames.map((_, i) => (i === kept - 1 ? LAST_DELAY : DELAY)));
}

// Adds buttons to `root`. `picture(at, scale)` draws frame `at`; without `at`, the frame on the screen.
export function addExportButtons(root, name, { picture, data, count, text }) {
  const button = (title, produce) => {
    const element = make("button", { type: "button" }, title);
    element.addEventListener("click", async () => {
      element.disabled = true;
      try {
        await produce(element);
      } finally {
        element.disabled = false;
      }
    });
    return element;
  };
  const kinds = [
    button("PNG", async () => save(`rdlm-${name}.png`, await png(picture()))),
    button("JSON", async () => save(`rdlm-${name}.json`, json(data()))),
  ];
  if (count) kinds.splice(1, 0, button("GIF", async () => save(`rdlm-${name}.gif`, await gif(count(), picture))));
  if (text) kinds.push(button("Copy text", async (element) => copy(element, text())));
  root.replaceChildren(make("span", { class: "hint" }, "Save as"), ...kinds);
}

async function copy(button, text) {
  try {
    await navigator.clipboard.writeText(text);
    button.textContent = "Copied";
  } catch {
    button.textContent = "Copying failed";
  }
  setTimeout(() => { button.textContent = "Copy text"; }, 1500);
}
