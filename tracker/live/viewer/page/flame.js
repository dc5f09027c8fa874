// Flame graph: the call stacks that hold memory, at the moment or over the window (bytes times lifetime), as boxes below their callers.

class Flame {
  #latest = new Latest();
  #pathLatest = new Latest();
  #path = [];  // the places from the outermost frame to the call site of the selected allocation
  #lines = []; // by depth the boxes, from the left to the right

  constructor(app, card) {
    Object.assign(this, {app, card, div: card.querySelector("#flame"), hint: card.querySelector(".hint")});
    this.div.addEventListener("keydown", e => this.#key(e));
    new ResizeObserver(() => this.draw()).observe(this.div);
  }

  load() {
    const {app} = this, {state} = app, weight = state.get("weight") ?? "live", parameters = {track: app.track.track, weight, limit: 2000, ...filterOf(state, false)};
    if (weight === "live") parameters.moment = app.moment();
    else Object.assign(parameters, app.window());
    this.#latest.run(signal => ask("flame", parameters, signal), answer => {
      this.answer = answer;
      this.card.dataset.key = weight === "live" ? String(parameters.moment) : `${parameters.x0} ${parameters.x1}`;
      this.draw();
    });
  }

  // loadPath finds the frames of the selected allocation.
  loadPath(id) {
    if (id == null) {
      this.#pathLatest.stop();
      this.#path = [];
      this.draw();
      return;
    }
    const {track} = this.app;
    this.#pathLatest.run(signal => ask("flame", {track: track.track, weight: "lifetime", x0: 0, x1: track.moments, allocation: id}, signal), answer => {
      this.#path = [];
      for (let n = answer.root.children[0]; n; n = n.children?.[0]) this.#path.push(placeOf(n));
      this.draw();
    }, () => { this.#path = []; });
  }

  text(value) {
    const {unit} = this.answer;
    return size(Math.round(value)) + ({byte_seconds: " s", byte_events: " events"}[unit] ?? "");
  }

  draw() {
    const {div, answer, app} = this, width = div.clientWidth;
    if (!answer || !width) return;
    const had = div.contains(document.activeElement) ? document.activeElement.dataset.key : null, frame = app.state.get("frame");
    this.#lines = [];
    const chain = pathTo(answer.root, frame) ?? [answer.root]; // from the root to the selected frame, which is looked at closer
    const box = (n, left, w, depth, parents, onPath) => {
      const b = element("button", "box");
      b.type = "button";
      b.style.left = left + "px"; b.style.width = w + "px"; b.style.top = depth * 21 + "px";
      const key = frameKey(n);
      b.style.background = depth === 0 ? "#cbd5e1" : n.stack == null ? "#d7dbe0" : `hsl(${18 + hue(n.name)} ${depth < chain.length - 1 ? 30 : 82}% 70%)`;
      b.classList.toggle("on-path", onPath);
      b.classList.toggle("chosen", key != null && key === frame);
      b.title = `${placeOf(n)}\n${this.text(n.value)} · ${counted(n.count, "allocation")} · ${(100 * n.value / (answer.total || 1)).toFixed(1)} %`;
      b.setAttribute("aria-label", b.title);
      b.setAttribute("aria-pressed", b.classList.contains("chosen"));
      b.dataset.key = [...parents, n].map(placeOf).join("\n");
      b.tabIndex = -1;
      if (w > 30) b.textContent = (w > 260 ? placeOf(n) : n.name) + (w > 140 ? "  " + this.text(n.value) : "");
      b.onclick = () => this.#choose(n, parents, key);
      (this.#lines[depth] ??= []).push({b, left, right: left + w});
    };
    const below = (n, left, w, depth, parents, onPath) => {
      box(n, left, w, depth, parents, onPath);
      for (const c of n.children ?? []) {
        const cw = n.value ? w * c.value / n.value : 0;
        if (cw >= 1) below(c, left, cw, depth + 1, [...parents, n], onPath && this.#path[depth] === placeOf(c));
        left += cw;
      }
    };
    const path = this.#path.length > 0, on = depth => path && chain.slice(1, depth + 1).every((n, i) => placeOf(n) === this.#path[i]);
    chain.slice(0, -1).forEach((n, i) => box(n, 0, width, i, chain.slice(0, i), on(i)));
    below(chain.at(-1), 0, width, chain.length - 1, chain.slice(0, -1), on(chain.length - 1));
    const boxes = this.#lines.flat().map(p => p.b);
    div.replaceChildren(...boxes);
    div.style.height = this.#lines.length * 21 + "px";
    const first = boxes.find(b => b.dataset.key === had) ?? this.#lines[chain.length - 1][0].b;
    first.tabIndex = 0;
    if (had != null) first.focus({preventScroll: true});
    this.hint.textContent = answer.total ? `Width is ${answer.unit === "bytes" ? "bytes" : "bytes times the part of each lifetime in the window"}. Click a frame to select all that it allocated and look closer; the top one to go back.` :
      "Nothing here passes the filter.";
    this.card.dataset.path = this.#path.length ? boxes.filter(b => b.classList.contains("on-path")).length : "";
  }

  // #choose selects what a frame allocated. The root selects everything again.
  #choose(n, parents, key) {
    if (n.stack != null || !parents.length) this.app.state.set({frame: parents.length ? key : null, line: null, sel: null});
  }

  #key(e) {
    const lines = this.#lines, depth = lines.findIndex(line => line.some(p => p.b === document.activeElement));
    if (depth < 0) return;
    const i = lines[depth].findIndex(p => p.b === document.activeElement), here = lines[depth][i];
    const to = {
      ArrowLeft: () => lines[depth][i - 1], ArrowRight: () => lines[depth][i + 1],
      ArrowUp: () => lines[depth - 1]?.find(p => p.left <= here.left + 0.5 && p.right >= here.right - 0.5),
      ArrowDown: () => lines[depth + 1]?.find(p => p.left >= here.left - 0.5 && p.right <= here.right + 0.5),
      Escape: () => this.app.state.set({frame: null}),
    }[e.key];
    if (!to) return;
    e.preventDefault();
    e.stopPropagation();
    const next = to();
    if (!next) return;
    here.b.tabIndex = -1;
    next.b.tabIndex = 0;
    next.b.focus();
  }
}

// placeOf tells a frame from others of its function.
const placeOf = n => n.place ?? n.name;

const frameKey = n => n.stack == null ? null : `${n.stack}:${n.depth}`;

// pathTo returns the nodes from one to that of a key below it, or nothing.
function pathTo(node, key) {
  if (key == null) return null;
  if (frameKey(node) === key && node.depth > 0) return [node];
  for (const child of node.children ?? []) {
    const path = pathTo(child, key);
    if (path) return [node, ...path];
  }
  return null;
}

// hue gives equal names equal colours.
function hue(text) {
  let h = 0;
  for (const c of text) h = Math.imul(h, 31) + c.codePointAt(0) >>> 0;
  return h % 70;
}
