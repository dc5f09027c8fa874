// Summary: the words and numbers of the page's top: progress, facts of the track, the moment, what is selected.

function trackName(files, file, track) {
  const device = track.host_memory ? "host memory" : track.device;
  if (files.length < 2) return device;
  return `${file.rank != null ? `rank ${file.rank}, ` : ""}${file.name}, ${device}`;
}

// showProgress shows how far the files are read, and before the first timeline what is live at the end.
function showProgress(app, files) {
  const list = byID("progress"), reading = files.filter(f => !["ready", "failed"].includes(f.state)), failed = files.filter(f => f.state === "failed");
  const done = files.reduce((sum, f) => sum + (f.state === "ready" ? f.bytes_total ?? 0 : f.bytes_done ?? 0), 0), total = files.reduce((sum, f) => sum + (f.bytes_total ?? 0), 0);
  list.hidden = !reading.length && !failed.length;
  const children = [];
  if (reading.length) {
    const bar = element("progress", "");
    if (total && !reading.every(f => f.state === "indexing")) { bar.max = total; bar.value = done; }
    const words = files.length > 1 ? `${counted(files.length - reading.length, "file")} of ${files.length} read, ${size(done)} of ${size(total)}` : progressText(files[0]);
    bar.setAttribute("aria-label", `Reading ${files.length > 1 ? counted(files.length, "file") : files[0].name}`);
    children.push(build("div", "reading", element("b", "", files.length > 1 ? "Reading" : `Reading ${files[0].name}`), element("span", "quiet", words), bar));
  }
  for (const f of failed) children.push(build("p", "", element("b", "", f.name), " cannot be read: ", f.error ?? "unknown"));
  list.replaceChildren(...children);
  const title = files.length === 1 ? files[0].name : counted(files.length, "file");
  byID("title").textContent = title;
  document.title = `${title} – GPU memory`;
  const early = files.find(f => f.early && f.state !== "failed");
  if (!app.track && early && !app.early) {
    app.early = true;
    ask("early", {file: early.file}).then(answer => { if (!app.track) showEarly(app, answer); }, () => { app.early = false; });
  }
}

// showEarly shows the lines that hold memory at the end, which a recording's segments tell before its events are read.
function showEarly(app, answer) {
  const most = Math.max(1, ...answer.lines.map(l => l.bytes));
  byID("early-summary").textContent = `${size(answer.bytes)} in ${counted(answer.count, "allocation")}${answer.reserved_bytes == null ? "" : `, ${size(answer.reserved_bytes)} reserved`}. The timeline follows when the events are read.`;
  byID("early-rows").replaceChildren(...answer.lines.slice(0, 12).map(l => {
    const share = element("span", "share");
    share.style.width = 100 * l.bytes / most + "%";
    return build("tr", "", build("td", "num size", share, element("b", "", size(l.bytes))), element("td", "num", number(l.count)), element("td", "code", l.name || "unknown"));
  }));
  byID("early").hidden = false;
  app.painted();
}

// showFacts shows the sums of a track.
function showFacts(app) {
  const {track, file} = app;
  const fact = (name, value, note) => build("div", "tile", element("div", "name", name), element("div", "value", value), element("div", "note", note ?? ""));
  byID("facts").replaceChildren(
    fact("Peak", size(track.peak.bytes), `${counted(track.peak.count, "allocation")}, ${app.momentText(track.peak.moment, track.peak.seconds)}`),
    fact("At the end", size(track.end.bytes), counted(track.end.count, "allocation")),
    fact("Allocations", number(track.allocations), `${counted(track.moments - 1, "event")}${track.untimed ? "" : ` in ${duration(track.seconds)}`}`),
    fact("Reserved at most", track.reserved_peak_bytes == null ? "unknown" : size(track.reserved_peak_bytes), track.reserved_peak_bytes == null ? "the events do not include segments" : `${(100 * track.peak.bytes / (track.reserved_peak_bytes || 1)).toFixed(0)} % of it in use at the peak`),
  );
  byID("origin").textContent = [track.device, file?.format, file?.program, file?.host, file?.path].filter(Boolean).join(" · ");
  const oom = track.ooms?.at(-1), failed = track.failed && oom ? `Out of memory at ${app.momentText(oom.moment, oom.seconds)}${oom.bytes ? `: ${size(oom.bytes)} more were requested` : ""}.` : null;
  const notes = [failed, track.failed === "out of memory" && failed ? null : track.failed, track.left_out?.length ? "This recording is not whole. It lacks: " + track.left_out.join("; ") + "." : null].filter(Boolean);
  byID("notes").replaceChildren(...notes.map(n => element("p", "", n)));
  byID("notes").hidden = !notes.length;
}

// showMomentInfo says what the moment is, and gives a screen reader what lies there as a table.
function showMomentInfo(app, bands) {
  const {info, track} = app, name = info.moment === track.peak.moment ? ", the peak" : info.moment === track.moments - 1 ? ", the end" : "";
  byID("moment-name").textContent = app.momentText(info.moment, info.seconds) + name;
  byID("moment-levels").textContent = `${size(info.live_bytes)} live in ${counted(info.live_count, "allocation")}` + (info.reserved_bytes == null ? "" : `, ${size(info.reserved_bytes)} reserved`);
  for (const e of document.querySelectorAll(".at-moment")) e.textContent = ", at " + app.momentText(info.moment) + name;
  const table = build("table", "", build("caption", "", `The largest allocations at ${app.momentText(info.moment, info.seconds)}`), build("tr", "", ...["Size", "Line of code", "Allocated", "Freed"].map(t => element("th", "", t))));
  for (const b of bands.items.toSorted((a, b) => b.bytes - a.bytes)) {
    table.append(build("tr", "", ...[size(b.bytes), b.name, app.momentText(b.born), b.died == null ? "never" : app.momentText(b.died)].map(t => element("td", "", t))));
  }
  app.timeline.canvas.replaceChildren(table);
  app.timeline.canvas.dataset.moment = info.moment;
}

// showChosen says what is selected, with a way back.
function showChosen(app) {
  const {state, selected} = app, chips = [], chip = (text, clear) => chips.push(build("span", "chosen-chip", text, Object.assign(button("", "×", clear), {ariaLabel: "no longer select " + text})));
  if (state.get("line") != null) chip(`line ${app.names.line(+state.get("line"))}`, () => state.set({line: null}));
  if (state.get("frame") != null) chip("a frame of the flame graph", () => state.set({frame: null}));
  if (state.get("sel") != null) chip(selected?.allocation === state.get("sel") ? `${size(selected.bytes)} of ${baseName(selected.name)}` : `allocation ${state.get("sel")}`, () => state.set({sel: null}));
  byID("chosen").replaceChildren(...chips);
}
