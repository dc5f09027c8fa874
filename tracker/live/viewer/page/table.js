// Table: what is live at the moment, or what the window has, as single allocations or summed by line, kind, stack or size.

const tableRows = 100;
const groupColumns = [
  {name: "Live", sort: "live", value: r => size(r.live_bytes), bytes: r => r.live_bytes},
  {name: "Count", value: r => number(r.live_count)},
  {name: "At the peak", sort: "peak", value: r => size(r.peak_bytes)},
  {name: "Allocated in all", sort: "born", value: r => size(r.born_bytes)},
  {name: "Bytes × lifetime", sort: "lifetime", value: (r, app) => `${size(Math.round(r.lifetime))} ${app.track.untimed ? "events" : "s"}`},
];
const allocationColumns = [
  {name: "Size", sort: "bytes", value: r => size(r.bytes), bytes: r => r.bytes},
  {name: "Lifetime", sort: "life", value: (r, app) => r.died == null ? "to the end" : app.track.untimed ? counted(r.life, "event") : duration(r.life)},
  {name: "Allocated", sort: "born", value: (r, app) => r.born === 0 ? "before" : app.momentText(r.born)},
  {name: "Freed", value: (r, app) => r.died == null ? "never" : app.momentText(r.died)},
];

class Table {
  #latest = new Latest();
  #more = tableRows;

  constructor(app, card) {
    Object.assign(this, {app, card, head: card.querySelector("thead tr"), body: card.querySelector("tbody"), hint: card.querySelector(".hint")});
    card.querySelector(".more").onclick = () => { this.#more = Math.min(1000, this.#more * 3); this.load(); };
    this.body.addEventListener("keydown", e => this.#key(e));
  }

  rows() { return this.app.state.get("rows") ?? "line"; }

  load(again) {
    const {app} = this, {state, track} = app, rows = this.rows(), single = rows === "allocations" || rows === "window";
    if (again) this.#more = tableRows;
    const parameters = {track: track.track, limit: this.#more, offset: 0, ...filterOf(state, single)};
    if (single) parameters.sort = ["bytes", "life", "born"].includes(state.get("sort")) ? state.get("sort") : "bytes";
    else parameters.sort = ["live", "peak", "born", "lifetime", "name"].includes(state.get("sort")) ? state.get("sort") : "live";
    if (rows === "window") Object.assign(parameters, app.window());
    else parameters.moment = app.moment();
    if (!single) parameters.by = rows;
    this.#latest.run(signal => ask(single ? "allocations" : "table", parameters, signal), answer => {
      this.answer = answer;
      this.sort = parameters.sort;
      this.card.dataset.key = `${rows} ${parameters.moment ?? parameters.x0}`;
      this.draw();
    });
  }

  draw() {
    const {answer, app, body} = this, rows = this.rows(), single = rows === "allocations" || rows === "window";
    if (!answer || single !== Boolean(answer.items)) return;
    const had = body.contains(document.activeElement) ? document.activeElement.closest("tr")?.dataset.key : null;
    const columns = single ? allocationColumns : groupColumns, name = {line: "Line of code", kind: "Kind", stack: "Call stack", size: "Size"}[rows] ?? "Line of code";
    this.head.replaceChildren(...columns.map(c => {
      const th = element("th", "num");
      if (c.sort) {
        th.append(button("", c.name, () => app.state.set({sort: c.sort})));
        if (c.sort === this.sort) th.setAttribute("aria-sort", "descending");
      } else th.textContent = c.name;
      return th;
    }), element("th", "", name));
    const list = answer.items ?? answer.rows, most = Math.max(1, ...list.map(columns[0].bytes));
    body.replaceChildren(...list.map(r => {
      const key = single ? r.allocation : r.key, chosen = this.#chosen(r), tr = build("tr", chosen ? "chosen" : "");
      tr.dataset.key = key;
      if (chosen) tr.setAttribute("aria-current", "true");
      columns.forEach((c, i) => {
        const td = element("td", i ? "num" : "num size");
        td.dataset.name = c.name;
        if (i === 0) {
          const share = element("span", "share");
          share.style.width = 100 * c.bytes(r) / most + "%";
          td.append(share, element("b", "", c.value(r, app)));
        } else td.textContent = c.value(r, app);
        tr.append(td);
      });
      const dot = element("i", "dot"), place = build("td", "code");
      if (rows !== "kind" && rows !== "size") dot.style.background = app.palette.style(single ? r.line : rows === "line" ? r.key : 0, r.kind ?? 0);
      if (rows === "kind") dot.style.background = `var(${kindColour(r.name)})`;
      place.dataset.name = name;
      place.append(button("row-name", "", () => this.#choose(r)));
      place.firstChild.append(...(rows === "size" || rows === "stack" ? [] : [dot]), r.name || "unknown");
      tr.append(place);
      return tr;
    }));
    if (!list.length) body.append(build("tr", "", Object.assign(element("td", "quiet", "Nothing passes the filter."), {colSpan: columns.length + 1})));
    const total = single ? answer.total : answer.rows_total, bytes = single ? answer.bytes : answer.total.live_bytes;
    this.hint.textContent = list.length < total ? `The first ${number(list.length)} of ${number(total)}; all together ${size(bytes)}.` : `${number(total)} in all, together ${size(bytes)}.`;
    this.card.querySelector(".more").hidden = list.length >= total || list.length >= 1000;
    if (had != null) body.querySelector(`tr[data-key="${CSS.escape(had)}"] button`)?.focus({preventScroll: true});
  }

  #chosen(r) {
    const {state} = this.app, rows = this.rows();
    if (rows === "allocations" || rows === "window") return r.allocation === state.get("sel");
    if (rows === "line") return String(r.key) === state.get("line") || (this.app.selected?.line === r.key && state.get("sel") != null);
    if (rows === "kind") return String(r.key) === state.get("kind") || (this.app.selected?.kind === r.key && state.get("sel") != null);
    if (rows === "stack") return state.get("frame")?.startsWith(r.key + ":") || (this.app.selected?.stack_id === r.key && state.get("sel") != null);
    return r.key === state.get("min_bytes") && r.key === state.get("max_bytes");
  }

  // #choose selects what a row stands for, or all again if it is selected.
  async #choose(r) {
    const {app} = this, {state} = app, rows = this.rows(), chosen = this.#chosen(r);
    if (rows === "allocations" || rows === "window") app.choose(rows === "window" ? Math.max(r.born, Math.min(app.moment(), (r.died ?? app.track.moments) - 1)) : app.moment(), chosen ? null : r.allocation);
    else if (rows === "line") {
      app.names.add("lines", r.key, r.name);
      state.set(chosen && state.get("line") ? {line: null} : {line: String(r.key), frame: null, sel: null});
    } else if (rows === "kind") state.set({kind: chosen && state.get("kind") ? null : String(r.key)});
    else if (rows === "size") state.set(chosen ? {min_bytes: null, max_bytes: null} : {min_bytes: r.key, max_bytes: r.key});
    else {
      try {
        const {stack, stack_more} = await ask("stack", {track: app.track.track, stack: r.key});
        state.set({frame: `${r.key}:${stack.length + (stack_more ?? 0)}`, line: null, sel: null});
      } catch (error) {
        reportError(error);
      }
    }
  }

  #key(e) {
    const by = {ArrowDown: "nextElementSibling", ArrowUp: "previousElementSibling"}[e.key], tr = e.target.closest("tr");
    if (!by || !tr) return;
    e.preventDefault();
    tr[by]?.querySelector("button")?.focus();
  }
}
