"use strict";
(() => {
  const byID = id => document.getElementById(id);
  const set = (id, text) => { byID(id).textContent = text; };
  const clock = seconds => new Date(seconds * 1000).toLocaleTimeString([], {hour12: false});
  const ask = async path => {
    const answer = await fetch(path, {cache: "no-store", signal: AbortSignal.timeout(10000)});
    if (!answer.ok) throw Object.assign(new Error(await answer.text()), {status: answer.status});
    return answer;
  };

  // notice tells in words what the state of the program is; "" is that it runs.
  function notice(text, off) {
    const card = byID("notice");
    if (card.textContent !== text) card.textContent = text;
    card.hidden = !text;
    byID("state").className = text ? "state off" : "state on";
    byID("state").title = text || "the program answers";
    card.classList.toggle("off", Boolean(off));
  }

  // The chart's rows: {t, kinds, allocated, reserved, driver}; kinds is null where nothing is known.
  const maxRows = 4000, untold = "all kinds";
  let rows = [], range = 600;
  const chart = new MemoryChart(byID("chart"), {seconds: clock, steps: [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 86400]});
  function draw() {
    const begin = range && rows.length ? rows.at(-1).t - range : -Infinity;
    let first = rows.findIndex(r => r.t >= begin);
    if (first > 0) first--; // what the level was when the range began
    const shown = rows.slice(Math.max(0, first)), names = new Set();
    for (const r of shown) for (const name in r.kinds) if (r.kinds[name]) names.add(name);
    const column = of => shown.map(r => r.kinds ? of(r) ?? null : null);
    chart.show({
      seconds: shown.map(r => Math.max(r.t, begin)),
      layers: [...names].map(name => ({name, colour: kindColour(name), gaps: true, bytes: column(r => r.kinds[name] || 0)})),
      lines: [
        {name: "allocated", colour: "--allocated", gaps: true, bytes: column(r => r.allocated)},
        {name: "reserved", colour: "--reserved", gaps: true, bytes: column(r => r.reserved)},
        {name: "driver used", colour: "--driver", dash: [5, 4], gaps: true, hidden: true, bytes: column(r => r.driver)},
      ],
    });
  }
  function add(row) {
    rows.push(row);
    if (rows.length > maxRows) rows = rows.slice(-maxRows);
  }
  for (const b of document.querySelectorAll("[data-seconds]")) b.onclick = () => {
    range = +b.dataset.seconds;
    for (const o of document.querySelectorAll("[data-seconds]")) o.setAttribute("aria-pressed", o === b);
    draw();
  };

  // past gets what the program did before the page was opened.
  async function past() {
    const line = await (await ask("timeline")).json(), start = Date.parse(line.start) / 1000;
    const known = {};
    rows = line.seconds.map((s, i) => {
      for (const name of ["allocated", "reserved", "driver"]) known[name] = line[name][i] ?? known[name];
      return {t: start + s, kinds: Object.fromEntries(line.kinds.map(k => [k.name, k.bytes[i]])), ...known};
    });
  }
  // before puts in a mark from before what the history still has.
  function before(m) {
    const t = Date.parse(m.time) / 1000;
    const at = rows.findIndex(r => r.t >= t);
    if (at < 0 || rows[at].t === t || at > 0 && rows[at - 1].kinds?.[untold] === undefined) return;
    const driver = m.driver_used_bytes >= 0 ? m.driver_used_bytes : null;
    rows.splice(at, 0, {t, kinds: {[untold]: m.live.bytes}, allocated: m.allocated_bytes, reserved: m.reserved_bytes, driver});
  }

  // The levels, once a second. A program that starts again is another run.
  let run = null, gone = null;
  async function poll() {
    try {
      const l = await (await ask("levels")).json();
      if (l.run !== run) await begin(l);
      const now = Date.parse(l.time) / 1000, driver = l.driver_used_bytes >= 0 ? l.driver_used_bytes : null;
      set("live", size(l.live.bytes)); set("live-note", buffers(l.live.count));
      set("peak", size(l.peak.bytes)); set("peak-note", buffers(l.peak.count));
      set("allocated", size(l.allocated_bytes)); set("reserved", size(l.reserved_bytes));
      set("driver", size(driver));
      set("driver-note", driver === null ? "the driver does not say" : "of " + size(l.driver_total_bytes));
      const memory = Object.entries(l.memory ?? {}).filter(([name]) => name !== "device" && name !== "unknown");
      byID("kinds-of-memory").hidden = !memory.length;
      set("other-memory", memory.map(([name, tally]) => name + " " + size(tally.bytes)).join(", "));
      set("untracked", l.untracked_bytes >= 0 ? size(l.untracked_bytes) : "–");
      if (l.closed) {
        notice("The program has ended or closed its tracker: these are its last numbers.", true);
      } else {
        add({t: now, kinds: l.kinds, allocated: l.allocated_bytes, reserved: l.reserved_bytes, driver});
        notice("");
        if (marks.readyState === EventSource.CLOSED) follow();
      }
      gone = null;
    } catch (e) {
      if (gone === null) {
        gone = Date.now() / 1000;
        if (rows.length) add({t: rows.at(-1).t + 1, kinds: null}); // the chart does not go on
      }
      const why = e.status ? `The program answers with error ${e.status} since ${clock(gone)}: ${e.message.trim()}.`
        : `No answer from the program since ${clock(gone)}: it has ended, or cannot be reached.`;
      notice(why + " This page asks again every second. The numbers are the last ones.");
    }
    draw();
    setTimeout(poll, 1000);
  }
  async function begin(l) {
    set("device", l.device); set("origin", l.origin);
    document.title = "Live: " + l.device;
    clearMarks();
    rows = [];
    await past().catch(() => {}); // the chart then begins now
    run = l.run;
    follow();
  }

  // The leaks, every ten seconds.
  async function leaks() {
    try {
      set("leaks", await (await ask("leaks?debug=1")).text() || "None.");
    } catch {} // poll tells that the program is gone
    setTimeout(leaks, 10000);
  }

  // The marks, as they come; the newest on top.
  const body = document.querySelector("#marks tbody"), none = body.rows[0];
  let marks = {readyState: EventSource.CLOSED, close() {}}, seen = 0;
  function cell(tr, name, text, type) {
    const td = element("td", type, text);
    td.dataset.name = name;
    tr.append(td);
  }
  const place = f => f?.file ? `${f.file.split("/").pop()}:${f.line} ${f.function.split("/").pop()}` : "unknown";
  const largest = changes => changes.reduce((a, c) => !a || Math.abs(c.bytes) > Math.abs(a.bytes) ? c : a, null);
  function clearMarks() {
    marks.close();
    seen = 0;
    body.replaceChildren(none);
  }
  function follow() {
    marks.close();
    marks = new EventSource("marks" + (seen ? "?after=" + seen : ""));
    marks.addEventListener("closed", () => marks.close());
    marks.addEventListener("missed", e => {
      const tr = element("tr");
      cell(tr, "", `${JSON.parse(e.data).marks} marks were not kept`, "quiet");
      tr.firstChild.colSpan = 7;
      insert(tr);
    });
    marks.addEventListener("mark", e => {
      if (e.lastEventId.split("-")[0] !== run) return; // of a program that poll has not met yet
      const m = JSON.parse(e.data);
      if (m.seq <= seen) return;
      seen = m.seq;
      before(m);
      insert(markRow(m));
    });
  }
  function insert(tr) {
    none.remove();
    body.prepend(tr);
    while (body.rows.length > 200) body.lastChild.remove();
  }
  function markRow(m) {
    const sum = m.delta.changes.reduce((n, c) => n + c.bytes, 0), c = largest(m.delta.changes);
    const tr = element("tr", sum > 0 ? "grew" : sum < 0 ? "fell" : "");
    tr.dataset.mark = m.seq;
    cell(tr, "Mark", m.seq, "num");
    cell(tr, "Time", clock(Date.parse(m.time) / 1000));
    cell(tr, "Live", size(m.live.bytes), "num");
    cell(tr, "Change", sum > 0 ? "grew by " + size(sum) : sum < 0 ? "fell by " + size(-sum) : "none", sum ? "num sum" : "num quiet");
    cell(tr, "Largest change", c ? `${c.count >= 0 ? "+" : "−"} ${Math.abs(c.count)} × ${c.kind} (${(c.shape ?? []).join(", ")}) ${c.dtype}, ${size(Math.abs(c.bytes))}` : "nothing", c ? "code" : "quiet");
    const site = c && largest(c.sites), more = c ? c.sites.length - 1 : 0;
    cell(tr, "Allocated at", site ? place(site) + (more ? ` and ${more} more` : "") : "–", site ? "code" : "quiet");
    if (byID("called")) cell(tr, "Track called at", place(m.site), "code");
    return tr;
  }

  onChange(() => chart.draw());
  poll();
  leaks();
})();
