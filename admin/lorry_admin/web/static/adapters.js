// What the list does not wait for: where adapters are.
import { call } from "./calls.js";

const table = document.querySelector("table[data-live]");
if (table) {
  try {
    const found = await call(table.dataset.live, { method: "GET" });
    for (const row of table.querySelectorAll("tr[data-name]")) {
      row.querySelector("[data-live-place]").textContent = found[row.dataset.name]?.place || "–";
    }
  } catch {
    // The list stands without it.
  }
}
