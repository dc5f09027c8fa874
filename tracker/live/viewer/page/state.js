// State: what the page shows. There is one, every view draws it, and the address holds all of it, so that a copied address
// shows the same.

const stateNumbers = ["from", "to", "low", "high", "at", "sel", "min_bytes", "max_bytes", "min_life", "max_life"];
const stateTexts = ["track", "axis", "colour", "text", "kind", "line", "line_name", "frame", "weight", "rows", "sort"];

const oneOf = (...words) => text => words.includes(text);
const wholeUpTo = most => text => /^\d+$/.test(text) && +text <= most;
const positive = text => +text >= 0 && +text <= 1e18;

// stateForms say what the values of an address may be. An address may be cut, or written by hand: a value that is wrong counts as
// left out, so that the rest is shown.
const stateForms = {
  axis: oneOf("event", "time"), colour: oneOf("line", "kind"), weight: oneOf("live", "lifetime"),
  rows: oneOf("line", "stack", "kind", "size", "allocations", "window"),
  kind: wholeUpTo(2 ** 16 - 1), line: wholeUpTo(2 ** 32 - 1), sel: wholeUpTo(2 ** 31 - 1), frame: text => /^\d{1,9}:\d{1,6}$/.test(text),
  min_bytes: positive, max_bytes: positive, min_life: positive, max_life: positive,
};

// A State holds values by name; what is null has its default.
//
//   track            the device of a file that the large timeline shows
//   axis             "event" (default) or "time"
//   from, to         the window of time; low, high that of height, in bytes
//   at               the moment of the segments, of live bytes and of the table
//   sel              the selected allocation
//   line, frame      or the selected line of code, or frame of the flame graph ("stack:depth"): all that was allocated there
//   line_name        the line's name: in another run of the program, its number may be another line's
//   text, kind, min_bytes, max_bytes, min_life, max_life   the filter
//   colour           what colours mean: "line" (default) or "kind"
//   weight           what the flame graph sums: "live" (default) or "lifetime"
//   rows, sort       what the rows of the table are, and their order
class State {
  #values = {};
  #listeners = [];
  #changed = null;
  #timer = 0;

  constructor() {
    this.#read();
    addEventListener("hashchange", () => this.#read());
  }

  get(name) { return this.#values[name] ?? null; }

  // set changes values. The listeners are called once, before the next frame, with the names of all that changed until then.
  set(values) {
    for (const [name, value] of Object.entries(values)) {
      if ((value ?? null) === this.get(name)) continue;
      this.#values[name] = value ?? null;
      this.#changed ?? requestAnimationFrame(() => this.#announce());
      (this.#changed ??= new Set()).add(name);
    }
  }

  listen(f) { this.#listeners.push(f); }

  #announce() {
    const changed = this.#changed;
    this.#changed = null;
    for (const f of this.#listeners) f(changed);
    // Browsers refuse many changes of the address in a short time, and a drag makes one for each frame.
    this.#timer ||= setTimeout(() => { this.#timer = 0; this.write(); }, 200);
  }

  // write puts the state into the address.
  write() {
    const query = new URLSearchParams();
    for (const name of [...stateTexts, ...stateNumbers]) if (this.get(name) != null) query.set(name, this.get(name));
    if (location.hash.slice(1) !== String(query)) history.replaceState(null, "", "#" + query);
  }

  #read() {
    const query = new URLSearchParams(location.hash.slice(1)), values = {};
    const valid = name => { const text = query.get(name); return text && (stateForms[name]?.(text) ?? true) ? text : null; };
    for (const name of stateTexts) values[name] = valid(name);
    for (const name of stateNumbers) {
      const n = Number(valid(name) ?? NaN);
      values[name] = Number.isFinite(n) ? n : null;
    }
    this.set(values);
  }
}

// filterOf returns the parameters of a request for what passes the filter and, unless it is left out, the selected line or frame.
function filterOf(state, selected = true) {
  const filter = {};
  for (const name of ["text", "kind", "min_bytes", "max_bytes", "min_life", "max_life"]) if (state.get(name) != null) filter[name] = state.get(name);
  if (!selected) return filter;
  if (state.get("line") != null) filter.line = state.get("line");
  const [stack, depth] = state.get("frame")?.split(":") ?? [];
  if (depth) Object.assign(filter, {stack, depth});
  return filter;
}

const filterNames = ["text", "kind", "min_bytes", "max_bytes", "min_life", "max_life", "line", "frame"];
