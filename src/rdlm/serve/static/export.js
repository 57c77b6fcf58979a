// Files of what is seen: PNG, JSON, and GIF where it moves.

import { make } from "./dom.js";
import { encodeGif } from "./gif.js";

const LINGER = 2000; // milliseconds on the last frame
const PACE = 80;
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
  return encodeGif(frames, frames.map((_, i) => (i === kept - 1 ? LINGER : PACE)));
}

// Puts the buttons into `root`. `picture(at, scale)` draws a frame; `at` is left out for what is on the screen.
export function offer(root, name, { picture, data, count, text }) {
  const button = (title, produce) => {
    const place = make("button", { type: "button" }, title);
    place.addEventListener("click", async () => {
      place.disabled = true;
      try {
        await produce(place);
      } finally {
        place.disabled = false;
      }
    });
    return place;
  };
  const kinds = [
    button("PNG", async () => save(`rdlm-${name}.png`, await png(picture()))),
    button("JSON", async () => save(`rdlm-${name}.json`, json(data()))),
  ];
  if (count) kinds.splice(1, 0, button("GIF", async () => save(`rdlm-${name}.gif`, await gif(count(), picture))));
  if (text) kinds.push(button("Copy text", async (place) => copy(place, text())));
  root.replaceChildren(make("span", { class: "hint" }, "Save as"), ...kinds);
}

async function copy(place, text) {
  try {
    await navigator.clipboard.writeText(text);
    place.textContent = "Copied";
  } catch {
    place.textContent = "The browser refused";
  }
  setTimeout(() => { place.textContent = "Copy text"; }, 1500);
}
