// Live progress, the picker of folders, dropped files, and copying a command. Every page works without this script.
"use strict";
const root = document.body.dataset.root;
const token = document.body.dataset.token;
const byId = (id) => document.getElementById(id);

// --- live progress ---
const job = document.querySelector("[data-job]");
if (job && window.EventSource) {
  const events = new EventSource(`${root}job/${job.dataset.job}/events`);
  events.onmessage = (event) => {
    const now = JSON.parse(event.data);
    byId("stage").textContent = now.name;
    byId("counts").textContent = now.counts;
    byId("label").textContent = now.label;
    byId("left").textContent = now.left;
    byId("progress").value = now.percent;
  };
  events.addEventListener("end", () => { events.close(); location.reload(); });
  events.onerror = () => { events.close(); setTimeout(() => location.reload(), 2000); };
}

// --- picking a file or a folder ---
const picker = byId("picker");
if (picker && picker.showModal) {
  let field = null;
  let folder = "";
  let timer = 0;
  const choose = (at) => {
    picker.close();
    field.value = decodeURIComponent(at);
    field.focus();
  };
  const show = async (query) => {
    const answer = await fetch(`${root}folder.json?${query}&name=${encodeURIComponent(byId("picker-name").value)}`);
    if (!answer.ok) return;
    const found = await answer.json();
    folder = found.at;
    byId("picker-path").textContent = found.path;
    byId("picker-more").textContent = found.more;
    const entries = [{ name: "..", at: found.parent, isFolder: true }, ...found.entries];
    byId("picker-list").replaceChildren(...entries.map((entry) => {
      const button = document.createElement("button");
      button.type = "button";
      button.textContent = entry.isFolder ? `${entry.name} /` : entry.name;
      button.onclick = () => {
        if (!entry.isFolder) return choose(entry.at);
        byId("picker-name").value = "";
        return show(`at=${entry.at}`);
      };
      const item = document.createElement("li");
      item.append(button);
      return item;
    }));
  };
  for (const button of document.querySelectorAll("[data-pick]")) {
    button.hidden = false;
    button.addEventListener("click", (event) => {
      event.preventDefault();
      field = byId(button.dataset.pick);
      byId("picker-name").value = "";
      picker.showModal();
      show(`path=${encodeURIComponent(field.value)}`);
    });
  }
  byId("picker-name").addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(() => show(`at=${folder}`), 200);
  });
  byId("picker-choose").addEventListener("click", () => choose(folder));
  byId("picker-close").addEventListener("click", () => picker.close());
}

// --- dropping a file ---
const drop = byId("drop");
if (drop) {
  const hint = byId("drop-hint");
  hint.hidden = false;
  drop.addEventListener("dragover", (event) => { event.preventDefault(); drop.classList.add("dragged"); });
  drop.addEventListener("dragleave", () => drop.classList.remove("dragged"));
  drop.addEventListener("drop", async (event) => {
    event.preventDefault();
    drop.classList.remove("dragged");
    const file = event.dataTransfer.files[0];
    if (!file) return;
    hint.textContent = drop.dataset.dropping;
    const answer = await fetch(`${root}dropped?name=${encodeURIComponent(file.name)}`, {
      method: "PUT", body: file, headers: { "X-Form-Token": token },
    });
    if (answer.ok) location.href = (await answer.json()).next;
    else hint.textContent = (await answer.json()).problem;
  });
}

// --- copying a command ---
for (const line of document.querySelectorAll(".command")) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = line.dataset.copy;
  button.onclick = async () => {
    await navigator.clipboard.writeText(line.querySelector("code").textContent);
    button.textContent = line.dataset.copied;
  };
  line.append(button);
}
