// The address: view and settings behind the '#', so that a link shows what its sender saw.

export function readLink(address) {
  const [view, rest = ""] = new URL(address).hash.slice(1).split("?");
  return { view, settings: Object.fromEntries(new URLSearchParams(rest)) };
}

export function writeLink(view, settings) {
  const rest = new URLSearchParams(settings).toString();
  history.replaceState(null, "", `#${view}${rest ? `?${rest}` : ""}`);
}
