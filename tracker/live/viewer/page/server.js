// Server: requests to the program that serves this page, and the layout of its binary answers (see the package's doc.go).

// ask returns the JSON of a route. An answer that is an error throws what it says.
async function ask(route, parameters = {}, signal) {
  return (await request(route, parameters, signal)).json();
}

async function request(route, parameters, signal) {
  const query = new URLSearchParams();
  for (const [name, value] of Object.entries(parameters)) if (value != null) query.set(name, value);
  const answer = await fetch(`api/${route}?${query}`, {cache: "no-store", signal});
  if (!answer.ok) throw Object.assign(new Error((await answer.text()).trim() || answer.statusText), {status: answer.status});
  return answer;
}

// A Latest runs one request at a time for a view: a new one ends the one before it, whose answer nobody wants any more.
class Latest {
  #controller = null;

  // run calls f with a signal, then done with its result, unless run was called again meanwhile. An error goes to failed.
  async run(f, done, failed = reportError) {
    this.#controller?.abort();
    const controller = this.#controller = new AbortController();
    try {
      const value = await f(controller.signal);
      if (!controller.signal.aborted) done(value);
    } catch (error) {
      if (!controller.signal.aborted) failed(error);
    }
  }

  stop() { this.#controller?.abort(); }
}

const merged = 0xffffffff; // the id of an item that stands for several allocations

// askTile returns a tile: typed arrays by the names that doc.go gives them.
async function askTile(parameters, signal) {
  return decodeTile(await (await request("tile", parameters, signal)).arrayBuffer());
}

function decodeTile(buffer) {
  const view = new DataView(buffer);
  if (buffer.byteLength < 48 || view.getUint32(0, true) !== 0x31544d47) throw new Error("the answer is not a tile");
  const columns = view.getUint32(4, true), rows = view.getUint32(8, true), items = view.getUint32(12, true);
  const tile = {columns, rows, items, x0: view.getFloat64(16, true), x1: view.getFloat64(24, true), y0: view.getFloat64(32, true), y1: view.getFloat64(40, true)};
  let at = 48;
  const take = (type, names, n) => {
    for (const name of names) {
      tile[name] = new type(buffer, at, n);
      at += Math.ceil(n * type.BYTES_PER_ELEMENT / 8) * 8;
    }
  };
  take(Float64Array, ["level", "passed_bytes"], columns);
  take(Float64Array, ["offset", "bytes"], items);
  take(Uint32Array, ["moment", "passed"], columns);
  take(Uint32Array, ["from", "to", "count", "id", "line", "kind"], items);
  return tile;
}

// Names are those of lines and kinds by their ids. What is not known yet is "", and is asked for, many at a time; changed is called
// when the answer is there.
class Names {
  #known = {lines: new Map(), kinds: new Map()};
  #wanted = {lines: [], kinds: []};
  #asking = false;

  constructor(changed) { this.changed = changed; }

  add(what, id, name) { this.#known[what].set(id, name); }
  line(id) { return this.#name("lines", id); }
  kind(id) { return this.#name("kinds", id); }

  #name(what, id) {
    const name = this.#known[what].get(id);
    if (name !== undefined) return name;
    this.add(what, id, "");
    this.#wanted[what].push(id);
    if (!this.#asking) {
      this.#asking = true;
      setTimeout(() => this.#ask(), 20);
    }
    return "";
  }

  async #ask() {
    try {
      while (this.#wanted.lines.length || this.#wanted.kinds.length) {
        const [lines, kinds] = ["lines", "kinds"].map(what => this.#wanted[what].splice(0, 512).join(",") || null);
        const answer = await ask("names", {lines, kinds});
        for (const what of ["lines", "kinds"]) for (const [id, name] of Object.entries(answer[what] ?? {})) this.add(what, +id, name);
        this.changed();
      }
    } catch (error) {
      reportError(error);
    }
    this.#asking = false;
  }
}

// reportError shows an error that the page can go on after.
function reportError(error) {
  const card = byID("problem");
  card.textContent = error instanceof TypeError ? "The program that serves this page does not answer: it has ended, or the network is down." : error.message;
  card.hidden = false;
}
