// The service: JSON and server-sent events from the page's own origin, and its errors in plain words.

export class Problem extends Error {
  constructor(message, { param = null, status = 0 } = {}) {
    super(message);
    this.param = param;
    this.status = status;
  }
}

export const connection = new EventTarget();
const LOST = "The service does not answer. It may have been stopped, or the network is down; what you see here stays.";
const CUT = "The connection was lost before the answer was complete. Try again.";
const KEY = "rdlm-token";

let asking = null;
let askForToken = async () => null;
export function onToken(ask) {
  askForToken = ask;
}

// All requests that are refused at once wait for one answer.
function newToken(words) {
  asking ??= askForToken(words).finally(() => { asking = null; });
  return asking;
}

async function problemOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    // Not JSON: the status is all there is to tell.
  }
  const message = error.message || `The service answered with status ${response.status}.`;
  return new Problem(message, { param: error.param, status: response.status });
}

async function send(path, { body, signal } = {}) {
  const headers = body ? { "Content-Type": "application/json" } : {};
  const token = sessionStorage.getItem(KEY);
  if (token) headers.Authorization = `Bearer ${token}`;
  let response;
  try {
    const method = body ? "POST" : "GET";
    response = await fetch(path, { method, headers, body: body && JSON.stringify(body), signal });
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    connection.dispatchEvent(new Event("lost"));
    throw new Problem(LOST);
  }
  connection.dispatchEvent(new Event("back"));
  if (response.ok) return response;
  const problem = await problemOf(response);
  if (response.status !== 401) throw problem;
  const given = await newToken(problem.message);
  if (!given) throw problem;
  sessionStorage.setItem(KEY, given);
  return send(path, { body, signal });
}

export async function ask(path, options = {}) {
  const response = await send(path, options);
  try {
    return await response.json();
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    throw new Problem(CUT);
  }
}

// Whether the service lives, without a word to the reader.
export async function alive() {
  try {
    return (await fetch("healthz")).ok;
  } catch {
    return false;
  }
}

function parse(block) {
  let event = "message";
  const data = [];
  for (const line of block.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { event, data: JSON.parse(data.join("\n")) } : null;
}

async function* blocks(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  while (true) {
    const { value, done } = await reader.read();
    if (done) return;
    text = (text + value).replaceAll("\r\n", "\n");
    const parts = text.split("\n\n");
    text = parts.pop();
    yield* parts;
  }
}

// Yields the events of a stream; one that ends without `done` has been cut off.
export async function* events(path, options) {
  const response = await send(path, options);
  try {
    for await (const block of blocks(response)) {
      const found = parse(block);
      if (!found) continue;
      if (found.event === "error") throw new Problem(found.data.error.message, { param: found.data.error.param });
      yield found;
      if (found.event === "done") return;
    }
  } catch (failure) {
    if (failure.name === "AbortError" || failure instanceof Problem) throw failure;
    throw new Problem(CUT);
  }
  throw new Problem(CUT);
}
