// Where adapters are and when they were used last: engines are asked, which the list did not wait for.
import { call } from "./calls.js";

const table = document.querySelector("table[data-live]");
if (table) {
  try {
    const found = await call(table.dataset.live, { method: "GET" });
    for (const row of table.querySelectorAll("tr[data-name]")) {
      const one = found[row.dataset.name];
      if (!one) continue;
      row.querySelector("[data-live-place]").textContent = one.place || "–";
      row.querySelector("[data-live-used]").textContent = one.used || "–";
    }
  } catch {
    // The list stands without it.
  }
}
