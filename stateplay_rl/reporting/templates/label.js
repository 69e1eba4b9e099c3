"use strict";
// The blind page: one video at a time, a score each, saved as a small file. Nothing here knows who made a video.
(() => {
  const BUTTONS = ["UP", "DOWN", "LEFT", "RIGHT", "Y", "X", "Z", "A", "B", "C", "D"];
  const SVG = "http://www.w3.org/2000/svg";
  const { set_sha256: set, items } = JSON.parse(document.getElementById("data").textContent);
  const at = (id) => document.getElementById(id);
  const storeKey = `sprl-labels-${set}`;
  let labels = {}, number = 0, playing = true;
  try { ({ labels = {}, labeller: at("labeller").value = "" } = JSON.parse(localStorage.getItem(storeKey) ?? "{}")); } catch { labels = {}; }
  function keep() {
    try { localStorage.setItem(storeKey, JSON.stringify({ labels, labeller: at("labeller").value })); } catch { /* a browser without storage: the page still saves to a file */ }
  }
  const videos = () => [...document.querySelectorAll("#videos video")];

  function timeline(item) {
    const masks = item.actions.split(" ").filter(Boolean).flatMap((part) => { const [mask, rows] = part.split("x"); return Array(Number(rows)).fill(parseInt(mask, 16)); });
    const svg = document.createElementNS(SVG, "svg"), names = document.createElement("div");
    names.className = "names";
    svg.setAttribute("viewBox", "0 0 600 110");
    svg.setAttribute("preserveAspectRatio", "none");
    const rect = (cls, x, y, width) => {
      const node = document.createElementNS(SVG, "rect");
      for (const [name, value] of Object.entries({ class: cls, x, y: y + 1, width, height: 8 })) node.setAttribute(name, value);
      svg.append(node);
    };
    BUTTONS.forEach((button, bit) => {
      const label = document.createElement("span");
      label.textContent = button;
      names.append(label);
      rect("row", 0, bit * 10, 600);
      masks.forEach((mask, i) => { if ((mask >> bit) & 1) rect(bit > 3 ? "on press" : "on", (i * 600) / masks.length, bit * 10, 600 / masks.length + 0.3); });
    });
    const now = document.createElementNS(SVG, "line");
    for (const [name, value] of Object.entries({ class: "now", y1: 0, y2: 110, x1: 0, x2: 0 })) now.setAttribute(name, value);
    svg.append(now);
    at("timeline").replaceChildren(names, svg);
    at("timeline").moveTo = (share) => { now.setAttribute("x1", share * 600); now.setAttribute("x2", share * 600); };
  }
  function box(item, src, text) {
    const cell = document.createElement("div"), frame = document.createElement("div"), video = document.createElement("video"), caption = document.createElement("div");
    cell.className = "vid"; frame.className = "box"; caption.className = "cap";
    Object.assign(video, { src, muted: true, loop: true, playsInline: true, autoplay: playing, preload: "auto" });
    if (item.pixelated) video.className = "pixelated";
    video.playbackRate = Number(at("speed").value);
    frame.append(video);
    caption.textContent = text;
    cell.append(frame, caption);
    return cell;
  }
  function show() {
    const item = items[number], label = labels[item.name];
    at("name").textContent = `Video ${item.name} of ${items.length}`;
    at("prompt").textContent = item.prompt ? `About the opponent: ${item.prompt}` : "";
    const cells = [box(item, `media/${item.name}.mp4`, "to be scored")];
    if (item.real && at("real").checked) cells.push(box(item, `media/${item.name}-real.mp4`, "real clip"));
    at("videos").replaceChildren(...cells);
    timeline(item);
    at("score").value = label?.score ?? 50;
    at("value").textContent = label === undefined ? "–" : label.score === null ? "cannot tell" : label.score;
    const done = items.filter((one) => labels[one.name] !== undefined).length;
    at("progress").textContent = `${done} of ${items.length} scored`;
    at("previous").disabled = number === 0;
    at("following").disabled = number === items.length - 1;
    at("open").disabled = done === items.length;
  }
  const go = (to) => { number = Math.max(0, Math.min(items.length - 1, to)); show(); };
  function set_score(score) { labels[items[number].name] = { score }; keep(); show(); }
  function play(on) {
    playing = on;
    at("play").textContent = on ? "Pause" : "Play";
    for (const video of videos()) { if (on) video.play().catch(() => {}); else video.pause(); }
  }
  function step(by) {
    play(false);
    const item = items[number], frame = Math.round(videos()[0].currentTime * item.fps - 0.5) + by;
    for (const video of videos()) video.currentTime = (Math.max(0, Math.min(item.frames - 1, frame)) + 0.5) / item.fps;
  }
  function tick() {
    const [lead, ...others] = videos(), item = items[number];
    if (lead) {
      at("timeline").moveTo(Math.min(1, (lead.currentTime * item.fps) / item.frames));
      for (const video of others) if (playing && Math.abs(video.currentTime - lead.currentTime) > 3 / item.fps) video.currentTime = lead.currentTime;
    }
    requestAnimationFrame(tick);
  }
  at("score").addEventListener("input", () => { at("value").textContent = at("score").value; });
  at("score").addEventListener("change", () => set_score(Number(at("score").value)));
  for (const button of document.querySelectorAll("[data-score]")) button.addEventListener("click", () => set_score(Number(button.dataset.score)));
  at("unsure").addEventListener("click", () => set_score(null));
  at("previous").addEventListener("click", () => go(number - 1));
  at("following").addEventListener("click", () => go(number + 1));
  at("open").addEventListener("click", () => {
    const order = items.map((_, i) => (number + 1 + i) % items.length);
    go(order.find((i) => labels[items[i].name] === undefined) ?? number);
  });
  at("play").addEventListener("click", () => play(!playing));
  at("back").addEventListener("click", () => step(-1));
  at("next-frame").addEventListener("click", () => step(1));
  at("speed").addEventListener("change", () => { for (const video of videos()) video.playbackRate = Number(at("speed").value); });
  at("real").addEventListener("change", show);
  at("labeller").addEventListener("input", keep);
  document.addEventListener("keydown", (event) => {
    if (event.target.matches("input[type=text], select") || (event.key === " " && event.target.matches("button, input"))) return;
    if (/^[0-9]$/.test(event.key)) set_score(Number(event.key) * 11);
    else if (event.key === " ") { event.preventDefault(); play(!playing); }
    else if (event.target.matches("input[type=range]")) return;
    else if (event.key === "ArrowRight") go(number + 1);
    else if (event.key === "ArrowLeft") go(number - 1);
  });
  // What is saved: the set, a name, and a score (null: cannot tell) for each video that was looked at.
  window.labelFile = () => JSON.stringify({ version: 1, set_sha256: set, labeller: at("labeller").value.trim(), labels }, null, 1);
  at("save").addEventListener("click", () => {
    const link = document.createElement("a"), name = at("labeller").value.trim().replace(/[^A-Za-z0-9_-]+/g, "-") || "unnamed";
    link.href = URL.createObjectURL(new Blob([window.labelFile()], { type: "application/json" }));
    link.download = `labels-${name}.json`;
    link.click();
  });
  show();
  tick();
})();
