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
    const shown = rows.slice(Math.max(0, first));
    const column = of => shown.map(r => r.kinds ? of(r) ?? null : null);
    chart.show({
      seconds: shown.map(r => Math.max(r.t, begin)),
      layers: kinds.map(name => ({name, colour: kindColour(name), gaps: true, bytes: column(r => r.kinds[name] || 0)})),
      lines: [
        {name: "allocated", colour: "--allocated", gaps: true, bytes: column(r => r.allocated)},
        {name: "reserved", colour: "--reserved", gaps: true, bytes: column(r => r.reserved)},
        {name: "driver used", colour: "--driver", dash: [5, 4], gaps: true, hidden: true, bytes: column(r => r.driver)},
      ],
    });
  }
  // kinds are those that ever were, in an order that does not change.
  let kinds = [];
  function know(row) {
    const more = Object.keys(row.kinds ?? {}).filter(name => row.kinds[name] && !kinds.includes(name));
    if (more.length) kinds = [...kinds, ...more].sort(byKind);
  }
  function add(row) {
    know(row);
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
    rows.forEach(know);
  }
  // before puts in a mark from before what the history still has.
  function before(m) {
    const t = Date.parse(m.time) / 1000;
    const at = rows.findIndex(r => r.t >= t);
    if (at < 0 || rows[at].t === t || at > 0 && rows[at - 1].kinds?.[untold] === undefined) return;
    const driver = m.driver_used_bytes;
    const row = {t, kinds: {[untold]: m.live.bytes}, allocated: m.allocated_bytes, reserved: m.reserved_bytes, driver};
    know(row);
    rows.splice(at, 0, row);
  }

  // The levels, once a second. A program that starts again is another run.
  let run = null, gone = null;
  async function poll() {
    try {
      const l = await (await ask("levels")).json();
      if (l.run !== run) await begin(l);
      const now = Date.parse(l.time) / 1000, driver = l.driver_used_bytes;
      set("live", size(l.live.bytes)); set("live-note", buffers(l.live.count));
      set("peak", size(l.peak.bytes)); set("peak-note", buffers(l.peak.count));
      set("allocated", size(l.allocated_bytes)); set("reserved", size(l.reserved_bytes));
      set("driver", size(driver));
      set("driver-note", driver === null ? "the driver does not say" : "of " + size(l.driver_total_bytes));
      const memory = Object.entries(l.memory ?? {}).filter(([name]) => name !== "device" && name !== "unknown");
      byID("kinds-of-memory").hidden = !memory.length;
      set("other-memory", memory.map(([name, tally]) => name + " " + size(tally.bytes)).join(", "));
      set("untracked", l.untracked_bytes !== null ? size(l.untracked_bytes) : "–");
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
    kinds = [];
    if (run !== null) looks = []; // they are of another program
    await past().catch(() => {}); // the chart then begins now
    run = l.run;
    follow();
  }

  // The lines that hold memory, every five seconds, or less often where that is much work.
  let looks = []; // of the last minute: {t, bytes by line, all}
  const open = new Set(); // the lines whose call stacks are shown
  const ago = s => s < 1 ? Math.round(s * 1000) + " ms" : s < 120 ? Math.round(s) + " s" : s < 7200 ? Math.round(s / 60) + " min" : s < 172800 ? Math.round(s / 3600) + " h" : Math.round(s / 86400) + " days";
  async function lines() {
    const begun = Date.now();
    try {
      const l = await (await ask("lines")).json(), t = Date.parse(l.time) / 1000;
      looks = looks.filter(look => look.t < t && look.t >= t - 65);
      showLines(l, looks[0], t);
      looks.push({t, bytes: new Map(l.lines.map(x => [x.line, x.bytes])), all: !l.rest.count});
    } catch {} // poll tells that the program is gone
    setTimeout(lines, Math.max(5000, 20 * (Date.now() - begun)));
  }
  function showLines(l, old, t) {
    const focused = document.activeElement?.dataset.line;
    set("lines-note", old ? `change in ${ago(t - old.t)}` : "");
    document.querySelector("#lines tbody").replaceChildren(...l.lines.flatMap(x => lineRows(x, l.live.bytes, old)));
    if (!l.lines.length) {
      const tr = element("tr");
      cell(tr, "", "Nothing is live.", "quiet");
      tr.firstChild.colSpan = 6;
      document.querySelector("#lines tbody").append(tr);
    }
    set("lines-rest", l.rest.count > 0 ? `and ${buffers(l.rest.count)} of other lines: ${size(l.rest.bytes)}` : "");
    if (focused) document.querySelector(`#lines [data-line="${CSS.escape(focused)}"]`)?.focus();
  }
  function lineRows(x, whole, old) {
    const was = old && (old.bytes.get(x.line) ?? (old.all ? 0 : null)), change = was == null ? null : x.bytes - was;
    const tr = element("tr"), share = element("span", "share"), b = element("button", "line code", x.line);
    const stacks = element("tr"), percent = 100 * x.bytes / (whole || 1);
    share.style.width = percent + "%";
    cell(tr, "Memory", "", "num size");
    tr.lastChild.append(share, element("b", "", size(x.bytes)));
    cell(tr, "Share", percent.toFixed(1) + " %", "num");
    cell(tr, "Change", "", change > 0 ? "num grew" : change < 0 ? "num fell" : "num quiet");
    tr.lastChild.append(element("span", "sum", change == null ? "–" : change ? (change > 0 ? "+" : "−") + size(Math.abs(change)) : "none"));
    cell(tr, "Buffers", x.count, "num");
    cell(tr, "Oldest", x.oldest_seconds == null ? "–" : ago(x.oldest_seconds), "num");
    cell(tr, "Allocated at", "", "code");
    tr.lastChild.append(b);
    cell(stacks, "", "");
    stacks.firstChild.colSpan = 6;
    stacks.firstChild.append(...x.stacks.map(s => element("pre", "code", `${size(s.bytes)} in ${buffers(s.count)}\n  ` + (s.frames.join("\n  ") || "unknown"))));
    if (x.more_stacks) stacks.firstChild.append(element("p", "quiet hint", `and ${x.more_stacks} more call stacks`));
    b.dataset.line = x.line;
    const show = on => {
      stacks.hidden = !on;
      b.setAttribute("aria-expanded", on);
    };
    show(open.has(x.line));
    b.onclick = () => {
      if (!open.delete(x.line)) open.add(x.line);
      show(open.has(x.line));
    };
    return [tr, stacks];
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
    same = null;
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
      const tr = markRow(m);
      insert(tr);
      if (m.delta.changes.length) same = null; else fold(tr);
    });
  }
  // fold hides marks without a change behind one row, if there are several in a row.
  let same = null; // the newest marks, which changed nothing: {rows, row}
  function fold(tr) {
    same ??= {rows: [], row: null, open: false};
    const group = same;
    group.rows.push(tr);
    if (group.rows.length < 2) return;
    if (!group.row) {
      group.row = element("tr");
      group.button = element("button", "line");
      cell(group.row, "", "");
      group.row.firstChild.colSpan = 7;
      group.row.firstChild.append(group.button);
      group.button.onclick = () => { group.open = !group.open; show(); };
    }
    const show = () => {
      group.button.textContent = `${group.rows.length} marks without a change`;
      group.button.setAttribute("aria-expanded", group.open);
      for (const r of group.rows) r.hidden = !group.open;
    };
    show();
    body.prepend(group.row);
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
    const line = c && largest(c.call_sites), more = c ? c.call_sites.length - 1 : 0;
    cell(tr, "Allocated at", line ? place(line) + (more ? ` and ${more} more` : "") : "–", line ? "code" : "quiet");
    if (byID("called")) cell(tr, "Track called at", place(m.call_site), "code");
    return tr;
  }

  onChange(() => chart.draw());
  poll();
  lines();
  leaks();
})();
