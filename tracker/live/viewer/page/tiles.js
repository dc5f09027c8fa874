// Tiles: the recording cut into pieces by zoom. Level (zx, zy) has 2^zx pieces of time and 2^zy of height. A piece is asked for when
// it is first seen, painted once into a bitmap, and then only copied, so that a frame costs the same however many allocations there are.

const tileColumns = 512, tileRows = 512, mostTiles = 72, mostRequests = 4;

class Tiles {
  #known = new Map();    // by key, the least recently drawn first
  #running = new Map();  // by key, the controllers of the requests under way
  #wanted = [];

  // parameters are those of the requests; span and top the whole of time and height; changed is called when a tile arrives.
  constructor(parameters, span, top, palette, changed) {
    Object.assign(this, {parameters, span, top, palette, changed});
    this.deepest = Math.max(0, Math.min(40, Math.ceil(Math.log2(span / (parameters.axis === "time" ? span * 2 ** -24 : 16)))));
    this.failed = null;
  }

  // level returns the level whose tiles have at least the pixels of a view.
  level(view, ratio) {
    const zx = Math.ceil(Math.log2(this.span / (view.to - view.from) * view.width * ratio / tileColumns) - 0.01);
    const zy = Math.ceil(Math.log2(this.top / (view.high - view.low) * view.height * ratio / tileRows) - 0.01);
    return [Math.min(this.deepest, Math.max(0, zx)), Math.min(30, Math.max(0, zy))];
  }

  // cells returns the keys of a level's tiles that a view shows, those nearest to its middle first.
  cells(view, [zx, zy]) {
    const width = this.span / 2 ** zx, height = this.top / 2 ** zy, cells = [];
    const last = (n, size) => Math.min(2 ** size - 1, Math.ceil(n) - 1);
    for (let x = Math.max(0, Math.floor(view.from / width)); x <= last(view.to / width, zx); x++) {
      for (let y = Math.max(0, Math.floor(view.low / height)); y <= last(view.high / height, zy); y++) {
        const away = Math.abs((x + 0.5) * width - (view.from + view.to) / 2) / width + Math.abs((y + 0.5) * height - (view.low + view.high) / 2) / height;
        cells.push({zx, zy, x, y, away, key: `${zx}/${x}/${zy}/${y}`});
      }
    }
    return cells.sort((a, b) => a.away - b.away);
  }

  // shown returns what to copy for a view: of each cell its tile, or until it is there the part of a coarser one. It asks for what is missing.
  shown(view, ratio) {
    const cells = this.cells(view, this.level(view, ratio)), list = [];
    this.whole = true;
    for (const cell of cells) {
      const tile = this.#use(cell.key);
      if (!tile) this.whole = false;
      const found = tile ?? this.#coarser(cell);
      if (found) list.push({cell, tile: found});
    }
    const missing = cells.filter(c => !this.#known.has(c.key));
    const base = {zx: 0, zy: 0, x: 0, y: 0, key: "0/0/0/0"}; // it stands in for all others
    this.#wanted = this.#known.has(base.key) || missing.some(c => c.key === base.key) ? missing : [...missing, base];
    for (const [key, controller] of this.#running) if (!this.#wanted.some(c => c.key === key)) controller.abort();
    this.#next();
    return list;
  }

  #use(key) {
    const tile = this.#known.get(key);
    if (tile) {
      this.#known.delete(key);
      this.#known.set(key, tile);
    }
    return tile;
  }

  #coarser({zx, zy, x, y}) {
    for (let up = 1; up <= zx + zy; up++) {
      for (let ux = Math.min(up, zx); ux >= Math.max(0, up - zy); ux--) {
        const uy = up - ux, tile = this.#known.get(`${zx - ux}/${Math.floor(x / 2 ** ux)}/${zy - uy}/${Math.floor(y / 2 ** uy)}`);
        if (tile) return tile;
      }
    }
  }

  #next() {
    for (const cell of this.#wanted) {
      if (this.#running.size >= mostRequests) return;
      if (!this.#running.has(cell.key)) this.#ask(cell);
    }
  }

  async #ask(cell) {
    const controller = new AbortController(), width = this.span / 2 ** cell.zx, height = this.top / 2 ** cell.zy;
    this.#running.set(cell.key, controller);
    try {
      const tile = await askTile({...this.parameters, x0: cell.x * width, x1: Math.min(this.span, (cell.x + 1) * width), y0: cell.y * height, y1: (cell.y + 1) * height,
        columns: tileColumns, rows: tileRows}, controller.signal);
      tile.paint = () => paintTile(tile, this.palette);
      tile.paint();
      this.#known.set(cell.key, tile);
      for (const key of this.#known.keys()) {
        if (this.#known.size <= mostTiles) break;
        if (key !== "0/0/0/0") this.#known.delete(key);
      }
      this.failed = null;
      this.changed();
    } catch (error) {
      if (!controller.signal.aborted) {
        this.failed = error;
        this.#wanted = [];
        reportError(error);
      }
    }
    this.#running.delete(cell.key);
    this.#next();
  }

  // repaint paints all tiles again: colours have changed.
  repaint() { for (const tile of this.#known.values()) tile.paint(); }

  // stop ends the requests: nobody looks at these tiles any more.
  stop() {
    this.#wanted = [];
    for (const controller of this.#running.values()) controller.abort();
  }

  // at returns the finest known tile at a place, and the number of the item there, or -1.
  at(list, time, bytes) {
    for (const {cell, tile} of list) {
      const width = this.span / 2 ** cell.zx, height = this.top / 2 ** cell.zy;
      if (time < cell.x * width || time >= (cell.x + 1) * width || bytes < cell.y * height || bytes >= (cell.y + 1) * height) continue;
      const column = columnOf(tile, time);
      for (let i = 0; i < tile.items; i++) {
        if (tile.from[i] > column) break; // they are in the order of from
        if (tile.to[i] > column && tile.offset[i] <= bytes && tile.offset[i] + tile.bytes[i] > bytes) return {tile, column, item: i};
      }
      return {tile, column, item: -1};
    }
    return null;
  }
}

const columnOf = (tile, time) => Math.min(tile.columns - 1, Math.max(0, Math.floor((time - tile.x0) / (tile.x1 - tile.x0) * tile.columns)));

// paintTile paints a tile's items into its bitmap, a pixel for each column and row. The upper edge of what is high enough is darker.
function paintTile(tile, palette) {
  const {columns, rows, y0, y1} = tile, scale = rows / (y1 - y0);
  tile.bitmap ??= Object.assign(document.createElement("canvas"), {width: columns, height: rows});
  const context = tile.bitmap.getContext("2d"), image = context.createImageData(columns, rows), pixels = new Uint32Array(image.data.buffer);
  const clamp = row => Math.min(rows, Math.max(0, row));
  for (let i = 0; i < tile.items; i++) {
    const pixel = palette.pixel(tile.line[i], tile.kind[i], tile.id[i]), from = tile.from[i], to = tile.to[i];
    const end = (tile.offset[i] + tile.bytes[i] - y0) * scale, top = rows - Math.round(end);
    const bottom = clamp(rows - Math.round((tile.offset[i] - y0) * scale));
    let row = clamp(top);
    if (bottom - row >= 4 && top >= 0) {
      pixels.fill(darker(pixel), row * columns + from, row * columns + to);
      row++;
    }
    for (; row < bottom; row++) pixels.fill(pixel, row * columns + from, row * columns + to);
  }
  context.putImageData(image, 0, 0);
  tile.labels ??= largeItems(tile);
}

// largeItems returns the items that are large enough for a text.
function largeItems(tile) {
  const large = [], scale = tile.rows / (tile.y1 - tile.y0);
  for (let i = 0; i < tile.items && large.length < 400; i++) {
    if (tile.to[i] - tile.from[i] >= 40 && tile.bytes[i] * scale >= 9) large.push(i);
  }
  return large;
}
