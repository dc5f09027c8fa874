"use strict";
let chartData, flameData, page, marks; // of the device that is shown
let redraw;
const main = document.querySelector("main");
const devices = [main.cloneNode(true), ...[...document.querySelectorAll("template.device")].map(t => t.content)];

// show shows a device.
function show(i) {
  page = JSON.parse(document.querySelectorAll("script[type='application/json']")[i].textContent);
  ({timeline: chartData, flame: flameData, marks} = page);
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
    for (const line of row.call_sites) div.append(element("div", "", line));
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

  // The frames of the flame graph, those that call before what they call.
  const frames = [];
  (function number(n, by) {
    n.by = by;
    frames.push(n);
    for (const c of n.calls || []) number(c, n);
  })(flameData, null);

  // The moment that is shown: what all moments up to it changed.
  let at = page.moment;
  const groups = page.groups, moments = page.moments, now = () => moments[at];
  const seconds = m => m.at < 0 ? null : chartData?.seconds[m.at];
  const time = s => chartData?.untimed ? "event " + (moments.at(-1).event - chartData.seconds.at(-1) + Math.round(s)) : s && Math.abs(s) < 1 ? +(1000 * s).toPrecision(3) + " ms" : +s.toFixed(3) + " s";
  function nameOf(m) {
    if (m.names) return m.names.join(", ");
    return "event " + m.event;
  }
  let segments = new Map();
  function collect() {
    const sums = page.pairs.map(() => 0), known = new Map();
    for (const m of moments.slice(0, at + 1)) {
      for (let i = 0; i < m.changes.length; i += 3) {
        sums[2 * m.changes[i]] += m.changes[i + 1];
        sums[2 * m.changes[i] + 1] += m.changes[i + 2];
      }
      for (const s of m.segments?.changed ?? []) known.set(s.id, s);
      for (const id of m.segments?.gone ?? []) known.delete(id);
    }
    segments = known;
    for (const x of [...frames, ...groups]) x.count = x.bytes = 0;
    for (let i = 0; i < sums.length; i += 2) {
      for (const x of [frames[page.pairs[i]], groups[page.pairs[i + 1]]]) if (x) { x.count += sums[i]; x.bytes += sums[i + 1]; }
    }
    for (const n of frames.toReversed()) if (n.by) { n.by.count += n.count; n.by.bytes += n.bytes; }
  }

  // The live buffers: a filter, and two orders.
  const body = document.querySelector("#live-table tbody");
  const columns = all("#live-table th").map(th => th.textContent);
  let key = "bytes";
  function showTable() {
    const rows = groups.filter(g => g.count).toSorted((a, b) => b[key] - a[key]).slice(0, 300);
    let count = now().count, bytes = now().live;
    body.replaceChildren(...rows.map(row => {
      const tr = element("tr"), share = element("span", "share");
      if (!row.host) { count -= row.count; bytes -= row.bytes; }
      share.style.width = 100 * row.bytes / (now().live || 1) + "%";
      cell(tr, "Memory", "num size", share, element("b", "", size(row.bytes)));
      cell(tr, "Count", "num", row.count);
      if (columns.includes("Kind")) {
        const kind = element("span");
        kind.append(dot(row.kind || "unknown"), row.kind || "unknown");
        cell(tr, "Kind", "", kind);
      }
      if (columns.includes("Shape")) cell(tr, "Shape", "code", row.shape || "unknown");
      if (columns.includes("Type")) cell(tr, "Type", "", (row.dtype || "unknown") + memory(row));
      cell(tr, "Allocated at", "code", row.call_site);
      return tr;
    }));
    if (!rows.length) {
      const tr = element("tr");
      cell(tr, "", "quiet", "No live buffers.").colSpan = columns.length;
      body.append(tr);
    }
    byID("table-more").textContent = count > 0 ? `and ${buffers(count)} of smaller groups: ${size(bytes)}` : "";
    filter();
  }
  function filter() {
    const words = byID("filter").value.toLowerCase().split(/\s+/);
    for (const tr of body.rows) tr.hidden = !words.every(w => tr.textContent.toLowerCase().includes(w));
  }
  byID("filter").oninput = filter;
  for (const b of all("[data-key]")) b.onclick = () => {
    key = b.dataset.key;
    for (const o of all("[data-key]")) o.parentNode.removeAttribute("aria-sort");
    b.parentNode.setAttribute("aria-sort", "descending");
    showTable();
  };

  // The kinds, always in one order.
  function showKinds() {
    if (!byID("kinds")) return;
    const shares = page.kinds.map((kind, i) => ({kind, bytes: now().kinds[i], percent: 100 * now().kinds[i] / (now().live || 1)})).filter(k => k.bytes);
    byID("kinds").replaceChildren(...shares.map(k => {
      const span = element("span");
      span.style.flexGrow = k.percent;
      span.style.background = `var(${kindColour(k.kind)})`;
      span.title = `${k.kind}: ${size(k.bytes)}`;
      return span;
    }));
    byID("kinds-legend").replaceChildren(...shares.map(k => {
      const li = element("li"), i = element("i");
      i.style.background = `var(${kindColour(k.kind)})`;
      li.append(i, k.kind + " ", element("b", "", size(k.bytes)), " ", element("span", "quiet", k.percent.toFixed(1) + " %"));
      return li;
    }));
  }

  // Marks: one table at a time.
  const change = n => n > 0 ? "grew by " + size(n) : n < 0 ? "fell by " + size(-n) : "no change";
  const tone = n => n > 0 ? "grew" : n < 0 ? "fell" : "";
  function showMark(seq, scroll) {
    const m = marks.find(m => m.seq === +seq), article = byID("mark");
    if (!m) return;
    for (const b of all("[data-mark]")) b.setAttribute("aria-pressed", b.dataset.mark === String(m.seq));
    const title = element("h3", "", `Mark ${m.seq} `), sum = element("p", tone(m.change), `Live ${size(m.live)} · reserved ${size(m.reserved)} · `);
    title.append(element("span", "quiet", `${m.time} · ${m.call_site}`));
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
      b.onclick = () => {
        showMark(m.seq, true);
        const on = chartData?.marks.find(o => o.mark === m.seq);
        if (on) showMoment(nearest(on.seconds));
      };
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
    ctx.textAlign = "left"; ctx.textBaseline = "alphabetic"; // the axes leave others
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
    place(u);
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
  // The mark of the moment, which can be moved.
  const mark = element("div", "mark");
  function place(u) {
    const s = seconds(now());
    mark.hidden = s == null || s < u.scales.x.min || s > u.scales.x.max;
    if (!mark.hidden) mark.style.left = u.valToPos(s, "x") + "px";
  }
  // nearest returns the last of the moments that are nearest to a time.
  function nearest(s) {
    let best = at, least = Infinity;
    moments.forEach((m, i) => {
      const d = Math.abs((seconds(m) ?? Infinity) - s);
      if (d <= least) { least = d; best = i; }
    });
    return best;
  }
  function clicked(u) {
    let down = 0;
    u.over.append(mark);
    mark.onpointerdown = e => mark.setPointerCapture(e.pointerId);
    mark.onmousedown = e => e.stopPropagation(); // it would zoom
    mark.onpointermove = e => {
      if (mark.hasPointerCapture(e.pointerId)) showMoment(nearest(u.posToVal(e.clientX - u.over.getBoundingClientRect().left, "x")));
    };
    u.over.addEventListener("mousedown", e => { down = e.clientX; });
    u.over.addEventListener("click", e => {
      if (e.target === mark || Math.abs(e.clientX - down) > 3) return; // it was a drag
      let best = null, pixels = 10;
      for (const m of [...chartData.marks.filter(m => marks.some(t => t.seq === m.mark)), ...(chartData.peak ? [chartData.peak] : [])]) {
        const d = Math.abs(u.valToPos(m.seconds, "x") - e.offsetX);
        if (d <= pixels) { pixels = d; best = m; }
      }
      if (best?.mark) showMark(best.mark, false);
      showMoment(nearest(best ? best.seconds : u.posToVal(e.offsetX, "x")));
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
      ].filter(line => line.bytes.some(b => b != null)),
    });
  }
  if (chartData) {
    chart = new MemoryChart(byID("chart"), {seconds: time, hooks: {draw: [verticals], ready: [clicked]}});
    // A source that does not know kinds has one.
    choose("layers", value => { layers = value; drawChart(); })(page.kinds.length && chartData.kinds.length > 1 ? "kinds" : "lines");
  }

  // The flame graph: frames as boxes, those called below those that call.
  let measure = "now", focus = [flameData], lines = [];
  const bytesOf = n => measure === "now" ? n.bytes : n.ever[0], countOf = n => measure === "now" ? n.count : n.ever[1];
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
      const part = 100 * bytesOf(n) / (bytesOf(flameData) || 1);
      b.title = `${n.place || n.name}\n${size(bytesOf(n))} · ${buffers(countOf(n))} · ${part.toFixed(1)} %`;
      b.setAttribute("aria-label", b.title);
      b.dataset.name = n.name;
      b.tabIndex = -1;
      if (w > 30) b.textContent = (n.place && w > 220 ? n.place : n.name) + (w > 140 ? "  " + size(bytesOf(n)) : "");
      b.onclick = () => look([...parents, n]);
      (lines[depth] ??= []).push({b, left, right: left + w});
    };
    const below = (n, left, w, depth, parents) => {
      box(n, left, w, depth, parents);
      for (const c of n.calls || []) {
        const cw = bytesOf(n) ? w * bytesOf(c) / bytesOf(n) : 0;
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
  choose("measure", value => { measure = value; focus = [flameData]; showStacks(); });
  function showStacks() {
    byID("flame-at").textContent = measure === "now" ? ", at " + nameOf(now()) : "";
    flame();
  }

  // The segments: a bar each, with what keeps it.
  function useColour(use) {
    if (page.kinds.length || use === "freed, still used") return kindColour(use);
    const layer = chartData ? chartData.lines.findIndex(l => l.name === use) : -1;
    return layer < 0 ? "--tensor" : "--layer-" + layer;
  }
  function showSegments() {
    const table = document.querySelector("#segments tbody"), map = now().segments;
    if (!table) return;
    const rows = [...segments.values()].toSorted((a, b) => b.size - b.used - a.size + a.used || b.size - a.size);
    table.replaceChildren(...(map ? rows : []).map(s => {
      const tr = element("tr"), bar = element("div", "segment"), stops = [];
      for (let i = 0, from = 0; i < s.runs.length; i += 2) {
        const to = from + s.runs[i + 1], use = page.uses[s.runs[i]];
        stops.push(`${use ? `var(${useColour(use)})` : "transparent"} ${100 * from / 120}% ${100 * to / 120}%`);
        from = to;
      }
      bar.style.background = `linear-gradient(90deg, ${stops.join(", ")})`;
      bar.title = `${size(s.used)} of ${size(s.size)} in use`;
      cell(tr, "Size", "num", element("b", "", size(s.size)));
      cell(tr, "Inactive", "num", size(s.size - s.used));
      cell(tr, "Blocks", "", bar);
      const pinned = cell(tr, "Pinned by", "code pins"), list = element("div");
      const lines = s.used === 0 ? ["nothing: clearing the cache gives it back"] : s.used === s.size ? ["all of it is in use"] : s.pins;
      for (const line of lines) list.append(element("div", "", line));
      if (s.morePins) list.append(element("div", "quiet", `and ${s.morePins} more lines of code`));
      pinned.append(list);
      return tr;
    }));
    byID("segments-more").textContent = !map ? "The segments are not known at this moment." :
      map.more ? `and ${map.more} more segments of ${size(map.moreSize)} together` : rows.length ? "" : "There are none.";
  }

  // The values at the top. Some are only known at the moment that the page opens at.
  const values = all(".tile .value"), first = new Map(values.map(f => [f, [f.textContent, f.nextElementSibling.textContent]]));
  function showValues() {
    const m = now(), opened = at === page.moment;
    const later = {
      live: [size(m.live), buffers(m.count)],
      allocated: [m.allocated < 0 ? "unknown" : size(m.allocated), "after rounding"],
      reserved: [m.reserved < 0 ? "unknown" : size(m.reserved), m.reserved < 0 || m.allocated < 0 ? "" : size(Math.max(0, m.reserved - m.allocated)) + " not in use"],
    };
    for (const f of values) {
      const known = opened || f.id === "peak" ? first.get(f) : later[f.id];
      f.parentNode.hidden = !known;
      if (known) [f.textContent, f.nextElementSibling.textContent] = known;
    }
  }

  // showMoment shows a moment, everywhere.
  function showMoment(i) {
    at = i;
    collect();
    const m = now(), s = seconds(m);
    for (const e of all(".at")) e.textContent = ", at " + nameOf(m);
    if (byID("moment")) {
      byID("moment-name").textContent = nameOf(m);
      byID("moment-levels").textContent = (m.at < 0 ? "before the history · " : s == null ? "" : time(s) + " · ") + `${size(m.live)} live` + (m.reserved < 0 ? "" : ` · ${size(m.reserved)} reserved`);
      byID("moment").value = i;
      byID("moment").setAttribute("aria-valuetext", `${nameOf(m)}, ${size(m.live)} live`);
      for (const b of all("[data-moment]")) b.setAttribute("aria-pressed", +b.dataset.moment === i);
    }
    if (chart) {
      chart.rest = m.at;
      chart.label();
      place(chart.plot);
    }
    showValues();
    showKinds();
    showStacks();
    showTable();
    showSegments();
  }
  if (byID("moment")) {
    byID("moment").max = moments.length - 1;
    let wanted;
    byID("moment").oninput = e => {
      cancelAnimationFrame(wanted);
      wanted = requestAnimationFrame(() => showMoment(+e.target.value));
    };
    byID("named").append(...moments.flatMap((m, i) => (m.names ?? []).map(name => {
      const b = element("button", "", name);
      b.dataset.moment = i;
      b.onclick = () => showMoment(i);
      return b;
    })));
  }
  showMoment(at);

  redraw = () => { chart?.draw(); flame(); };
}

show(0);
onChange(() => redraw());
const chooser = document.getElementById("device");
if (chooser) chooser.onchange = () => show(chooser.selectedIndex);
