"use strict";
let chartData, flameData, live, peak, marks, segments; // of the device that is shown
let redraw;
const main = document.querySelector("main");
const devices = [main.cloneNode(true), ...[...document.querySelectorAll("template.device")].map(t => t.content)];

// show shows a device.
function show(i) {
  ({timeline: chartData, flame: flameData, live, peak, marks, segments} = JSON.parse(document.querySelectorAll("script[type='application/json']")[i].textContent));
  main.replaceChildren(...devices[i].cloneNode(true).childNodes);
  draw();
}

// draw draws what the script draws of the device.
function draw() {
  const byID = id => document.getElementById(id), all = selector => [...document.querySelectorAll(selector)];

  // choose makes buttons with a data attribute a choice of one.
  function choose(name, pick) {
    const buttons = all(`[data-${name}]`);
    const set = value => {
      for (const b of buttons) b.setAttribute("aria-pressed", b.dataset[name] === value);
      pick(value);
    };
    for (const b of buttons) b.onclick = () => set(b.dataset[name]);
    return set;
  }

  // cell adds a cell; on a narrow page it tells the name of its column.
  function cell(tr, name, type, ...content) {
    const td = element("td", type);
    td.dataset.name = name;
    td.append(...content);
    tr.append(td);
    return td;
  }
  const places = row => {
    const div = element("div");
    for (const site of row.sites) div.append(element("div", "", site));
    if (row.more) div.append(element("div", "quiet", `and ${row.more} more`));
    return div;
  };
  // memory tells where a buffer is that is not in plain device memory.
  const memory = row => row.memory ? ", " + row.memory : "";
  function dot(kind) {
    const i = element("i", "dot");
    i.style.background = `var(${kindColour(kind)})`;
    return i;
  }

  // The buffers of now or of the peak: a filter, and two orders.
  const tables = {live, peak}, body = document.querySelector("#live-table tbody");
  let shown = "live", key = "bytes";
  function showTable() {
    const table = tables[shown], whole = flameData.bytes[shown === "live" ? 0 : 1] || 1;
    byID("table-title").textContent = shown === "live" ? byID("table-title").dataset.live : "What was live at the peak";
    body.replaceChildren(...table.rows.toSorted((a, b) => b[key] - a[key]).map(row => {
      const tr = element("tr"), share = element("span", "share");
      share.style.width = 100 * row.bytes / whole + "%";
      cell(tr, "Memory", "num size", share, element("b", "", size(row.bytes)));
      cell(tr, "Count", "num", row.count);
      const kind = element("span");
      kind.append(dot(row.kind || "unknown"), row.kind || "unknown");
      cell(tr, "Kind", "", kind);
      cell(tr, "Shape", "code", row.shape || "unknown");
      cell(tr, "Type", "", (row.dtype || "unknown") + memory(row));
      cell(tr, "Allocated at", "code", places(row));
      return tr;
    }));
    if (!table.rows.length) {
      const tr = element("tr");
      cell(tr, "", "quiet", shown === "live" ? "No live buffers." : "Nothing is known of it.").colSpan = 6;
      body.append(tr);
    }
    byID("table-more").textContent = table.more ? `and ${table.more} smaller groups: ${buffers(table.rest.count)}, ${size(table.rest.bytes)}` : "";
    filter();
  }
  function filter() {
    const words = byID("filter").value.toLowerCase().split(/\s+/);
    for (const tr of body.rows) tr.hidden = !words.every(w => tr.textContent.toLowerCase().includes(w));
  }
  byID("filter").oninput = filter;
  const pickTable = choose("table", value => { shown = value; showTable(); });
  for (const b of all("[data-key]")) b.onclick = () => {
    key = b.dataset.key;
    for (const o of all("[data-key]")) o.parentNode.removeAttribute("aria-sort");
    b.parentNode.setAttribute("aria-sort", "descending");
    showTable();
  };
  function showPeak() {
    pickTable("peak");
    byID("buffers").scrollIntoView({block: "nearest"});
  }

  // Marks: one table at a time.
  const change = n => n > 0 ? "grew by " + size(n) : n < 0 ? "fell by " + size(-n) : "no change";
  const tone = n => n > 0 ? "grew" : n < 0 ? "fell" : "";
  function showMark(seq, scroll) {
    const m = marks.find(m => m.seq === +seq), article = byID("mark");
    if (!m) return;
    for (const b of all("[data-mark]")) b.setAttribute("aria-pressed", b.dataset.mark === String(m.seq));
    const title = element("h3", "", `Mark ${m.seq} `), sum = element("p", tone(m.change), `Live ${size(m.live)} · reserved ${size(m.reserved)} · `);
    title.append(element("span", "quiet", `${m.time} · ${m.site}`));
    sum.append(element("b", "", change(m.change)));
    const table = element("table", "cells"), head = element("tr"), rows = element("tbody");
    for (const [name, type] of [["", ""], ["Count", "num"], ["Memory", "num"], ["Kind", ""], ["Shape", ""], ["Type", ""], ["Allocated at", ""]]) head.append(element("th", type, name));
    for (const row of m.rows) {
      const tr = element("tr", row.count < 0 || row.bytes < 0 ? "fell" : "grew");
      cell(tr, "", "sign", tr.className === "fell" ? "−" : "+");
      cell(tr, "Count", "num", Math.abs(row.count));
      cell(tr, "Memory", "num", element("b", "", size(Math.abs(row.bytes))));
      const kind = element("span");
      kind.append(dot(row.kind), row.kind);
      cell(tr, "Kind", "", kind);
      cell(tr, "Shape", "code", row.shape);
      cell(tr, "Type", "", row.dtype + memory(row));
      cell(tr, "Allocated at", "code", places(row));
      rows.append(tr);
    }
    const thead = element("thead"), scroller = element("div", "scroll");
    thead.append(head);
    table.append(thead, rows);
    scroller.append(table);
    article.replaceChildren(title, sum, m.rows.length ? scroller : element("p", "quiet", m.changes ? "" : "Nothing came or went."));
    if (m.changes > m.rows.length) article.append(element("p", "quiet hint", `and ${m.changes - m.rows.length} smaller changes`));
    article.dataset.seq = m.seq;
    if (scroll) article.scrollIntoView({block: "nearest"});
  }
  if (marks.length) {
    byID("chips").append(...marks.toReversed().map(m => {
      const b = element("button", "", m.seq + " ");
      b.append(element("span", "quiet", change(m.change)));
      b.dataset.mark = m.seq;
      b.onclick = () => showMark(m.seq, true);
      return b;
    }));
    showMark(marks.at(-1).seq, false);
  }

  // The chart, with lines for marks, refusals and the peak.
  let chart, layers = "kinds";
  function verticals(u) {
    const ctx = u.ctx, {left, top, width, height} = u.bbox;
    ctx.save();
    ctx.lineWidth = devicePixelRatio;
    const line = (m, stroke, dash, label, free) => {
      const x = Math.round(u.valToPos(m.seconds, "x", true));
      if (x < left || x > left + width) return free;
      ctx.strokeStyle = ctx.fillStyle = stroke;
      ctx.setLineDash(dash);
      ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, top + (crowded && m.mark ? 14 * devicePixelRatio : height)); ctx.stroke();
      const room = ctx.measureText(label).width + 6 * devicePixelRatio;
      if (!label || x < free) return free; // labels do not run together
      const before = x + room > left + width;
      if (before && x - room < free) return free;
      ctx.fillText(label, before ? x - room + 3 * devicePixelRatio : x + 3 * devicePixelRatio, top + 11 * devicePixelRatio);
      return x + room;
    };
    let free = left;
    const {min, max} = u.scales.x, crowded = chartData.marks.filter(m => m.seconds >= min && m.seconds <= max).length > 60;
    for (const m of chartData.marks) free = line(m, colour("--quiet"), [3, 4], m.mark ? String(m.mark) : "", free);
    for (const m of chartData.ooms) line(m, colour("--oom"), [], "", left);
    if (chartData.peak) {
      ctx.font = "bold " + ctx.font;
      const y = u.valToPos(chartData.peak.bytes, "y", true), x = u.valToPos(chartData.peak.seconds, "x", true);
      if (x >= left && x <= left + width) {
        ctx.fillStyle = ctx.strokeStyle = colour("--text");
        ctx.beginPath(); ctx.arc(x, y, 4 * devicePixelRatio, 0, 7); ctx.fill();
        const label = "peak " + size(chartData.peak.bytes), room = ctx.measureText(label).width;
        ctx.fillText(label, x + room + 12 > left + width ? x - room - 8 * devicePixelRatio : x + 8 * devicePixelRatio, Math.max(y - 4, top + 24 * devicePixelRatio));
      }
    }
    ctx.restore();
  }
  function clicked(u) {
    let down = 0;
    u.over.addEventListener("mousedown", e => { down = e.clientX; });
    u.over.addEventListener("click", e => {
      if (Math.abs(e.clientX - down) > 3) return; // it was a drag
      let best = null, nearest = 10;
      for (const m of [...chartData.marks.filter(m => marks.some(t => t.seq === m.mark)), ...(chartData.peak ? [chartData.peak] : [])]) {
        const d = Math.abs(u.valToPos(m.seconds, "x") - e.offsetX);
        if (d <= nearest) { nearest = d; best = m; }
      }
      if (!best) return;
      if (best === chartData.peak) showPeak(); else showMark(best.mark, true);
    });
  }
  function drawChart() {
    chart.show({
      seconds: chartData.seconds,
      layers: chartData[layers].map((l, i) => ({...l, colour: layers === "kinds" || l.name === "other lines" ? kindColour(l.name) : "--layer-" + i})),
      lines: [
        {name: "allocated", colour: "--allocated", bytes: chartData.allocated},
        {name: "reserved", colour: "--reserved", bytes: chartData.reserved},
        {name: "driver used", colour: "--driver", dash: [5, 4], hidden: true, bytes: chartData.driver},
      ],
    });
  }
  if (chartData) {
    chart = new MemoryChart(byID("chart"), {seconds: t => +t.toPrecision(6) + " s", hooks: {draw: [verticals], ready: [clicked]}});
    // A source that does not know kinds has one.
    choose("layers", value => { layers = value; drawChart(); })(chartData.kinds.length > 1 ? "kinds" : "sites");
    if (byID("show-peak")) byID("show-peak").onclick = showPeak;
  }

  // The flame graph: frames as boxes, those called below those that call.
  let measure = 0, focus = [flameData], lines = [];
  function hue(text) {
    let h = 0;
    for (const c of text) h = (h * 31 + c.charCodeAt(0)) >>> 0;
    return h % 70;
  }
  function flame() {
    const div = byID("flame"), width = div.clientWidth;
    lines = [];
    const box = (n, left, w, depth, parents) => {
      const b = element("button");
      b.style.left = left + "px"; b.style.width = w + "px"; b.style.top = depth * 21 + "px";
      const above = depth < focus.length - 1;
      b.style.background = depth === 0 ? "#cbd5e1" : `hsl(${18 + hue(n.name)} ${above ? 30 : 85}% 68%)`;
      const part = 100 * n.bytes[measure] / (flameData.bytes[measure] || 1);
      b.title = `${n.place || n.name}\n${size(n.bytes[measure])} · ${buffers(n.count[measure])} · ${part.toFixed(1)} %`;
      b.setAttribute("aria-label", b.title);
      b.dataset.name = n.name;
      b.tabIndex = -1;
      if (w > 30) b.textContent = (n.place && w > 220 ? n.place : n.name) + (w > 140 ? "  " + size(n.bytes[measure]) : "");
      b.onclick = () => look([...parents, n]);
      (lines[depth] ??= []).push({b, left, right: left + w});
    };
    const below = (n, left, w, depth, parents) => {
      box(n, left, w, depth, parents);
      for (const c of n.calls || []) {
        const cw = n.bytes[measure] ? w * c.bytes[measure] / n.bytes[measure] : 0;
        if (cw >= 1) below(c, left, cw, depth + 1, [...parents, n]);
        left += cw;
      }
    };
    focus.slice(0, -1).forEach((n, i) => box(n, 0, width, i, focus.slice(0, i)));
    below(focus.at(-1), 0, width, focus.length - 1, focus.slice(0, -1));
    div.replaceChildren(...lines.flat().map(place => place.b));
    div.style.height = lines.length * 21 + "px";
    lines[focus.length - 1][0].b.tabIndex = 0;
  }
  function look(at) {
    const had = byID("flame").contains(document.activeElement);
    focus = at;
    flame();
    if (had) lines[focus.length - 1][0].b.focus();
  }
  byID("flame").onkeydown = e => {
    const depth = lines.findIndex(line => line.some(p => p.b === document.activeElement));
    if (depth < 0) return;
    const i = lines[depth].findIndex(p => p.b === document.activeElement), here = lines[depth][i];
    const to = {
      ArrowLeft: () => lines[depth][i - 1], ArrowRight: () => lines[depth][i + 1],
      ArrowUp: () => lines[depth - 1]?.find(p => p.left <= here.left + 0.5 && p.right >= here.right - 0.5),
      ArrowDown: () => lines[depth + 1]?.find(p => p.left >= here.left - 0.5 && p.right <= here.right + 0.5),
      Escape: () => { if (focus.length > 1) look(focus.slice(0, -1)); },
    }[e.key];
    if (!to) return;
    e.preventDefault();
    to()?.b.focus();
  };
  choose("measure", value => { measure = +value; focus = [flameData]; flame(); });
  flame();
  showTable();

  // The segments: a bar each, with what keeps it.
  for (const s of segments?.rows ?? []) {
    const tr = element("tr"), bar = element("div", "segment");
    let at = 0;
    const stops = s.runs.map(run => {
      const from = at;
      at += run.part;
      const use = run.use ? `var(${kindColour(run.use)})` : "transparent";
      return `${use} ${100 * from / 120}% ${100 * at / 120}%`;
    });
    bar.style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
    bar.title = `${size(s.used)} of ${size(s.size)} in use`;
    cell(tr, "Size", "num", element("b", "", size(s.size)));
    cell(tr, "Unused", "num", size(s.size - s.used));
    cell(tr, "Blocks", "", bar);
    const kept = cell(tr, "Kept by", "code pins"), list = element("div");
    const lines = s.used === 0 ? ["nothing: clearing the cache gives it back"] : s.used === s.size ? ["all of it is in use"] : s.pins;
    for (const line of lines) list.append(element("div", "", line));
    if (s.morePins) list.append(element("div", "quiet", `and ${s.morePins} more lines of code`));
    kept.append(list);
    document.querySelector("#segments tbody").append(tr);
  }
  if (segments?.more) byID("segments-more").textContent = `and ${segments.more} more segments of ${size(segments.moreSize)} together`;

  redraw = () => { chart?.draw(); flame(); };
}

show(0);
onChange(() => redraw());
const chooser = document.getElementById("device");
if (chooser) chooser.onchange = () => show(chooser.selectedIndex);
