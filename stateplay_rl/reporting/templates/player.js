"use strict";
// Draws the galleries from the page's JSON, a page of cards at a time, and plays a card's videos together.
(() => {
  const BUTTONS = ["UP", "DOWN", "LEFT", "RIGHT", "Y", "X", "Z", "A", "B", "C", "D"];
  const SVG = "http://www.w3.org/2000/svg";
  const read = (id) => JSON.parse(document.getElementById(id).textContent);
  const media = read("media");
  const urls = new Map();

  function el(tag, className, text) {
    const node = document.createElement(tag);
    if (className) node.className = className;
    if (text !== undefined && text !== null) node.textContent = text;
    return node;
  }
  function shape(tag, attributes) {
    const node = document.createElementNS(SVG, tag);
    for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
    return node;
  }
  // Blob URLs rather than data URIs: every browser can seek in them.
  function mediaUrl(key) {
    if (!urls.has(key)) {
      const bytes = Uint8Array.from(atob(media[key]), (c) => c.charCodeAt(0));
      urls.set(key, URL.createObjectURL(new Blob([bytes], { type: "video/mp4" })));
    }
    return urls.get(key);
  }
  const score = (value) => value.toFixed(1);

  function timeline(card) {
    const masks = [];
    for (const item of card.actions.split(" ").filter(Boolean)) {
      const [mask, rows] = item.split("x");
      for (let i = 0; i < Number(rows); i++) masks.push(parseInt(mask, 16));
    }
    const box = el("div", "timeline"), names = el("div", "names");
    const width = 600, step = 10, height = BUTTONS.length * step;
    const svg = shape("svg", { viewBox: `0 0 ${width} ${height}`, preserveAspectRatio: "none", role: "img", "aria-label": "held buttons over time" });
    BUTTONS.forEach((button, bit) => {
      const y = bit * step;
      names.append(el("span", "", button));
      svg.append(shape("rect", { class: "row", x: 0, y: y + 1, width, height: step - 2 }));
      let start = -1;
      for (let i = 0; i <= masks.length; i++) {
        const on = i < masks.length && ((masks[i] >> bit) & 1);
        if (on && start < 0) start = i;
        if (!on && start >= 0) {
          const scale = width / masks.length;
          const bar = shape("rect", { class: bit > 3 ? "on press" : "on", x: start * scale, y: y + 1, width: (i - start) * scale, height: step - 2 });
          const hover = shape("title", {});
          hover.textContent = `${button}: rows ${start} to ${i - 1}`;
          bar.append(hover);
          svg.append(bar);
          start = -1;
        }
      }
    });
    const now = shape("line", { class: "now", x1: 0, x2: 0, y1: 0, y2: height });
    svg.append(now);
    box.append(names, svg);
    box.moveTo = (share) => { for (const end of ["x1", "x2"]) now.setAttribute(end, share * width); };
    if (!masks.length) box.hidden = true;
    return box;
  }

  function videoBox(card, item) {
    const box = el("div", `vid ${item.role}`);
    const frame = el("div", "box");
    const src = item.media ? mediaUrl(item.media) : item.href;
    let video = null;
    if (src) {
      video = el("video", card.pixelated ? "pixelated" : "");
      Object.assign(video, { src, muted: true, playsInline: true, preload: item.media ? "auto" : "metadata" });
      video.addEventListener("error", () => {
        video.replaceWith(el("div", "missing", item.media ? "This browser cannot play H.264 video." : `Not found: ${item.href}. The report was moved away from its directories.`));
      });
      frame.append(video);
    } else {
      frame.append(el("div", "missing", item.reason || "no video"));
    }
    box.append(frame);
    const caption = el("div", "cap");
    caption.append(el("span", "role", item.label));
    if (item.score !== null) {
      const number = el("button", "score", score(item.score));
      Object.assign(number, { type: "button", title: "files and hashes" });
      number.addEventListener("click", () => lineage(card, item, number));
      caption.append(number);
    }
    else if (item.role !== "reference") caption.append(el("span", "none", item.reason || "no score"));
    box.append(caption);
    if (item.score !== null) {
      const bar = el("div", "bar"), fill = el("i");
      fill.style.width = `${Math.max(0, Math.min(100, item.score))}%`;
      bar.append(fill);
      box.append(bar);
    }
    if (item.details.length) box.title = item.details.map(([name, value]) => `${name}: ${value}`).join("\n");
    return [box, video];
  }

  // From a score to its request, its group, the candidate's latents, the policy and the checkpoint.
  function lineage(card, item, from) {
    const number = Number(item.label.match(/\d+/)?.[0] ?? 0), paired = item.role === "before" || item.role === "after";
    const folder = paired ? `${item.role}/` : "", own = `candidate_${paired ? number - 1 : number}.`;
    const mine = ([name]) => name.startsWith(folder) && (name.startsWith(folder + own) || !name.startsWith(`${folder}candidate_`));
    const facts = [["group", card.title], ...card.facts, ...item.details.filter(([name]) => ["judge", "request", "status"].includes(name))];
    if (card.batch !== null) facts.push(["batch", String(card.batch)]);
    const node = from.closest("[data-owner]");
    window.showLineage({ label: `${card.title}, ${item.label}`, value: score(item.score), source: card.source, owner: node ? node.dataset.owner : "all", files: card.files.filter(mine), facts }, from);
  }

  function controls(card, videos, strip) {
    const row = el("div", "controls");
    const play = el("button", "", "Play"), back = el("button", "", "◀ frame"), next = el("button", "", "frame ▶");
    const speed = el("select"), range = el("input"), label = el("span", "count");
    speed.setAttribute("aria-label", "speed");
    for (const rate of [0.25, 0.5, 1, 2]) speed.append(new Option(`${rate}×`, rate, rate === 1, rate === 1));
    Object.assign(range, { type: "range", min: 0, max: Math.max(card.frames - 1, 0), value: 0 });
    range.setAttribute("aria-label", "frame");
    const alive = () => videos.filter((v) => v.isConnected && !v.error);
    let playing = false, position = 0, last = 0;
    // One clock rules all videos: while they play it only corrects drift, a step sets them exactly.
    function show(frame, exact) {
      position = Math.max(0, Math.min(card.frames - 1e-6, frame));
      const whole = Math.floor(position), seconds = (whole + 0.5) / card.fps;
      for (const video of alive()) {
        if (exact || Math.abs(video.currentTime - position / card.fps) > 2 / card.fps) video.currentTime = exact ? seconds : position / card.fps;
      }
      range.value = whole;
      label.textContent = `frame ${whole + 1} / ${card.frames}`;
      strip.moveTo(position / Math.max(card.frames, 1));
    }
    function stop() {
      playing = false;
      play.textContent = "Play";
      for (const video of alive()) video.pause();
    }
    function tick(now) {
      if (!playing || !row.isConnected) return;
      const lead = alive().find((v) => v.readyState > 1);
      position = lead ? lead.currentTime * card.fps : position + (now - last) * 0.001 * card.fps * Number(speed.value);
      last = now;
      if (position >= card.frames - 1 || (lead && lead.ended)) {
        show(0, true);
        for (const video of alive()) video.play().catch(() => {});
      } else show(position, false);
      requestAnimationFrame(tick);
    }
    play.addEventListener("click", () => {
      if (playing) return stop();
      playing = true;
      play.textContent = "Pause";
      last = performance.now();
      for (const video of alive()) { video.playbackRate = Number(speed.value); video.play().catch(() => {}); }
      requestAnimationFrame(tick);
    });
    speed.addEventListener("change", () => { for (const video of alive()) video.playbackRate = Number(speed.value); });
    back.addEventListener("click", () => { stop(); show(Math.floor(position) - 1, true); });
    next.addEventListener("click", () => { stop(); show(Math.floor(position) + 1, true); });
    range.addEventListener("input", () => { stop(); show(Number(range.value), true); });
    row.append(play, back, next, speed, range, label);
    show(0, true);
    return row;
  }

  // Strings are stored once, empty fields not at all: a card is made whole when it is drawn.
  const pairs = (flat, words) => Array.from({ length: (flat ?? []).length / 2 }, (_, i) => [words[flat[2 * i]], words[flat[2 * i + 1]]]);
  function whole(card, words) {
    const videos = card.videos.map((item) => ({ ...item, href: item.based ? card.base + item.href : item.href, details: pairs(item.details, words) }));
    const files = Array.from({ length: card.files.length / 2 }, (_, i) => [words[card.files[2 * i]], card.files[2 * i + 1]]);
    return { ...card, videos, files, prompt: words[card.prompt], facts: pairs(card.facts, words), frames: card.frames ?? 0, actions: card.actions ?? "" };
  }

  // What the judge said: a row per fact, a column per candidate.
  function detailTable(items) {
    if (!items.length) return null;
    const names = [...new Set(items.flatMap((item) => item.details.map(([name]) => name)))];
    const box = el("div", "table"), table = el("table"), head = el("tr");
    head.append(el("th", "", "judge's details"), ...items.map((item) => el("th", "num", item.label)));
    table.append(head);
    for (const name of names) {
      const row = el("tr");
      row.append(el("td", "", name), ...items.map((item) => el("td", "num", (item.details.find(([key]) => key === name) ?? ["", "–"])[1])));
      table.append(row);
    }
    box.append(table);
    return box;
  }

  function drawCard(packed, words) {
    const card = whole(packed, words);
    const node = el("article", "vcard");
    node.title = card.source;
    const head = el("div", "head");
    const name = el("h4", "", card.title);
    const meta = [card.mechanics_class, card.batch === null ? "" : `batch ${card.batch}`, card.note].filter(Boolean).join(" · ");
    head.append(name, el("span", "meta", meta));
    node.append(head);
    const row = el("div", card.pixelated ? "videos" : "videos large"), videos = [];
    if (card.first_frame) {
      const box = el("div", "vid"), frame = el("div", "box"), image = el("img", card.pixelated ? "pixelated" : "");
      Object.assign(image, { src: card.first_frame, alt: "first frame", loading: "lazy" });
      frame.append(image);
      const caption = el("div", "cap");
      caption.append(el("span", "role", "first frame"));
      box.append(frame, caption);
      row.append(box);
    }
    for (const item of card.videos) {
      const [box, video] = videoBox(card, item);
      row.append(box);
      if (video) videos.push(video);
    }
    const strip = timeline(card);
    node.append(row);
    if (videos.length) node.append(controls(card, videos, strip));
    node.append(strip);
    const more = el("details"), list = el("dl");
    more.append(el("summary", "", "Prompt, details and source"));
    const facts = [["prompt", card.prompt], ...card.facts, ["source", card.source]];
    for (const [key, value] of facts) list.append(el("dt", "", key), el("dd", "", value));
    more.append(list);
    const details = detailTable(card.videos.filter((item) => item.details.length));
    if (details) more.append(details);
    node.append(more);
    return node;
  }

  const ranges = { all: () => true, low: (b) => b !== null && b < 50, high: (b) => b !== null && b >= 50, none: (b) => b === null };
  const best = (card) => card.videos.reduce((top, v) => (v.score === null ? top : Math.max(top ?? v.score, v.score)), null);
  const spread = (card) => {
    const values = card.videos.map((v) => v.score).filter((v) => v !== null);
    return values.length ? Math.max(...values) - Math.min(...values) : -1;
  };
  const inBatches = (batch, from, to) => !(batch < parseInt(from)) && !(batch > parseInt(to)); // an empty field limits nothing
  const alarmed = (names, wanted) => wanted === "all" || (wanted === "any" ? names.length > 0 : wanted === "none" ? !names.length : names.includes(wanted));
  const orders = { given: null, spread: (a, b) => spread(b) - spread(a), best: (a, b) => (best(b) ?? -1) - (best(a) ?? -1), worst: (a, b) => (best(a) ?? 101) - (best(b) ?? 101) };

  function gallery(root) {
    const { cards, words, page_size: size } = read(root.dataset.json);
    const list = root.querySelector(".cards"), count = root.querySelector(".shown");
    const choices = Object.fromEntries([...root.querySelectorAll("[data-filter]")].map((s) => [s.dataset.filter, s]));
    const [previous, following] = root.querySelectorAll(".pager button");
    let page = 0;
    function draw() {
      const value = (name) => (choices[name] ? choices[name].value : "all");
      let chosen = cards.filter((card) =>
        (value("class") === "all" || card.mechanics_class === value("class")) &&
        ranges[value("score")](best(card)) &&
        inBatches(card.batch, value("from"), value("to")) &&
        alarmed(card.alarms, value("alarm")) &&
        (value("where") === "all" || card.videos.some((v) => v.media)));
      const order = orders[choices.order ? choices.order.value : "given"];
      if (order) chosen = [...chosen].sort(order);
      const pages = Math.max(1, Math.ceil(chosen.length / size));
      page = Math.min(page, pages - 1);
      list.replaceChildren(...chosen.slice(page * size, (page + 1) * size).map((card) => drawCard(card, words)));
      if (!chosen.length) list.append(el("p", "note", "No group matches these filters."));
      const from = chosen.length ? page * size + 1 : 0;
      count.textContent = `${from} to ${Math.min(chosen.length, (page + 1) * size)} of ${chosen.length}`;
      previous.disabled = page === 0;
      following.disabled = page >= pages - 1;
      root.querySelector(".pager").hidden = pages === 1 && cards.length <= size;
    }
    for (const select of Object.values(choices)) select.addEventListener("change", () => { page = 0; draw(); });
    previous.addEventListener("click", () => { page -= 1; draw(); root.scrollIntoView(); });
    following.addEventListener("click", () => { page += 1; draw(); root.scrollIntoView(); });
    draw();
  }

  // The first gallery is drawn at once, the others when they come near the window.
  const watcher = new IntersectionObserver((entries) => {
    for (const entry of entries) if (entry.isIntersecting) { watcher.unobserve(entry.target); gallery(entry.target); }
  }, { rootMargin: "600px" });
  const [first, ...others] = document.querySelectorAll(".gallery");
  if (first) gallery(first);
  for (const root of others) watcher.observe(root);
})();
