// Keeps a board as it is now. Everything that comes is put into textContent; a board of another shape is loaded anew.
import { call, events, made, Refused } from "./calls.js";

const board = document.querySelector("[data-board]");
const state = document.querySelector("[data-live-state]");

function cell([text, href, style, title], head) {
  const element = made(head ? "th" : "td", "", style === "num" || style === "nowrap" ? style : "");
  if (head) element.scope = "row";
  if (href) {
    const link = made("a", text);
    link.href = href;
    element.append(link);
  } else if (style === "code" || style === "id") {
    const code = made("code", text, style === "id" ? style : "");
    if (title) code.title = title;
    element.append(code);
  } else element.textContent = text;
  return element;
}

function put(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

// Somebody is at one of its links, or marks what stands there, to copy it.
function held(body) {
  const marked = document.getSelection();
  return body.contains(document.activeElement) || (!marked.isCollapsed && marked.containsNode(body, true));
}

function show(found) {
  if (found.shape !== board.dataset.shape) {
    location.reload();
    return;
  }
  const figures = board.querySelectorAll("[data-figure]");
  const subs = board.querySelectorAll("[data-figure-sub]");
  found.figures.forEach(([value, sub], at) => {
    put(figures[at], value);
    put(subs[at], sub);
  });
  for (const body of board.querySelectorAll("[data-rows]")) {
    const rows = found.rows[body.dataset.rows].map((cells) => {
      const row = made("tr");
      row.append(...cells.map((one, at) => cell(one, at === 0)));
      return row;
    });
    if (!rows.length) {
      const none = made("td", body.dataset.none, "muted");
      none.colSpan = Number(body.dataset.columns);
      const row = made("tr");
      row.append(none);
      rows.push(row);
    }
    if (!held(body)) body.replaceChildren(...rows);
  }
  for (const note of board.querySelectorAll("[data-note]")) {
    put(note, found.notes[note.dataset.note]);
    note.hidden = !note.textContent;
  }
}

async function follow(signal) {
  for (;;) {
    const response = await call(board.dataset.board, { method: "GET", stream: true, signal });
    for await (const [name, data] of events(response)) {
      if (name === "error") throw new Refused(data);
      show(data);
      put(state, "Live");
    }
  }
}

async function watch() {
  for (;;) {
    const ending = new AbortController();
    const left = () => { if (document.visibilityState === "hidden") ending.abort(); };
    document.addEventListener("visibilitychange", left);
    try {
      await follow(ending.signal);
    } catch (error) {
      if (error instanceof Refused && error.found.status === 401) {
        put(state, "Logged out; load the page again.");
        return;
      }
      put(state, "Not live now");
    } finally {
      document.removeEventListener("visibilitychange", left);
    }
    if (document.visibilityState === "hidden") {
      await new Promise((shown) => document.addEventListener("visibilitychange", shown, { once: true }));
    } else await new Promise((later) => setTimeout(later, 5000));
  }
}

if (board) watch();
