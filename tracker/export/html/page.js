"use strict";
(() => {
  // Marks: one table at a time.
  function showMark(seq, scroll) {
    for (const a of document.querySelectorAll("article.mark")) a.hidden = a.id !== "mark-" + seq;
    for (const b of document.querySelectorAll("[data-mark]")) b.classList.toggle("on", b.dataset.mark === String(seq));
    const shown = document.getElementById("mark-" + seq);
    if (shown && scroll) shown.scrollIntoView({behavior: "smooth", block: "nearest"});
  }
  for (const b of document.querySelectorAll("[data-mark]")) b.onclick = () => showMark(b.dataset.mark, true);
  const newest = document.querySelector("[data-mark]");
  if (newest) showMark(newest.dataset.mark, false);

  // The chart, with lines for marks and refusals.
  let plot;
  function draw() {
    const div = document.getElementById("chart"), quiet = colour("--quiet");
    if (plot) plot.destroy();
    const verticals = u => {
      const ctx = u.ctx, {top, height} = u.bbox;
      ctx.save();
      ctx.lineWidth = devicePixelRatio;
      for (const [moments, stroke, dash] of [[chartData.marks, quiet, [3, 4]], [chartData.ooms, colour("--oom"), []]]) {
        ctx.strokeStyle = ctx.fillStyle = stroke;
        ctx.setLineDash(dash);
        for (const m of moments) {
          const x = Math.round(u.valToPos(m.seconds, "x", true));
          if (x < u.bbox.left || x > u.bbox.left + u.bbox.width) continue;
          ctx.beginPath(); ctx.moveTo(x, top); ctx.lineTo(x, top + height); ctx.stroke();
          if (m.mark && moments.length <= 40) ctx.fillText(m.mark, x + 3 * devicePixelRatio, top + 11 * devicePixelRatio);
        }
      }
      ctx.restore();
    };
    plot = new uPlot({
      ...memoryChart(div),
      hooks: {draw: [verticals], ready: [u => {
        u.over.addEventListener("click", e => {
          let best = null, nearest = 10;
          for (const m of chartData.marks) {
            const d = Math.abs(u.valToPos(m.seconds, "x") - e.offsetX);
            if (m.mark && d < nearest) { nearest = d; best = m; }
          }
          if (best) showMark(best.mark, true);
        });
      }]},
    }, [chartData.seconds, chartData.allocated, chartData.reserved, chartData.driver], div);
  }

  // The flame graph: frames as boxes, those called below those that call.
  let measure = 0, focus = [flameData];
  function hue(text) {
    let h = 0;
    for (const c of text) h = (h * 31 + c.charCodeAt(0)) >>> 0;
    return h % 70;
  }
  function flame() {
    const div = document.getElementById("flame"), width = div.clientWidth;
    div.replaceChildren();
    let rows = 0;
    const box = (n, left, w, depth, parents) => {
      rows = Math.max(rows, depth + 1);
      const b = document.createElement("div");
      b.style.left = left + "px"; b.style.width = w + "px"; b.style.top = depth * 21 + "px";
      const above = depth < focus.length - 1;
      b.style.background = depth === 0 ? "#cbd5e1" : `hsl(${18 + hue(n.name)} ${above ? 30 : 85}% 68%)`;
      const part = 100 * n.bytes[measure] / (flameData.bytes[measure] || 1);
      b.title = `${n.place || n.name}\n${size(n.bytes[measure])} · ${n.count[measure]} buffers · ${part.toFixed(1)} %`;
      b.dataset.name = n.name;
      if (w > 30) b.textContent = (n.place && w > 220 ? n.place : n.name) + (w > 140 ? "  " + size(n.bytes[measure]) : "");
      b.onclick = () => { focus = [...parents, n]; flame(); };
      div.append(b);
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
    div.style.height = rows * 21 + "px";
  }
  for (const b of document.querySelectorAll("[data-measure]")) b.onclick = () => {
    measure = +b.dataset.measure;
    for (const o of document.querySelectorAll("[data-measure]")) o.classList.toggle("on", o === b);
    focus = [flameData];
    flame();
  };

  // The live table: a filter, and two orders.
  const body = document.querySelector("#live-table tbody");
  document.getElementById("filter").oninput = e => {
    const words = e.target.value.toLowerCase().split(/\s+/);
    for (const tr of body.rows) tr.hidden = !words.every(w => tr.textContent.toLowerCase().includes(w));
  };
  for (const th of document.querySelectorAll("th.sortable")) th.onclick = () => {
    const key = th.dataset.key;
    body.append(...[...body.rows].sort((a, b) => b.dataset[key] - a.dataset[key]));
  };

  let pending;
  const all = () => { draw(); flame(); };
  addEventListener("resize", () => { cancelAnimationFrame(pending); pending = requestAnimationFrame(all); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", all);
  all();
})();
