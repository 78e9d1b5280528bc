// Both sides stream at once; each shows which weights answered.
import { copyable } from "./app.js";
import { call, events, explain, made, Refused, renewed } from "./calls.js";

const form = document.getElementById("play");
const run = document.getElementById("run");
const stop = document.getElementById("stop-all");
let running = [];

const seconds = (value) => (value < 1 ? `${(value * 1000).toPrecision(3)} ms` : `${value.toPrecision(3)} s`);

function body(side) {
  const given = new URLSearchParams(new FormData(form));
  given.set("side", side);
  given.delete("csrf");
  return given.toString();
}

const typed = { "content-type": "application/x-www-form-urlencoded" };

async function post(path, side, options) {
  const url = `${form.dataset.base}/playground/${path}`;
  try {
    return await call(url, { body: body(side), headers: typed, ...options });
  } catch (error) {
    if (!(error instanceof Refused) || ![401, 403].includes(error.found.status) || !(await renewed())) throw error;
    return call(url, { body: body(side), headers: typed, ...options });
  }
}

class Side {
  constructor(side) {
    this.side = side;
    this.root = document.getElementById(`side-${side}`);
    this.text = this.root.querySelector("[data-text]");
    this.problem = this.root.querySelector("[data-problem]");
    this.facts = this.root.querySelector("[data-facts]");
    this.status = this.root.querySelector("[data-status]");
  }

  clear(model) {
    this.root.hidden = false;
    this.root.querySelector("[data-model]").textContent = model;
    this.text.textContent = "";
    this.problem.hidden = true;
    this.facts.replaceChildren();
    this.status.textContent = "";
  }

  fact(name, value, wide = false, code = false) {
    const box = made("div", "", wide ? "wide" : "");
    const detail = made("dd");
    detail.append(code ? made("code", value, "long") : made("span", value));
    box.append(made("dt", name), detail);
    this.facts.append(box);
  }

  async stream(signal) {
    const begun = performance.now();
    const response = await post("stream", this.side, { stream: true, signal });
    for await (const [name, data] of events(response)) {
      if (name === "start") this.start(data);
      if (name === "delta") this.text.append(data.text);
      if (name === "end") this.end(data, (performance.now() - begun) / 1000);
      if (name === "error") throw new Refused(data);
    }
  }

  start(data) {
    const what = data.adapter ? `${data.adapter}, version ${data.version}` : data.base;
    const how = [data.alias && `alias @${data.alias}`, data.canary && "canary", data.pinned && "pinned"].filter(Boolean).join(", ");
    this.fact("Weights", what + (how ? ` (${how})` : ""), true);
    this.fact("Digest (sha256)", data.sha256 || data.base_sha256, true, true);
    this.fact("Base", data.base);
    this.fact("Precision", data.dtype);
    this.fact("Replica", `${data.replica}, ${data.engine_build}`);
  }

  end(data, whole) {
    this.fact("Tokens", `${data.prompt_tokens} in (${data.cached_prompt_tokens} cached), ${data.output_tokens} out`);
    this.fact("First token", seconds(data.ttft_seconds));
    this.fact("Queue and load", `${seconds(data.queue_seconds)}, ${seconds(data.load_seconds)} from ${data.tier}`);
    this.fact("Speed", data.tokens_per_second === null ? "–" : `${data.tokens_per_second.toPrecision(3)} tokens/s`);
    this.fact("In all", `${seconds(whole)}, ended by ${data.finish_reason}`);
    this.fact("Ledger", data.ledger_id || "–", true, true);
    this.status.textContent = `The answer of ${this.side.toUpperCase()} is complete, ${data.output_tokens} tokens.`;
  }

  async go(signal) {
    try {
      await this.stream(signal);
    } catch (error) {
      if (error.name === "AbortError") {
        this.status.textContent = "Stopped.";
        return;
      }
      explain(this.problem, error instanceof Refused ? error.found : { message: "The connection broke.", remedy: "Try again." });
    }
  }
}

if (form) {
  const sides = { a: new Side("a"), b: new Side("b") };
  const code = document.getElementById("code");
  for (const element of code.querySelectorAll("[data-copy]")) if (!navigator.clipboard) copyable(element);

  const generate = async () => {
    const asked = Object.values(sides).filter((side) => form.elements[`model_${side.side}`].value.trim());
    sides.b.root.hidden = !asked.includes(sides.b);
    run.disabled = true;
    stop.disabled = false;
    running = asked.map(() => new AbortController());
    asked.forEach((side) => side.clear(form.elements[`model_${side.side}`].value));
    await Promise.all(asked.map((side, i) => side.go(running[i].signal)));
    run.disabled = false;
    stop.disabled = true;
  };

  const asCode = async () => {
    try {
      const found = await post("code", "a");
      for (const box of code.querySelectorAll("[data-kind]")) {
        box.hidden = !found[box.dataset.kind];
        box.querySelector("code").textContent = found[box.dataset.kind];
      }
      code.hidden = false;
      code.scrollIntoView({ block: "nearest" });
    } catch (error) {
      sides.a.clear(form.elements.model_a.value);
      explain(sides.a.problem, error instanceof Refused ? error.found : { message: String(error), remedy: "" });
    }
  };

  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (event.submitter?.value === "code") asCode();
    else generate();
  });
  stop.addEventListener("click", () => running.forEach((one) => one.abort()));
  form.elements.prompt.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit(run);
  });
}
