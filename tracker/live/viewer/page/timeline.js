// Timeline: single allocations as areas over time and height, with axes, levels, marks, the moment and the selection.

class Timeline {
  #wanted = 0;

  // app has the state, the track, the palette and the names that all views share.
  constructor(app, div) {
    this.app = app;
    this.canvas = div.querySelector("canvas");
    this.context = this.canvas.getContext("2d");
    this.tip = div.querySelector(".tip");
    this.pointer = null;
    this.levels = new Levels(app, () => { this.draw(); app.overview.draw(); });
    new ResizeObserver(() => this.draw()).observe(this.canvas);
    new Gestures(this);
  }

  // open shows another track, or the same one under another filter or axis.
  open() {
    this.tiles?.stop();
    const {track, state} = this.app, axis = this.app.axis();
    this.span = axis === "time" ? track.seconds : track.moments;
    this.top = Math.max(1, track.peak.bytes * 1.04, Math.min(track.reserved_peak_bytes ?? 0, track.peak.bytes * 1.2) * 1.01);
    this.filtered = Object.keys(filterOf(state)).length > 0;
    this.tiles = new Tiles({track: track.track, axis, ...filterOf(state)}, this.span, this.top, this.app.palette, () => this.draw());
    this.levels.open(this.span);
    this.draw();
  }

  // view is the window that the state has, within the recording.
  view() {
    const {state} = this.app, box = this.box(), {span, top} = this;
    const shortest = this.shortest();
    const window = (from, to, whole, least) => from == null || to == null || !(to > from) ? [0, whole] : within([from, Math.max(to, from + Math.min(least, whole))], [0, whole]);
    const [from, to] = window(state.get("from"), state.get("to"), span, shortest.time), [low, high] = window(state.get("low"), state.get("high"), top, shortest.bytes);
    return new View(from, to, low, high, box.width, box.height);
  }

  // look moves the view. A window that is the whole is left out of the address.
  look([from, to], [low, high]) {
    const whole = (a, b, most) => b - a >= most * (1 - 1e-9) ? [null, null] : [a, b].map(n => +n.toPrecision(12));
    [from, to] = whole(from, to, this.span);
    [low, high] = whole(low, high, this.top);
    this.app.state.set({from, to, low, high});
  }

  shortest() { return {time: this.app.axis() === "time" ? Math.max(1e-6, this.span * 2 ** -24) : Math.min(8, this.span), bytes: Math.min(64, this.top)}; }

  // box is where the areas are drawn, in pixels of the style sheet.
  box() {
    const width = this.canvas.clientWidth, height = this.canvas.clientHeight, narrow = width < 560;
    const left = narrow ? 0 : 70, bottom = 24;
    return {left, width: Math.max(1, width - left), height: Math.max(1, height - bottom), narrow};
  }

  draw() { this.#wanted ||= requestAnimationFrame(() => { this.#wanted = 0; this.#frame(); }); }

  #frame() {
    if (!this.tiles || !this.canvas.clientWidth) return;
    const ratio = Math.min(2, devicePixelRatio || 1), {canvas, context} = this, box = this.box(), css = this.app.palette.css;
    const pixels = [canvas.clientWidth * ratio, canvas.clientHeight * ratio].map(Math.round);
    if (canvas.width !== pixels[0] || canvas.height !== pixels[1]) [canvas.width, canvas.height] = pixels;
    const view = this.view();
    context.setTransform(ratio, 0, 0, ratio, 0, 0);
    context.clearRect(0, 0, canvas.clientWidth, canvas.clientHeight);
    context.font = `11px ${this.app.font}`;
    context.translate(box.left, 0);
    context.save();
    context.beginPath();
    context.rect(0, 0, box.width, box.height);
    context.clip();
    this.#grid(view);
    if (this.filtered) this.levels.area(context, view, css.line);
    this.shown = this.tiles.shown(view, ratio);
    this.#areas(view, ratio);
    this.levels.lines(context, view, css);
    this.#labels(view);
    drawSelection(this, view);
    this.#verticals(view);
    context.restore();
    this.#axes(view, box);
    if (this.shown.length) this.app.painted();
    this.canvas.dataset.whole = this.tiles.whole; // every tile of this view is there
    if (this.tiles.whole) this.app.ready();
    this.levels.want(view);
  }

  #areas(view, ratio) {
    const {context, tiles} = this;
    for (const {cell, tile} of this.shown) {
      const width = tiles.span / 2 ** cell.zx, height = tiles.top / 2 ** cell.zy;
      // What this cell shows of the tile, which may be a coarser one, in columns and rows.
      const sx = (cell.x * width - tile.x0) / (tile.x1 - tile.x0) * tile.columns, sw = width / (tile.x1 - tile.x0) * tile.columns;
      const sy = (tile.y1 - (cell.y + 1) * height) / (tile.y1 - tile.y0) * tile.rows, sh = height / (tile.y1 - tile.y0) * tile.rows;
      // Whole pixels of the screen: neither gaps nor seams between tiles.
      const snap = n => Math.round(n * ratio) / ratio;
      const x = snap(view.x(cell.x * width)), y = snap(view.y((cell.y + 1) * height));
      context.imageSmoothingEnabled = (snap(view.x((cell.x + 1) * width)) - x) * ratio < sw;
      context.drawImage(tile.bitmap, sx, sy, sw, sh, x, y, snap(view.x((cell.x + 1) * width)) - x, snap(view.y(cell.y * height)) - y);
    }
  }

  // #labels names the areas that are large enough, each allocation once.
  #labels(view) {
    const {context, app} = this, best = new Map();
    for (const {tile} of this.shown) {
      const column = (tile.x1 - tile.x0) / tile.columns;
      for (const i of tile.labels) {
        const left = Math.max(0, view.x(tile.x0 + tile.from[i] * column)), right = Math.min(view.width, view.x(tile.x0 + tile.to[i] * column));
        const top = Math.max(0, view.y(tile.offset[i] + tile.bytes[i])), bottom = Math.min(view.height, view.y(tile.offset[i]));
        if (right - left < 90 || bottom - top < 16) continue;
        const key = tile.id[i] === merged ? `${tile.line[i]} ${Math.round(top)}` : tile.id[i], known = best.get(key);
        if (!known || known.right - known.left < right - left) best.set(key, {left, right, top, bottom, tile, i});
      }
    }
    context.textBaseline = "middle";
    context.textAlign = "left";
    context.fillStyle = "#14171b";
    for (const {left, right, top, bottom, tile, i} of [...best.values()].slice(0, 80)) {
      const text = (tile.id[i] === merged ? `${number(tile.count[i])} × ` : "") + size(tile.bytes[i]) + "  " + baseName(app.names.line(tile.line[i]));
      context.fillText(fitting(context, text, right - left - 12), left + 6, (top + bottom) / 2);
    }
  }

  #grid(view) {
    const {context} = this;
    context.fillStyle = this.app.palette.css.line;
    for (const {at} of byteTicks(view.low, view.high, view.height / 60)) context.fillRect(0, Math.round(view.y(at)), view.width, 1);
  }

  #axes(view, box) {
    const {context, app} = this, css = app.palette.css;
    context.fillStyle = css.quiet;
    context.textBaseline = "middle";
    context.textAlign = box.narrow ? "left" : "right";
    for (const {at, label} of byteTicks(view.low, view.high, view.height / 60)) {
      const y = view.y(at);
      if (box.narrow && y > 10) chip(context, label, 4, y - 8, css);
      else if (!box.narrow && y > 4) context.fillText(label, -8, Math.min(y, view.height - 4));
    }
    context.textAlign = "center";
    context.textBaseline = "top";
    const step = Math.max(app.axis() === "time" ? 0 : 1, roundStep(view.to - view.from, view.width / 100)), label = app.momentLabel(step, view.to);
    context.fillStyle = css.line;
    context.fillRect(0, view.height, view.width, 1);
    for (const at of ticks(view.from, view.to, step, app.axis() === "time" ? 0 : app.track.first ?? 0)) {
      const x = view.x(at), text = label(at), half = context.measureText(text).width / 2;
      context.fillStyle = css.line;
      context.fillRect(Math.round(x), view.height, 1, 5);
      context.fillStyle = css.quiet;
      if (x + half <= view.width + 1) context.fillText(text, Math.max(x, half), view.height + 8);
    }
  }

  // #verticals draws marks, refusals and the moment.
  #verticals(view) {
    const {context, app} = this, css = app.palette.css, {track} = app;
    const line = (at, style, dash, width, label) => {
      const x = Math.round(view.x(at));
      if (!(x >= -1 && x <= view.width + 1)) return;
      context.strokeStyle = context.fillStyle = style;
      context.lineWidth = width;
      context.setLineDash(dash);
      context.beginPath();
      context.moveTo(x + 0.5, 0);
      context.lineTo(x + 0.5, view.height);
      context.stroke();
      context.setLineDash([]);
      if (label) chip(context, label, Math.min(x + 5, view.width - context.measureText(label).width - 12), 4, css);
    };
    const place = m => app.axis() === "time" ? m.seconds : m.moment;
    for (const m of track.marks ?? []) line(place(m), css.quiet, [3, 4], 1, null);
    for (const m of track.ooms ?? []) line(place(m), css.oom, [], 1.5, "out of memory");
    const peak = place(track.peak);
    context.fillStyle = css.text;
    if (!this.filtered && peak >= view.from && peak <= view.to) {
      context.beginPath();
      context.arc(view.x(peak), view.y(track.peak.bytes), 3.5, 0, 7);
      context.fill();
    }
    const at = app.place();
    if (at == null) return;
    line(at, css.accent, [], 1.5, null);
    const x = view.x(at);
    context.fillStyle = css.accent;
    context.beginPath();
    context.moveTo(x - 6, 0); context.lineTo(x + 7, 0); context.lineTo(x + 0.5, 9);
    context.fill();
  }

  // place returns where an event of the mouse is: pixels within the areas, time and bytes.
  place(event) {
    const bounds = this.canvas.getBoundingClientRect(), box = this.box(), view = this.view();
    const x = event.clientX - bounds.left - box.left, y = event.clientY - bounds.top;
    return {x, y, view, time: view.time(x), bytes: view.bytes(y), inside: x >= 0 && y >= 0 && x <= box.width && y <= box.height};
  }

  // choose sets the moment to that of a place, and selects the allocation there.
  async choose({time, bytes, view}) {
    const hit = this.tiles.at(this.shown ?? [], time, bytes), {app} = this;
    const moment = hit ? hit.tile.moment[hit.column] : await app.momentAt(time);
    const exact = app.axis() === "time" || (view.to - view.from) / view.width > 1 ? moment : Math.floor(time);
    if (hit && hit.item >= 0 && hit.tile.id[hit.item] !== merged) {
      app.choose(exact, hit.tile.id[hit.item]);
      return;
    }
    try {
      const found = hit && hit.item >= 0 ? await ask("bands", {track: app.track.track, moment, y0: bytes, y1: bytes, limit: 1, ...filterOf(app.state)}) : {items: []};
      app.choose(moment, found.items[0]?.allocation ?? null);
    } catch (error) {
      reportError(error);
    }
  }

  // hover names what is under the mouse.
  hover(place) {
    const hit = place?.inside ? this.tiles?.at(this.shown ?? [], place.time, place.bytes) : null;
    this.tip.hidden = !hit || hit.item < 0;
    if (this.tip.hidden) return;
    const {tile, item} = hit, {names} = this.app, single = tile.id[item] !== merged;
    this.tip.replaceChildren(
      element("b", "", single ? size(tile.bytes[item]) : `${counted(tile.count[item], "allocation")}, ${size(tile.bytes[item])}`), " ",
      element("span", "quiet", names.kind(tile.kind[item])), element("div", "code", names.line(tile.line[item])),
      element("div", "quiet", single ? "" : "is the largest of them; zoom in to see each"));
    const box = this.box(), left = Math.min(place.x + box.left + 14, this.canvas.clientWidth - this.tip.offsetWidth - 4);
    this.tip.style.left = Math.max(4, left) + "px";
    this.tip.style.top = Math.min(place.y + 16, this.canvas.clientHeight - this.tip.offsetHeight - 4) + "px";
  }
}

// fitting shortens a text to a width.
function fitting(context, text, width) {
  if (context.measureText(text).width <= width) return text;
  const part = Math.floor(text.length * width / context.measureText(text).width) - 1;
  return part < 4 ? "" : text.slice(0, part) + "…";
}

// chip writes a text on a plain ground.
function chip(context, text, x, y, css) {
  const width = context.measureText(text).width + 8;
  context.globalAlpha = 0.85;
  context.fillStyle = css.card;
  context.fillRect(x - 1, y, width, 16);
  context.globalAlpha = 1;
  context.fillStyle = css.text;
  context.textAlign = "left";
  context.textBaseline = "middle";
  context.fillText(text, x + 3, y + 8);
}

// drawSelection outlines the selected allocation in the tiles that have it as an item, and marks where it begins.
function drawSelection({context, shown, app}, view) {
  const {selected} = app, id = app.state.get("sel");
  if (id == null) return;
  const css = app.palette.css;
  let seen = false;
  context.lineWidth = 1.5;
  for (const pass of ["outline", "fill"]) {
    for (const {tile} of shown) {
      const column = (tile.x1 - tile.x0) / tile.columns;
      for (let i = 0; i < tile.items; i++) {
        if (tile.id[i] !== id) continue;
        seen = true;
        const x = view.x(tile.x0 + tile.from[i] * column), y = view.y(tile.offset[i] + tile.bytes[i]);
        const width = Math.max(1.5, view.x(tile.x0 + tile.to[i] * column) - x), height = Math.max(1.5, view.y(tile.offset[i]) - y);
        context.fillStyle = pass === "fill" ? css.text : css.card;
        if (pass === "outline") context.fillRect(x - 2, y - 2, width + 4, height + 4);
        else context.fillRect(x, y, width + 0.5, height); // no seam between tiles
      }
    }
  }
  const born = selected && (app.axis() === "time" ? selected.born_seconds ?? 0 : selected.born);
  if (seen || !selected || selected.allocation !== id || born == null) return;
  // It is lower than a pixel here: an arrow points at where it begins.
  const x = view.x(born), y = view.y(selected.offset_born);
  context.fillStyle = css.accent;
  context.strokeStyle = css.card;
  context.beginPath();
  context.moveTo(x, y); context.lineTo(x - 5, y - 10); context.lineTo(x + 5, y - 10); context.closePath();
  context.fill();
  context.stroke();
}
