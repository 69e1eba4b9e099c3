"use strict";
// The lineage drawer: from a number to the file and field it was read from, their hashes, and the chain behind them.
(() => {
  const drawer = document.getElementById("drawer");
  const body = drawer.querySelector(".body");
  const lineages = new Map();
  let opener = null;

  function el(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined && text !== null) node.textContent = text;
    return node;
  }
  function lineage(owner) {
    if (!lineages.has(owner)) {
      const node = document.getElementById(`${owner}-lineage-json`);
      lineages.set(owner, node ? JSON.parse(node.textContent) : null);
    }
    return lineages.get(owner);
  }
  function list(title, rows) {
    if (!rows.length) return;
    const box = el("dl");
    for (const [name, place, sha] of rows) {
      const value = el("dd");
      if (place) value.append(el("div", "", place));
      if (sha) value.append(el("code", "", sha));
      box.append(el("dt", "", name), value);
    }
    body.append(el("h4", "", title), box);
  }
  // Files that the source text names: "heldout.jsonl: reward_mean" means heldout.jsonl.
  const named = (text) => [...text.matchAll(/[\w./*-]+\.(?:jsonl|json|parquet|yaml|sqlite|png|mp4|safetensors)\b/g)].map((m) => m[0]);

  // what: {label, value, source, owner, files, facts}
  window.showLineage = (what, from) => {
    opener = from ?? null;
    body.replaceChildren();
    body.append(el("p", "number", what.value ?? ""), el("p", "label", what.label ?? ""));
    if (what.source) list("Read from", [["source", what.source, ""]]);
    const own = what.files ?? [];
    list("Its files", own.map(([name, sha]) => [name, "", sha]));
    list("What it is", (what.facts ?? []).map(([name, value]) => [name, value, ""]));
    for (const owner of what.owner === "all" ? [...document.querySelectorAll(".source[id]")].map((n) => n.id) : [what.owner]) {
      const line = lineage(owner);
      if (!line) continue;
      const wanted = new Set(named(what.source ?? ""));
      const policy = (what.facts ?? []).find(([name]) => name === "policy")?.[1];
      const batch = (what.facts ?? []).find(([name]) => name === "batch")?.[1];
      const hits = line.index.filter(([name]) => wanted.has(name) || wanted.has(name.split("/").pop()) ||
        (batch !== undefined && name.startsWith(`checkpoints/step-${batch}/`)) || (policy && name.includes(policy)));
      list(`Files in ${line.name}`, hits.map(([name, sha]) => [name, "", sha]));
      list(`${line.name}`, line.facts.filter(([name]) => ["directory", "run id", "manifest sha256", "state"].includes(name)).map(([name, value]) => [name, value, ""]));
      list("Made from", line.steps.map((step) => [step.what, step.place, step.sha256]));
    }
    drawer.hidden = false;
    drawer.querySelector("button").focus();
  };
  function close() {
    drawer.hidden = true;
    if (opener) opener.focus();
  }
  drawer.querySelector("button").addEventListener("click", close);
  document.addEventListener("keydown", (event) => { if (event.key === "Escape" && !drawer.hidden) close(); });

  const owner = (node) => node.closest("[data-owner]")?.dataset.owner ?? "all";
  const text = (node, selector) => node.querySelector(selector)?.textContent.trim() ?? "";
  function opened(target) {
    const stat = target.closest(".stat");
    if (stat) return [{ label: text(stat, ".label"), value: text(stat, ".value"), source: stat.dataset.source, owner: owner(stat) }, stat];
    const source = target.closest("figcaption .src, svg.chart .point");
    if (source) {
      const figure = source.closest("figure");
      const value = source.classList.contains("point") ? text(source, "title") : "";
      return [{ label: text(figure, "h4"), value, source: figure.dataset.source, owner: owner(figure) }, figure.querySelector(".src")];
    }
    const cell = target.closest(".table[data-source] td.num");
    if (cell) {
      const table = cell.closest(".table"), head = table.querySelectorAll("th")[cell.cellIndex];
      const row = cell.parentElement.cells[0].textContent.trim();
      return [{ label: `${row}: ${head ? head.textContent.trim() : ""}`, value: cell.textContent.trim(), source: table.dataset.source, owner: owner(cell) }, cell];
    }
    return null;
  }
  document.addEventListener("click", (event) => {
    const found = opened(event.target);
    if (found) window.showLineage(...found);
  });
  document.addEventListener("keydown", (event) => {
    if (event.key !== "Enter" && event.key !== " ") return;
    if (!event.target.matches(".stat, .src")) return;
    const found = opened(event.target);
    if (found) { event.preventDefault(); window.showLineage(...found); }
  });
})();
