// View and settings in the fragment of the URL, so that a link reproduces the page.

// Settings renamed since version 0.1.0.
const RENAMED = { chunk: "block", left_chunk: "left_block", right_chunk: "right_block" };

export function readLink(address) {
  const [view, rest = ""] = new URL(address).hash.slice(1).split("?");
  const settings = [...new URLSearchParams(rest)].map(([name, value]) => [RENAMED[name] ?? name, value]);
  return { view, settings: Object.fromEntries(settings) };
}

export function writeLink(view, settings) {
  const rest = new URLSearchParams(settings).toString();
  history.replaceState(null, "", `#${view}${rest ? `?${rest}` : ""}`);
}
