// On every page: what is nicer with a script, and works without one.
import { made, renewed } from "./calls.js";

document.documentElement.classList.add("scripted");

// On a phone the navigation is one line: where one is stands in sight.
const here = document.querySelector(".side [aria-current]");
const side = here && here.closest(".side");
if (side && side.scrollWidth > side.clientWidth) side.scrollLeft = here.offsetLeft - (side.clientWidth - here.offsetWidth) / 2;

for (const form of document.querySelectorAll("form[data-ask]")) {
  form.addEventListener("submit", (event) => {
    if (!window.confirm(form.dataset.ask)) event.preventDefault();
  });
}

for (const range of document.querySelectorAll("[data-permille]")) {
  const output = document.querySelector(`output[for="${range.id}"]`);
  range.addEventListener("input", () => { output.textContent = `${range.value / 10}%`; });
}

export function copyable(element) {
  const button = made("button", "Copy", "copy");
  button.type = "button";
  button.addEventListener("click", async () => {
    try {
      await navigator.clipboard.writeText(element.textContent);
      button.textContent = "Copied";
    } catch {
      getSelection().selectAllChildren(element);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  });
  element.after(button);
}
if (navigator.clipboard) for (const element of document.querySelectorAll("[data-copy]")) copyable(element);

// Back from another tab, where somebody may have logged in again: forms here get the new login's token.
if (document.querySelector('meta[name="csrf"]')) {
  let asked = Date.now();
  document.addEventListener("visibilitychange", () => {
    if (document.visibilityState !== "visible" || Date.now() - asked < 60000) return;
    asked = Date.now();
    renewed();
  });
}
