// Sends a folder in chunks, then follows the validation. A chunk that fails is asked for and sent again from there.
import { call, events, explain, made, Refused, renewed } from "./calls.js";

const form = document.getElementById("register");
const $ = (id) => document.getElementById(id);
let files = [];

function show(list) {
  files = [...list].filter((file) => !file.name.startsWith("."));
  const total = files.reduce((sum, file) => sum + file.size, 0);
  $("chosen").replaceChildren(
    ...files.slice(0, 40).map((file) => made("li", `${file.name} · ${size(file.size)}`)),
    made("li", files.length ? `${files.length} files, ${size(total)}` : "", "muted"),
  );
}

const size = (bytes) => (bytes < 1024 ? `${bytes} B` : bytes < 1048576 ? `${(bytes / 1024).toFixed(1)} KiB` : `${(bytes / 1048576).toFixed(1)} MiB`);

// Of a dropped folder only the files directly in it: there are no others in an adapter.
async function dropped(items) {
  const found = [];
  const entries = [...items].map((item) => item.webkitGetAsEntry?.()).filter(Boolean);
  for (const entry of entries) {
    if (entry.isFile) found.push(await new Promise((done, failed) => entry.file(done, failed)));
    if (!entry.isDirectory) continue;
    const reader = entry.createReader();
    for (;;) {
      const some = await new Promise((done, failed) => reader.readEntries(done, failed));
      if (!some.length) break;
      for (const inner of some) if (inner.isFile) found.push(await new Promise((done, failed) => inner.file(done, failed)));
    }
  }
  return found;
}

async function retried(work) {
  for (let left = 3; ; left -= 1) {
    try {
      return await work();
    } catch (error) {
      const status = error instanceof Refused ? error.found.status : -1;
      if (status === 401 || status === 403) {
        if (left > 0 && (await renewed())) continue;
        throw error;
      }
      if (left <= 0 || ![0, 429, 502, 503, 504].includes(status)) throw error;
      await new Promise((done) => setTimeout(done, 500));
    }
  }
}

async function sendFile(upload, file, progress) {
  let offset = 0;
  do {
    const piece = file.slice(offset, offset + upload.chunk_bytes);
    try {
      const at = offset;
      const answer = await retried(() => call(`${upload.url}/chunk?file=${encodeURIComponent(file.name)}&offset=${at}`, { method: "PUT", body: piece }));
      offset = answer.received_bytes;
    } catch (error) {
      const have = error instanceof Refused ? error.found.metadata?.received_bytes : undefined;
      if (have === undefined || Number(have) === offset) throw error;
      offset = Number(have);
    }
    progress(Math.min(offset, file.size));
  } while (offset < file.size);
}

function row(check) {
  const line = document.createElement("tr");
  const state = made("span", check.outcome, `state ${{ pass: "good", fail: "bad", warn: "warn" }[check.outcome] ?? "plain"}`);
  const cell = document.createElement("td");
  cell.append(state);
  const head = made("th");
  head.scope = "row";
  head.append(made("code", check.id));
  line.append(head, cell, made("td", check.message));
  const body = $("checks").tBodies[0];
  if (check.outcome === "pass") body.append(line);
  else body.prepend(line);
  $("checks").hidden = false;
}

function refused(found) {
  $("result").className = "problem";
  explain($("result"), found);
}

async function follow(response) {
  for await (const [name, data] of events(response)) {
    if (name === "check") row(data);
    if (name === "version") {
      $("phase").textContent = `Version ${data.number} is ${data.state}.`;
      const link = made("a", "Open the version");
      link.href = data.url;
      $("result").replaceChildren(made("span", "Registered. "), link);
      $("result").className = "said";
      $("result").hidden = false;
    }
    if (name === "error") {
      $("phase").textContent = "The version was refused.";
      refused(data);
      if (!data.url) continue;
      const link = made("a", "Open its report");
      link.href = data.url;
      $("result").append(" ", link);
    }
  }
}

async function register() {
  const given = new FormData(form);
  const adapter = given.get("adapter").trim();
  const at = `${form.dataset.base}/adapters/${encodeURIComponent(adapter)}`;
  const fields = new URLSearchParams({ display_name: given.get("display_name"), base: given.get("base"), s3_uri: given.get("s3_uri").trim() });
  const typed = { "content-type": "application/x-www-form-urlencoded" };
  $("progress").hidden = false;
  $("checks").hidden = true;
  $("checks").tBodies[0].replaceChildren();
  $("result").replaceChildren();
  $("result").hidden = true;
  const bar = $("bar");
  if (fields.get("s3_uri")) {
    $("phase").textContent = "Importing and validating…";
    bar.removeAttribute("value");
    await follow(await retried(() => call(`${at}/import`, { body: fields.toString(), headers: typed, stream: true })));
    bar.value = 1;
    return;
  }
  if (!files.length) throw new Refused({ message: "No files were chosen.", remedy: "Choose the files of the folder that PEFT saved, or drop the folder on the page.", metadata: {} });
  $("phase").textContent = "Uploading…";
  const upload = await retried(() => call(`${at}/uploads`, { body: fields.toString(), headers: typed }));
  const total = files.reduce((sum, file) => sum + file.size, 0) || 1;
  let before = 0;
  for (const file of files) {
    await sendFile(upload, file, (done) => {
      bar.value = (before + done) / total;
      $("phase").textContent = `Uploading ${file.name}: ${size(before + done)} of ${size(total)}`;
    });
    before += file.size;
  }
  bar.value = 1;
  $("phase").textContent = "Validating…";
  await follow(await retried(() => call(`${upload.url}/create`, { body: fields.toString(), headers: typed, stream: true })));
}

if (form) {
  $("files").addEventListener("change", (event) => show(event.target.files));
  $("folder").addEventListener("change", (event) => show(event.target.files));
  const drop = $("drop");
  for (const kind of ["dragover", "dragenter"]) drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", async (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    show(await dropped(event.dataTransfer.items));
  });
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    $("send").disabled = true;
    try {
      await register();
    } catch (error) {
      $("phase").textContent = "It did not go through.";
      refused(error instanceof Refused ? error.found : { message: String(error), remedy: "" });
    } finally {
      $("send").disabled = false;
    }
  });
}
