// HTTP client of the server: JSON requests, server-sent events, and errors with readable messages.

export class ApiError extends Error {
  constructor(message, { param = null, status = 0 } = {}) {
    super(message);
    this.param = param;
    this.status = status;
  }
}

export const connection = new EventTarget();
const LOST = "The server does not respond. It may have been stopped, or the network may be down. Results are kept.";
const CUT = "The connection was lost before the response was complete. Please try again.";
const KEY = "rdlm-token";

let pendingToken = null;
let promptForToken = async () => null;
export function onTokenNeeded(prompt) {
  promptForToken = prompt;
}

// Concurrent requests that fail with 401 share one prompt for a token.
function newToken(message) {
  pendingToken ??= promptForToken(message).finally(() => { pendingToken = null; });
  return pendingToken;
}

async function errorOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    // Not JSON: only the status is known.
  }
  const message = error.message || `The server responded with status ${response.status}.`;
  return new ApiError(message, { param: error.param, status: response.status });
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
    throw new ApiError(LOST);
  }
  connection.dispatchEvent(new Event("back"));
  if (response.ok) return response;
  const error = await errorOf(response);
  if (response.status !== 401) throw error;
  const given = await newToken(error.message);
  if (!given) throw error;
  sessionStorage.setItem(KEY, given);
  return send(path, { body, signal });
}

export async function fetchJson(path, options = {}) {
  const response = await send(path, options);
  try {
    return await response.json();
  } catch (failure) {
    if (failure.name === "AbortError") throw failure;
    throw new ApiError(CUT);
  }
}

// Whether the server responds; never shows a message.
export async function isAlive() {
  try {
    return (await fetch("healthz")).ok;
  } catch {
    return false;
  }
}

function parseEvent(text) {
  let event = "message";
  const data = [];
  for (const line of text.split("\n")) {
    if (line.startsWith("event:")) event = line.slice(6).trim();
    else if (line.startsWith("data:")) data.push(line.slice(5).replace(/^ /, ""));
  }
  return data.length ? { event, data: JSON.parse(data.join("\n")) } : null;
}

async function* eventTexts(response) {
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

// Yields the events of a stream; a stream that ends without the event `done` is an error.
export async function* events(path, options) {
  const response = await send(path, options);
  try {
    for await (const text of eventTexts(response)) {
      const found = parseEvent(text);
      if (!found) continue;
      if (found.event === "error") throw new ApiError(found.data.error.message, { param: found.data.error.param });
      yield found;
      if (found.event === "done") return;
    }
  } catch (failure) {
    if (failure.name === "AbortError" || failure instanceof ApiError) throw failure;
    throw new ApiError(CUT);
  }
  throw new ApiError(CUT);
}
