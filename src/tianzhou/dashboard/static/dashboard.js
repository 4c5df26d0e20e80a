// What pages do by themselves: themes, live parts, charts, keys. Everything else works without it.
"use strict";
(() => {
  const root = document.documentElement;
  const kept = localStorage.getItem("theme");
  if (kept) root.dataset.theme = kept;

  const LIVE_MS = 2000;
  let isPaused = false;
  let pointer = null; // where the mouse is over a chart

  // Times, in the reader's own zone

  const two = (n) => String(n).padStart(2, "0");
  function local(ms) {
    const d = new Date(ms);
    const day = `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}`;
    return `${day} ${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
  }
  function brief(ms) {
    const [day, clock] = local(ms).split(" ");
    return day === local(Date.now()).split(" ")[0] ? clock : `${day} ${clock}`;
  }
  function exact(ms) {
    const d = new Date(ms);
    const east = -d.getTimezoneOffset();
    const zone = `${east < 0 ? "-" : "+"}${two(Math.floor(Math.abs(east) / 60))}:${two(Math.abs(east) % 60)}`;
    return `${local(ms)}.${String(d.getMilliseconds()).padStart(3, "0")} ${zone}`;
  }
  function times(part) {
    for (const one of part.querySelectorAll("time[data-ms]:not([data-ago])")) {
      const ms = Number(one.dataset.ms);
      one.textContent = "exact" in one.dataset ? exact(ms) : local(ms);
    }
  }

  // Charts

  const SVG = "http://www.w3.org/2000/svg";
  function draw(parent, kind, attributes, text) {
    const made = document.createElementNS(SVG, kind);
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    if (text !== undefined) made.textContent = text;
    parent.append(made);
    return made;
  }
  function ceiling(value) {
    if (value <= 4) return 4;
    const power = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 4, 5, 8, 10].map((n) => n * power).find((n) => n >= value);
  }
  const short = (n) => (n >= 1e6 ? `${+(n / 1e6).toFixed(1)}M` : n >= 1e4 ? `${+(n / 1e3).toFixed(1)}k` : n >= 100 ? Math.round(n).toLocaleString("en") : `${+n.toFixed(1)}`);

  function frame(box, top, head = 8) {
    const width = Math.max(box.clientWidth, 200), height = box.clientHeight;
    const svg = draw(box, "svg", { viewBox: `0 0 ${width} ${height}`, role: "img" });
    const area = { left: 40, right: width - 4, top: head, bottom: height - 20 };
    for (let part = 0; part <= 2; part++) {
      const y = area.bottom - ((area.bottom - area.top) * part) / 2;
      draw(svg, "line", { class: "grid", x1: area.left, x2: area.right, y1: y, y2: y });
      draw(svg, "text", { class: "axis", x: area.left - 6, y: y + 4, "text-anchor": "end" }, short((top * part) / 2));
    }
    return { svg, area };
  }

  function lines(box) {
    const series = JSON.parse(box.dataset.series), step = Number(box.dataset.step);
    const count = 600 / step;
    const top = ceiling(Math.max(1, ...series.flatMap((one) => one.points)));
    box.replaceChildren();
    const { svg, area } = frame(box, top, 26); // room for what the lines are
    const x = (rank, length) => area.right - ((length - 1 - rank) * (area.right - area.left)) / (count - 1);
    const y = (value) => area.bottom - (value / top) * (area.bottom - area.top);
    series.forEach((one, rank) => {
      const points = one.points.slice(-count);
      const path = points.map((value, at) => `${x(at, points.length).toFixed(1)},${y(value).toFixed(1)}`);
      if (path.length > 1) {
        const first = x(0, points.length).toFixed(1);
        draw(svg, "polygon", { class: `area${rank}`, points: `${first},${area.bottom} ${path.join(" ")} ${area.right},${area.bottom}` });
        draw(svg, "polyline", { class: `line${rank} s${rank}`, points: path.join(" ") });
      }
      const last = points.length ? points[points.length - 1] : 0;
      draw(svg, "rect", { class: `key${rank}`, x: area.left + 8 + rank * 110, y: 4, width: 10, height: 3 });
      draw(svg, "text", { class: "axis", x: area.left + 23 + rank * 110, y: 10 }, `${one.name} ${short(last)}/s`);
    });
    for (const [text, at, anchor] of [["10 min ago", area.left, "start"], ["5 min", (area.left + area.right) / 2, "middle"], ["now", area.right, "end"]]) {
      draw(svg, "text", { class: "axis", x: at, y: area.bottom + 15, "text-anchor": anchor }, text);
    }
    if (pointer && pointer.id === box.id) tip(svg, area, series, step, x, count);
  }
  function tip(svg, area, series, step, x, count) {
    const at = Math.min(Math.max(pointer.x, area.left), area.right);
    const back = Math.round(((area.right - at) * (count - 1)) / (area.right - area.left));
    const place = area.right - (back * (area.right - area.left)) / (count - 1);
    draw(svg, "line", { class: "cross", x1: place, x2: place, y1: area.top, y2: area.bottom });
    const told = series.map((one) => `${one.name} ${short(one.points[one.points.length - 1 - back] ?? 0)}`).join("  ");
    const text = `${back * step} s ago  ${told}`;
    const side = place > (area.left + area.right) / 2 ? -1 : 1;
    draw(svg, "rect", { class: "tipback", x: side < 0 ? place - 178 : place + 8, y: area.top + 8, width: 170, height: 22, rx: 4 });
    draw(svg, "text", { class: "tip", x: side < 0 ? place - 170 : place + 16, y: area.top + 23 }, text);
  }

  function bars(box) {
    const values = JSON.parse(box.dataset.bars).slice(-24);
    const top = ceiling(Math.max(1, ...values));
    box.replaceChildren();
    const { svg, area } = frame(box, top);
    const width = (area.right - area.left) / 24;
    values.forEach((value, rank) => {
      const height = (value / top) * (area.bottom - area.top);
      const left = area.right - (values.length - rank) * width;
      const one = draw(svg, "rect", { class: "hour", x: left + 1, width: Math.max(width - 2, 1), y: area.bottom - height, height, rx: 1 });
      draw(one, "title", {}, `${value.toLocaleString("en")} messages`);
    });
    draw(svg, "text", { class: "axis", x: area.left, y: area.bottom + 15 }, "24 h ago");
    draw(svg, "text", { class: "axis", x: area.right, y: area.bottom + 15, "text-anchor": "end" }, "this hour");
  }
  // How single figures went since the page was opened: does a lag grow, or shrink?

  const SPARKS = 90;
  const went = new Map();
  function sparks() {
    for (const box of document.querySelectorAll("[data-spark]")) {
      const values = [...(went.get(box.dataset.spark) ?? []), Number(box.dataset.value)].slice(-SPARKS);
      went.set(box.dataset.spark, values);
      const top = Math.max(1, ...values);
      const points = values.map((value, rank) => `${SPARKS - values.length + rank + 1},${(19 - (value / top) * 18).toFixed(1)}`);
      box.replaceChildren();
      draw(box, "polyline", { points: points.join(" ") });
      draw(box, "title", {}, `${short(values[0])} when this page was opened, at most ${short(Math.max(...values))}`);
    }
  }
  function charts() {
    document.querySelectorAll("[data-series]").forEach(lines);
    document.querySelectorAll("[data-bars]").forEach(bars);
  }

  // Live parts: the same page again, and of it what has changed. Nobody looks, nobody asks.

  let isAsking = false; // a cluster that answers slowly is not asked twice at once
  let freshMs = Date.now(); // when the page was last as the cluster is
  const shown = new Map(); // parts by id: what is the same is left alone, or it is read aloud again
  async function refresh() {
    if (isPaused || isAsking || document.hidden || isBusy()) return;
    let text;
    isAsking = true;
    try {
      const answer = await fetch(location.href.split("#")[0], { redirect: "manual", headers: { "X-Live": "1" } });
      if (answer.type === "opaqueredirect") location.reload(); // the session is over
      if (!answer.ok) throw new Error(String(answer.status));
      text = await answer.text();
    } catch {
      state(true);
      return;
    } finally {
      isAsking = false;
    }
    freshMs = Date.now();
    state(false);
    if (isPaused || isBusy()) return;
    const fresh = new DOMParser().parseFromString(text, "text/html");
    let isChanged = false;
    for (const old of document.querySelectorAll("[data-live]")) {
      const now = fresh.getElementById(old.id);
      if (!now) continue;
      times(now);
      if ("series" in now.dataset || "bars" in now.dataset) {
        Object.assign(old.dataset, now.dataset);
        isChanged = true;
      } else if (shown.get(old.id) !== now.innerHTML) {
        shown.set(old.id, now.innerHTML);
        const chosen = [...old.querySelectorAll("tbody tr")].findIndex((row) => row.classList.contains("chosen"));
        old.replaceChildren(...now.childNodes);
        if (chosen >= 0) old.querySelectorAll("tbody tr")[chosen]?.classList.add("chosen");
      }
    }
    if (isChanged) charts();
    sparks();
    document.body.dataset.refreshed = String(Number(document.body.dataset.refreshed || 0) + 1);
  }
  function state(isLost) {
    document.body.classList.toggle("lost", isLost);
    const told = isPaused ? "paused" : isLost ? `nothing new since ${brief(freshMs)}` : "live";
    const said = document.querySelector("#live span");
    if (said.textContent !== told) said.textContent = told;
  }
  function isBusy() {
    // Whoever selects text or has a link of a table in focus must not lose it.
    const focused = document.activeElement;
    return !getSelection().isCollapsed || (focused && focused.closest("[data-live]"));
  }

  // Keys

  function rows() {
    return [...document.querySelectorAll("tr[data-href]")];
  }
  function choose(step) {
    const all = rows();
    if (!all.length) return;
    const at = all.findIndex((row) => row.classList.contains("chosen"));
    all[at]?.classList.remove("chosen");
    const next = all[Math.min(Math.max(at + step, 0), all.length - 1)];
    next.classList.add("chosen");
    next.scrollIntoView({ block: "nearest" });
  }
  let isGoing = false;
  function key(event) {
    const target = event.target;
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (target.closest("input, select, textarea, dialog")) {
      if (event.key === "Escape") target.blur();
      return;
    }
    if (isGoing) {
      isGoing = false;
      const link = document.querySelector(`.menu a[data-key="${CSS.escape(event.key)}"]`);
      if (link) location.assign(link.href);
      return;
    }
    if (event.key === "g") isGoing = true;
    else if (event.key === "j") choose(1);
    else if (event.key === "k") choose(-1);
    else if (event.key === "Enter" && document.querySelector("tr.chosen") && target === document.body) location.assign(document.querySelector("tr.chosen").dataset.href);
    else if (event.key === "/") document.querySelector('input[type="search"], input[name="topic"]')?.focus();
    else if (event.key === "?") document.getElementById("keys").showModal();
    else if (event.key === ".") document.getElementById("live").click();
    else return;
    event.preventDefault();
  }

  // Forms: only the fields of the kind that is chosen

  function kinds() {
    for (const part of document.querySelectorAll(".by[data-by]")) {
      const chosen = document.querySelector(`input[name="${part.dataset.of || "by"}"]:checked`);
      part.hidden = !chosen || !part.dataset.by.split(" ").includes(chosen.value);
      for (const one of part.querySelectorAll("input")) one.disabled = part.hidden;
    }
  }
  function zoned(form) {
    // A moment goes to the server as milliseconds: it may live in another zone.
    for (const one of form.querySelectorAll('input[type="datetime-local"]')) {
      if (one.value && !one.disabled) {
        const ms = new Date(one.value).getTime();
        one.type = "text";
        one.value = String(ms);
      }
    }
  }
  function moments() {
    for (const one of document.querySelectorAll("input[data-ms]")) {
      const d = new Date(Number(one.dataset.ms));
      one.value = `${d.getFullYear()}-${two(d.getMonth() + 1)}-${two(d.getDate())}T${two(d.getHours())}:${two(d.getMinutes())}:${two(d.getSeconds())}`;
    }
  }

  document.addEventListener("DOMContentLoaded", () => {
    times(document);
    for (const part of document.querySelectorAll("[data-live]")) shown.set(part.id, part.innerHTML);
    charts();
    sparks();
    kinds();
    moments();
    document.querySelector(".menu a[aria-current]")?.scrollIntoView({ block: "nearest", inline: "center" });
    document.addEventListener("keydown", key);
    document.addEventListener("change", kinds);
    document.addEventListener("submit", (event) => zoned(event.target));
    addEventListener("resize", charts);
    document.getElementById("theme").addEventListener("click", () => {
      const dark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
      root.dataset.theme = dark ? "light" : "dark";
      localStorage.setItem("theme", root.dataset.theme);
    });
    const all = document.getElementById("all");
    if (all) all.addEventListener("change", () => document.querySelectorAll('input[name="letter"]').forEach((one) => { one.checked = all.checked; }));
    document.addEventListener("click", (event) => {
      const row = event.target.closest("tr[data-href]");
      if (row && !event.target.closest("a, input, button, label") && getSelection().isCollapsed) location.assign(row.dataset.href);
    });
    for (const box of document.querySelectorAll("[data-series]")) {
      box.addEventListener("mousemove", (event) => { pointer = { id: box.id, x: event.clientX - box.getBoundingClientRect().left }; lines(box); });
      box.addEventListener("mouseleave", () => { pointer = null; lines(box); });
    }
    const live = document.getElementById("live");
    if (document.querySelector("[data-live]")) {
      live.hidden = false;
      live.addEventListener("click", () => {
        isPaused = !isPaused;
        document.body.classList.toggle("paused", isPaused);
        state(false);
      });
      setInterval(refresh, LIVE_MS);
    }
  });
})();
