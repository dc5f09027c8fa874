// App: the files as they are read, the track that is shown, and what a change of the state loads or draws again.

class App {
  #latest = new Latest();
  #momentLatest = new Latest();
  #bandsLatest = new Latest();
  #windowTimer = 0;

  constructor() {
    this.root = document.documentElement;
    this.font = getComputedStyle(document.body).fontFamily;
    this.state = new State();
    this.names = new Names(() => { this.palette.by === "kind" ? this.recolour() : this.timeline.draw(); });
    this.palette = new Palette(this.state.get("colour") ?? "line", this.names);
    this.files = [];
    this.track = this.selected = this.info = null;
    this.timeline = new Timeline(this, byID("timeline"));
    this.overview = new Overview(this, this.timeline, byID("overview"));
    this.ranks = new Ranks(this, byID("ranks"));
    this.details = new Details(this, byID("details"));
    this.segments = new Segments(this, byID("segments-card"));
    this.flame = new Flame(this, byID("flame-card"));
    this.table = new Table(this, byID("table-card"));
    this.filter = new Filter(this, byID("filter-form"));
    this.state.listen(changed => this.#changed(changed));
    this.#choices();
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    this.details.load(null);
    this.#watch();
  }

  // #choices makes the buttons with data-set="name=value" set the state.
  #choices() {
    for (const b of document.querySelectorAll("[data-set]")) {
      const [name, value] = b.dataset.set.split("=");
      b.onclick = () => {
        if (name === "axis") this.#changeAxis(value);
        else this.state.set({[name]: value, ...(name === "rows" && {sort: null})});
      };
    }
    byID("zoom-in").onclick = () => this.#zoom(0.5);
    byID("zoom-out").onclick = () => this.#zoom(2);
    byID("zoom-all").onclick = () => this.timeline.look([0, this.timeline.span], [0, this.timeline.top]);
    byID("at-peak").onclick = () => this.showMoment(this.track.peak);
    byID("track").onchange = e => this.openTrack(e.target.value);
  }

  #zoom(factor) {
    if (!this.track) return;
    const {timeline} = this, view = timeline.view(), at = this.place(), around = at >= view.from && at <= view.to ? at : (view.from + view.to) / 2;
    timeline.look(zoomed([view.from, view.to], factor, around, [0, timeline.span], timeline.shortest().time), [view.low, view.high]);
  }

  // #changeAxis keeps the heights; a window of moments is no window of seconds.
  #changeAxis(axis) { this.state.set({axis: axis === "event" ? null : axis, from: null, to: null}); }

  #pressed() {
    for (const b of document.querySelectorAll("[data-set]")) {
      const [name, value] = b.dataset.set.split("=");
      const now = {axis: this.track ? this.axis() : "event", colour: this.state.get("colour") ?? "line", weight: this.state.get("weight") ?? "live", rows: this.table.rows()}[name];
      b.setAttribute("aria-pressed", now === value);
    }
  }

  // #watch follows the reading of the files.
  async #watch() {
    let after = null;
    for (;;) {
      try {
        const answer = await ask("state", {after});
        after = answer.seq;
        byID("problem").hidden ||= byID("problem").dataset.lost === "yes";
        byID("problem").dataset.lost = "";
        this.#files(answer.files);
      } catch (error) {
        reportError(error);
        byID("problem").dataset.lost = "yes";
        if (error.status === 401 || error.status === 403) return;
        await new Promise(done => setTimeout(done, 2000));
      }
    }
  }

  #files(files) {
    this.files = files;
    showProgress(this, files);
    this.ranks.update(files);
    const tracks = files.flatMap(f => f.tracks ?? []), list = byID("track");
    if (list.options.length !== tracks.length) {
      list.replaceChildren(...files.flatMap(f => (f.tracks ?? []).map(t => Object.assign(element("option", "", trackName(files, f, t)), {value: t.track}))));
      list.hidden = tracks.length < 2;
      if (this.track) list.value = this.track.track;
    }
    if (this.track) return;
    // The track of the address, when it is there; if there is none, the first.
    const wanted = this.state.get("track"), found = tracks.find(t => t.track === wanted), settled = files.every(f => ["ready", "failed"].includes(f.state));
    const first = found ?? (wanted == null || settled ? tracks.find(t => t.failed) ?? tracks[0] : null);
    if (first && this.loading !== first.track) this.#load(first.track);
  }

  // openTrack shows another track from its beginning to its end. What is selected in one is nothing in another.
  openTrack(id) {
    if (id !== this.track?.track) this.state.set({track: id, from: null, to: null, low: null, high: null, at: null, sel: null, frame: null});
  }

  #load(id) {
    this.loading = id;
    this.#latest.run(async signal => {
      const track = await ask("track", {track: id}, signal);
      await this.#findLine(track, signal);
      return track;
    }, track => {
      const file = this.files.find(f => f.tracks?.some(t => t.track === id));
      this.track = {...file?.tracks.find(t => t.track === id), ...track};
      this.file = file;
      for (const l of track.lines ?? []) this.names.add("lines", l.line, l.name);
      for (const k of track.kinds ?? []) this.names.add("kinds", k.kind, k.name);
      this.palette.read();
      for (const e of document.querySelectorAll(".needs-track")) e.hidden = false;
      byID("early").hidden = true;
      byID("track").value = id;
      this.filter.kinds(track.kinds ?? []);
      for (const b of document.querySelectorAll("[data-set='axis=time']")) b.disabled = this.track.untimed;
      showFacts(this);
      this.#pressed();
      this.ranks.mark();
      this.timeline.open();
      this.overview.draw();
      this.#loadMoment();
      this.#loadSelection();
      for (const view of [this.segments, this.flame, this.table]) view.load();
    }, error => { this.loading = null; reportError(error); });
  }

  // #findLine gives the selected line the number that it has in this run of the program.
  async #findLine(track, signal) {
    const line = this.state.get("line"), name = this.state.get("line_name");
    if (line == null || name == null || (await ask("names", {lines: line}, signal)).lines[line] === name) return;
    const found = track.lines.find(l => l.name === name);
    this.state.set({line: found ? String(found.line) : null});
  }

  axis() { return this.state.get("axis") === "time" && !this.track.untimed ? "time" : "event"; }

  // moment is the one that is shown: of the address, or the one that the track opens at.
  moment() {
    const {track} = this, at = this.state.get("at") ?? track.opens ?? track.peak.moment;
    return Math.max(0, Math.min(track.moments - 1, Math.round(at)));
  }

  // place is where the moment lies on the axis, or null while that is not known.
  place() {
    const moment = this.moment();
    if (this.axis() === "event") return moment + Math.min(0.5, this.track.moments / 2000);
    return this.info?.moment === moment ? this.info.seconds : moment === this.track.peak.moment ? this.track.peak.seconds : null;
  }

  window() {
    const {from, to} = this.timeline.view();
    return {axis: this.axis(), x0: from, x1: to};
  }

  async momentAt(x) { return this.axis() === "event" ? Math.floor(x) : (await ask("moment", {track: this.track.track, x})).moment; }

  momentLabel(step, to) { return this.axis() === "time" ? momentsInSeconds(step, to) : m => number(m + (this.track.first ?? 0)); }

  momentText(moment, seconds) {
    const event = `event ${number(moment + (this.track.first ?? 0))}`;
    return seconds == null ? event : `${momentsInSeconds(1e-3, 1e9)(seconds)} (${event})`;
  }

  // choose sets the moment and the selection.
  choose(moment, allocation = this.state.get("sel")) {
    this.state.set({at: Math.max(0, Math.min(this.track.moments - 1, moment)), sel: allocation});
  }

  showMoment({moment}) {
    this.choose(moment);
    const {timeline} = this, view = timeline.view(), at = this.axis() === "time" ? this.track.peak.seconds : moment;
    if (at < view.from || at > view.to) timeline.look(within([at - (view.to - view.from) / 2, at + (view.to - view.from) / 2], [0, timeline.span]), [0, timeline.top]);
  }

  // showSelected moves the view to all of the selected allocation's life.
  showSelected() {
    const a = this.selected, {timeline} = this;
    if (!a) return;
    const time = this.axis() === "time", from = time ? a.born_seconds ?? 0 : a.born, to = (time ? a.died_seconds : a.died) ?? timeline.span, margin = Math.max((to - from) * 0.15, timeline.shortest().time / 2);
    const low = a.offset_born - 6 * a.bytes, high = a.offset_born + 4 * a.bytes;
    timeline.look(within([from - margin, to + margin], [0, timeline.span]), a.bytes > timeline.top / 100 || to - from > timeline.span / 4 ? [0, timeline.top] : within([low, high], [0, timeline.top]));
    const moment = this.moment();
    if (moment < a.born || a.died != null && moment >= a.died) this.choose(a.born);
  }

  // step selects the allocation above (1) or below (-1) the selected one at the moment; without one, or for 0, the largest.
  step(by) {
    const {track} = this.track, moment = this.moment();
    this.#bandsLatest.run(signal => ask("bands", {track, moment, y0: 0, y1: this.timeline.top, limit: 1000, ...filterOf(this.state)}, signal), ({items}) => {
      const order = items.toSorted((a, b) => a.offset - b.offset), at = order.findIndex(b => b.allocation === this.state.get("sel"));
      const next = by && at >= 0 ? order[at + by] : items.reduce((most, b) => b.bytes > (most?.bytes ?? -1) ? b : most, null);
      if (next) this.choose(moment, next.allocation);
    });
  }

  // clear takes back the last that was chosen: the allocation, then the line or frame, then the filter.
  clear() {
    const {state} = this;
    if (state.get("sel") != null) state.set({sel: null});
    else if (state.get("line") ?? state.get("frame")) state.set({line: null, frame: null});
    else state.set(Object.fromEntries(filterNames.map(name => [name, null])));
  }

  #changed(changed) {
    const any = (...names) => names.some(name => changed.has(name));
    if (changed.has("track") && this.state.get("track") && this.state.get("track") !== this.track?.track && this.files.some(f => f.tracks?.some(t => t.track === this.state.get("track")))) {
      this.track = this.info = this.selected = null;
      this.#load(this.state.get("track"));
      return;
    }
    if (byID("problem").dataset.lost !== "yes") byID("problem").hidden = true; // it was what was asked for before
    if (!this.track) return;
    this.#pressed();
    if (changed.has("colour")) this.recolour();
    const filtered = any(...filterNames), line = this.state.get("line");
    if (changed.has("line")) this.state.set({line_name: line == null ? null : this.names.line(+line) || this.state.get("line_name")});
    if (filtered) this.filter.show();
    if (filtered || changed.has("axis")) this.timeline.open();
    if (changed.has("at")) this.#loadMoment();
    if (changed.has("sel")) this.#loadSelection();
    if (filtered || changed.has("at")) this.segments.load();
    if (filtered || changed.has("at") || changed.has("weight")) this.flame.load();
    if (filtered || any("at", "rows", "sort")) this.table.load(filtered || any("rows", "sort"));
    if (any("from", "to", "axis")) {
      clearTimeout(this.#windowTimer);
      this.#windowTimer = setTimeout(() => {
        if (this.state.get("weight") === "lifetime") this.flame.load();
        if (this.table.rows() === "window") this.table.load();
      }, 250);
    }
    showChosen(this);
    this.timeline.draw();
    requestAnimationFrame(() => this.overview.draw());
  }

  #loadSelection() {
    const id = this.state.get("sel");
    if (id == null) this.selected = null;
    this.details.load(id);
    this.flame.loadPath(id);
    for (const view of [this.segments, this.table]) view.draw();
    showChosen(this);
  }

  // selectionLoaded draws what depends on what the server says of the selected allocation.
  selectionLoaded() {
    this.table.draw();
    this.timeline.draw();
    showChosen(this);
  }

  #loadMoment() {
    const {track} = this.track, moment = this.moment();
    this.#momentLatest.run(async signal => {
      const parameters = {track, moment};
      const [info, bands] = await Promise.all([ask("moment", parameters, signal), ask("bands", {...parameters, y0: 0, y1: this.timeline.top, limit: 12, ...filterOf(this.state)}, signal)]);
      return {info: {...info, moment}, bands};
    }, ({info, bands}) => {
      this.info = info;
      showMomentInfo(this, bands);
      this.timeline.draw();
      this.overview.draw();
    });
  }

  recolour() {
    this.palette.by = this.state.get("colour") ?? "line";
    this.palette.read();
    this.timeline.tiles?.repaint();
    this.timeline.draw();
    this.overview.draw();
    for (const view of [this.ranks, this.segments, this.flame, this.table]) view.draw();
  }

  // painted and ready tell tests and measurements that something of the recording, and all of the view, is on the screen.
  painted() { this.root.dataset.painted = "yes"; }
  ready() {
    if (this.root.dataset.state === "ready") return;
    this.root.dataset.state = "ready";
    this.overview.draw();
  }
}

new App();
