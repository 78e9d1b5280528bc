// Calls of a page's script to its own server. Text that comes back is only ever put into textContent.

export const token = () => document.querySelector('meta[name="csrf"]').content;

export class Refused extends Error {
  constructor(found) {
    super(found.message);
    this.found = found;
  }
}

export async function call(url, options = {}) {
  const headers = { accept: options.stream ? "text/event-stream" : "application/json", "x-lorry-csrf": token(), ...options.headers };
  let response;
  try {
    response = await fetch(url, { method: options.method ?? "POST", body: options.body, headers, signal: options.signal, credentials: "same-origin", redirect: "error" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Refused({ status: 0, reason: "OFFLINE", message: "The server did not answer.", remedy: "Try again.", violations: [], metadata: {} });
  }
  if (!response.ok) {
    let found;
    try {
      found = (await response.json()).error;
    } catch {
      found = { reason: "UNKNOWN", message: `The server answered ${response.status}.`, remedy: "Try again.", violations: [], metadata: {} };
    }
    throw new Refused({ ...found, status: response.status });
  }
  return options.stream ? response : response.json();
}

// Yields [event, data] of a stream, in order.
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let held = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    held += value;
    for (let end = held.indexOf("\n\n"); end >= 0; end = held.indexOf("\n\n")) {
      const lines = held.slice(0, end).split("\n");
      held = held.slice(end + 2);
      if (lines.every((line) => line.startsWith(":"))) continue;
      const name = lines.find((line) => line.startsWith("event: "))?.slice(7) ?? "message";
      yield [name, JSON.parse(lines.find((line) => line.startsWith("data: ")).slice(6))];
    }
  }
}

// Another tab may have logged in meanwhile: its token is taken, and nothing on this page is lost.
export async function renewed() {
  const response = await fetch("/session", { headers: { accept: "application/json" }, credentials: "same-origin", redirect: "error" }).catch(() => null);
  if (!response?.ok) return false;
  const now = (await response.json()).csrf;
  document.querySelector('meta[name="csrf"]').content = now;
  for (const field of document.querySelectorAll('input[name="csrf"]')) field.value = now;
  return true;
}

export function made(tag, text = "", className = "") {
  const element = document.createElement(tag);
  element.textContent = text;
  if (className) element.className = className;
  return element;
}

// The words of an error, with a way to log in where that is what it takes.
export function explain(place, found) {
  const message = found.remedy && !/[.!?]$/.test(found.message) ? `${found.message}.` : found.message;
  place.replaceChildren(made("span", [message, found.remedy].filter(Boolean).join(" ")));
  if (found.reason === "SIGNED_OUT" || found.status === 401) {
    const link = made("a", "Log in in a new tab, then try again here; nothing on this page is lost.");
    link.href = "/login";
    link.target = "_blank";
    place.append(" ", link);
  }
  place.hidden = false;
}
