// Segments: the memory that the cache holds at the moment, byte by byte: a bar for each segment, its blocks in their places.

const segmentHeight = 18, segmentGap = 6;

class Segments {
  #latest = new Latest();
  #places = []; // {x, y, width, segment}

  constructor(app, card) {
    Object.assign(this, {app, card, canvas: card.querySelector("canvas"), hint: card.querySelector(".hint"), summary: card.querySelector(".summary")});
    this.context = this.canvas.getContext("2d");
    new ResizeObserver(() => this.draw()).observe(this.canvas.parentNode);
    this.canvas.addEventListener("click", e => this.#click(e));
    this.canvas.addEventListener("keydown", e => this.#key(e));
  }

  load() {
    const {app} = this, parameters = {track: app.track.track, moment: app.moment(), width: 1024, ...filterOf(app.state)};
    this.#latest.run(signal => ask("segments", parameters, signal), answer => {
      this.answer = answer;
      this.card.dataset.moment = parameters.moment;
      this.#words();
      this.draw();
    });
  }

  #words() {
    const {answer} = this, {segments, more} = answer;
    this.summary.textContent = !answer.known ? "The recording has no segments: these are the runs of addresses in use." :
      `${counted(segments.length + (more?.segments ?? 0), "segment")}${answer.of_the_end ? " of the end, as the events do not include segments" : ""}, ${size(answer.reserved_bytes)} reserved: ${size(answer.live_bytes)} live, ` +
      `${answer.pending_bytes ? size(answer.pending_bytes) + " waiting for a stream, " : ""}${answer.inactive_bytes == null ? "an unknown part" : size(answer.inactive_bytes)} inactive`;
    this.hint.textContent = more?.segments ? `${counted(more.segments, "smaller segment")} of ${size(more.bytes)} together are left out.` : "";
    const table = build("table", ""), head = build("tr", "", ...["Address", "Size", "In use", "Largest gap", "Pool", "Stream"].map(t => element("th", "", t)));
    table.append(build("caption", "", "The largest segments"), head);
    for (const s of segments.toSorted((a, b) => b.bytes - a.bytes).slice(0, 20)) {
      table.append(build("tr", "", ...[s.address, size(s.bytes), size(s.used_bytes), s.largest_free_bytes == null ? "unknown" : size(s.largest_free_bytes), s.pool ?? "", String(s.stream ?? "")].map(t => element("td", "", t))));
    }
    this.canvas.replaceChildren(table);
  }

  // draw lays the segments in rows, the largest first, all in one scale.
  draw() {
    const {answer, canvas, context, app} = this, width = canvas.parentNode.clientWidth;
    if (!answer || !width) return;
    const segments = answer.segments.toSorted((a, b) => b.bytes - a.bytes || b.used_bytes - a.used_bytes), total = segments.reduce((sum, s) => sum + s.bytes, 0);
    const row = Math.max(segments[0]?.bytes ?? 1, total / 24), scale = width / row;
    this.#places = [];
    // A segment goes into the first row that has room; of many rows only the last ones are tried.
    const rows = [];
    for (const segment of segments) {
      const w = Math.max(3, segment.bytes * scale);
      let r = rows.findIndex((free, i) => i >= rows.length - 40 && width - free >= w);
      if (r < 0) r = rows.push(0) - 1;
      this.#places.push({x: rows[r], y: r * (segmentHeight + segmentGap), width: Math.min(w, width - rows[r]), segment});
      rows[r] += w + 3;
    }
    const height = Math.max(24, rows.length * (segmentHeight + segmentGap)), ratio = Math.min(2, devicePixelRatio || 1), css = app.palette.css;
    canvas.style.height = height + "px";
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.min(16384, Math.round(height * ratio));
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    const id = app.state.get("sel");
    let chosen = null;
    for (const place of this.#places) {
      const {x, y, width: w, segment} = place, to = w / segment.bytes;
      context.fillStyle = css.back;
      context.fillRect(x, y, w, segmentHeight);
      for (const [offset, bytes, state, allocation, line, kind, , used] of segment.blocks) {
        if (state === 0) continue;
        const left = x + offset * to, length = Math.max(0.5, bytes * to);
        const high = state === 3 ? Math.max(1, segmentHeight * used / bytes) : segmentHeight;
        context.fillStyle = state === 2 ? css.oom : state === 4 ? css.line : app.palette.style(line, kind);
        context.globalAlpha = state === 3 ? 0.75 : 1;
        context.fillRect(left, y + segmentHeight - high, length > 3 ? length - 0.75 : length, high);
        context.globalAlpha = 1;
        if (allocation === id) chosen = [left, y, length];
      }
      context.strokeStyle = css.quiet;
      context.lineWidth = 0.75;
      context.strokeRect(x + 0.5, y + 0.5, Math.max(1, w - 1), segmentHeight - 1);
    }
    if (chosen) {
      const [left, y, length] = chosen;
      context.fillStyle = css.card;
      context.fillRect(left - 2, y - 2, Math.max(6, length + 4), segmentHeight + 4);
      context.fillStyle = css.text;
      context.fillRect(left, y, Math.max(2, length), segmentHeight);
    }
    this.card.dataset.selected = chosen ? id : "";
  }

  #click(e) {
    const box = this.canvas.getBoundingClientRect(), x = e.clientX - box.left, y = e.clientY - box.top;
    const place = this.#places.find(p => x >= p.x && x <= p.x + p.width && y >= p.y && y <= p.y + segmentHeight);
    if (!place) return;
    const at = (x - place.x) / place.width * place.segment.bytes, near = 2 / place.width * place.segment.bytes;
    const live = place.segment.blocks.filter(b => b[3] >= 0);
    const block = live.find(b => at >= b[0] && at < b[0] + b[1]) ?? live.find(b => at >= b[0] - near && at < b[0] + b[1] + near);
    if (block) this.app.choose(this.app.moment(), block[3]);
  }

  // #key goes to the neighbouring block: by address, over all segments.
  #key(e) {
    const by = {ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1}[e.key];
    if (!by || !this.answer) return;
    e.preventDefault();
    const blocks = this.#places.flatMap(p => p.segment.blocks.filter(b => b[3] >= 0).map(b => b[3])), at = blocks.indexOf(this.app.state.get("sel"));
    const next = blocks[at < 0 ? by > 0 ? 0 : blocks.length - 1 : at + by];
    if (next != null) this.app.choose(this.app.moment(), next);
  }
}
