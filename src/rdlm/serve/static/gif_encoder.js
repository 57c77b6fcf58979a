// Encoder of animated GIFs (89a): one palette of at most 256 colours, LZW compression.

const LARGEST_CODE = 4096;

class Bytes {
  #parts = [];
  byte(...values) { this.#parts.push(Uint8Array.from(values)); }
  word(value) { this.byte(value & 255, value >> 8); }
  text(value) { this.byte(...[...value].map((letter) => letter.charCodeAt(0))); }
  array(values) { this.#parts.push(values); }
  blob() { return new Blob(this.#parts, { type: "image/gif" }); }
}

const colourAt = (data, i) => (data[i] << 16) | (data[i + 1] << 8) | data[i + 2];

// At most 256 colours; if there are more, the most frequent one of each cell of 8 levels per channel.
function palette(frames) {
  const counts = new Map();
  for (const { data } of frames) {
    for (let i = 0, run = 1; i < data.length; i += 4, run++) {
      const key = colourAt(data, i);
      if (i + 4 < data.length && colourAt(data, i + 4) === key) continue; // most pixels equal their neighbour
      counts.set(key, (counts.get(key) ?? 0) + run);
      run = 0;
    }
  }
  if (counts.size <= 256) return [...counts.keys()];
  const cells = new Map();
  for (const [key, count] of counts) {
    const place = key & 0xf8f8f8;
    const cell = cells.get(place) ?? { key, most: 0, count: 0 };
    if (count > cell.most) Object.assign(cell, { key, most: count });
    cell.count += count;
    cells.set(place, cell);
  }
  return [...cells.values()].sort((a, b) => b.count - a.count).slice(0, 256).map((cell) => cell.key);
}

function nearest(colours, key) {
  let [best, distance] = [0, Infinity];
  for (let i = 0; i < colours.length; i++) {
    const [r, g, b] = [16, 8, 0].map((shift) => ((colours[i] >> shift) & 255) - ((key >> shift) & 255));
    const found = 2 * r * r + 4 * g * g + 3 * b * b;
    if (found < distance) [best, distance] = [i, found];
  }
  return best;
}

function indices({ data }, colours, cache) {
  const found = new Uint8Array(data.length / 4);
  for (let i = 0; i < found.length; i++) {
    const key = colourAt(data, 4 * i);
    let place = cache.get(key);
    if (place === undefined) cache.set(key, (place = nearest(colours, key)));
    found[i] = place;
  }
  return found;
}

// LZW: codes of growing width, lowest bit first; a full dictionary is cleared.
function compress(pixels, bits) {
  const [clear, end] = [1 << bits, (1 << bits) + 1];
  const out = [];
  let [buffer, filled, width, next] = [0, 0, bits + 1, end + 1];
  const codeOf = new Uint16Array(LARGEST_CODE << 8); // code of (prefix, next pixel); 0: none yet
  const put = (code) => {
    buffer |= code << filled;
    for (filled += width; filled >= 8; filled -= 8, buffer >>>= 8) out.push(buffer & 255);
  };
  put(clear);
  let prefix = pixels[0];
  for (let i = 1; i < pixels.length; i++) {
    const key = (prefix << 8) | pixels[i];
    if (codeOf[key]) { prefix = codeOf[key]; continue; }
    put(prefix);
    if (next < LARGEST_CODE) {
      if (next === 1 << width) width++;
      codeOf[key] = next++;
    } else {
      put(clear);
      codeOf.fill(0);
      [width, next] = [bits + 1, end + 1];
    }
    prefix = pixels[i];
  }
  put(prefix);
  if (next === 1 << width && width < 12) width++; // the decoder is one entry ahead here
  put(end);
  if (filled) out.push(buffer & 255);
  return out;
}

function blocksOf(codes) {
  const found = [];
  for (let at = 0; at < codes.length; at += 255) {
    const part = codes.slice(at, at + 255);
    found.push(part.length, ...part);
  }
  return Uint8Array.from([...found, 0]);
}

// Frames are ImageData of equal size, delays in milliseconds; yields to the event loop after each frame.
export async function encodeGif(frames, delays) {
  const { width, height } = frames[0];
  const colours = palette(frames);
  const bits = Math.max(2, Math.ceil(Math.log2(Math.max(colours.length, 2))));
  const cache = new Map(colours.map((key, place) => [key, place]));
  const file = new Bytes();
  file.text("GIF89a");
  file.word(width);
  file.word(height);
  file.byte(0x80 | 0x70 | (bits - 1), 0, 0);
  for (let i = 0; i < 1 << bits; i++) file.byte((colours[i] >> 16) & 255, (colours[i] >> 8) & 255, colours[i] & 255);
  file.byte(0x21, 0xff, 11);
  file.text("NETSCAPE2.0");
  file.byte(3, 1, 0, 0, 0);
  for (const [i, frame] of frames.entries()) {
    file.byte(0x21, 0xf9, 4, 0);
    file.word(Math.round(delays[i] / 10));
    file.byte(0, 0, 0x2c, 0, 0, 0, 0);
    file.word(width);
    file.word(height);
    file.byte(0, bits);
    file.array(blocksOf(compress(indices(frame, colours, cache), bits)));
    await new Promise((next) => setTimeout(next));
  }
  file.byte(0x3b);
  return file.blob();
}
