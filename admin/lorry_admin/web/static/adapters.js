// What a long list does not wait for: states and aliases, where adapters are, and when they were used last.
import { call, made } from "./calls.js";

const STATES = { ready: "good", rejected: "bad", quarantined: "bad", purged: "bad", deprecated: "warn" };

function tell(row, one) {
  for (const name of ["version", "rank", "size", "base"]) row.querySelector(`[data-live="${name}"]`).textContent = one[name] ?? "–";
  const state = row.querySelector('[data-live="state"]');
  state.replaceChildren(one.state ? made("span", one.state, `state ${STATES[one.state] ?? "plain"}`) : made("span", "no version", "muted"));
  if (one.reason) state.append(made("span", one.reason, "under clip"));
  const aliases = row.querySelector('[data-live="aliases"]');
  aliases.replaceChildren(...one.aliases.flatMap((words) => [made("span", words, "tag"), " "]));
  if (!one.aliases.length) aliases.textContent = "–";
}

const table = document.querySelector("table[data-live]");
if (table) {
  try {
    const found = await call(table.dataset.live, { method: "GET" });
    for (const row of table.querySelectorAll("tr[data-name]")) {
      const one = found[row.dataset.name];
      if (!one) continue;
      if (table.dataset.told === "0") tell(row, one);
      row.querySelector("[data-live-place]").textContent = one.place || "–";
      row.querySelector("[data-live-used]").textContent = one.used || "–";
    }
  } catch {
    // The list stands without it.
  }
}
