"use strict";
(() => {
  const set = (id, text) => { document.getElementById(id).textContent = text; };
  const buffers = n => n === 1 ? "1 buffer" : n + " buffers";

  // The levels, once a second; the chart keeps the last ten minutes.
  const kept = 600, columns = [[], [], [], []];
  let began = null, plot = null;
  function draw() {
    const div = document.getElementById("chart");
    if (plot) plot.destroy();
    plot = new uPlot(memoryChart(div), columns, div);
  }
  async function poll() {
    try {
      const l = await (await fetch("levels", {cache: "no-store"})).json();
      set("live", size(l.live.bytes)); set("live-note", buffers(l.live.count));
      set("peak", size(l.peak.bytes)); set("peak-note", buffers(l.peak.count));
      set("allocated", size(l.allocated_bytes)); set("reserved", size(l.reserved_bytes));
      const known = l.driver_used_bytes >= 0;
      set("driver", known ? size(l.driver_used_bytes) : "–");
      set("driver-note", known ? "of " + size(l.driver_total_bytes) : "the driver does not say");
      set("untracked", l.untracked_bytes >= 0 ? size(l.untracked_bytes) : "–");
      const now = Date.parse(l.time) / 1000;
      began ??= now;
      [now - began, l.allocated_bytes, l.reserved_bytes, known ? l.driver_used_bytes : null].forEach((v, i) => {
        columns[i].push(v);
        if (columns[i].length > kept) columns[i].shift();
      });
      if (plot) plot.setData(columns); else draw();
      document.getElementById("state").className = "state on";
    } catch {
      document.getElementById("state").className = "state off";
    }
    setTimeout(poll, 1000);
  }

  // The leaks, every ten seconds.
  async function leaks() {
    try {
      const answer = await fetch("leaks?debug=1", {cache: "no-store"});
      if (answer.ok) set("leaks", await answer.text() || "None.");
    } catch {} // poll shows that the program is gone
    setTimeout(leaks, 10000);
  }

  // The marks, as they come; the newest on top.
  const body = document.querySelector("#marks tbody");
  function cell(tr, text, type) {
    const td = document.createElement("td");
    td.textContent = text;
    if (type) td.className = type;
    tr.append(td);
  }
  const marks = new EventSource("marks");
  let run = null; // of which the rows are: a program that starts again counts from 1
  marks.addEventListener("closed", () => marks.close());
  marks.addEventListener("mark", e => {
    const its = e.lastEventId.split("-")[0];
    if (run !== null && its !== run) body.replaceChildren();
    run = its;
    const m = JSON.parse(e.data), changes = m.delta.changes;
    const sum = changes.reduce((n, c) => n + c.bytes, 0);
    const tr = document.createElement("tr");
    tr.className = sum > 0 ? "came" : sum < 0 ? "went" : "";
    tr.dataset.mark = m.seq;
    cell(tr, m.seq, "num");
    cell(tr, new Date(m.time).toLocaleTimeString());
    cell(tr, size(m.live.bytes), "num");
    cell(tr, (sum > 0 ? "+ " : "") + size(sum), "num sum");
    const c = changes[0];
    cell(tr, c ? `${c.count > 0 ? "+" : "−"} ${Math.abs(c.count)} × ${c.kind} (${(c.shape ?? []).join(", ")}) ${c.dtype}` : "nothing", c ? "code" : "quiet");
    cell(tr, `${m.site.file.split("/").pop()}:${m.site.line}`, "code");
    body.querySelector(".empty")?.remove();
    body.prepend(tr);
    while (body.rows.length > 200) body.lastChild.remove();
  });

  addEventListener("resize", () => { if (plot) draw(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { if (plot) draw(); });
  poll();
  leaks();
})();
