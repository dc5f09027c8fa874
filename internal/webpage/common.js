"use strict";
const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

// size prints bytes in binary units, as the module's alloc.Bytes does.
function size(bytes) {
  if (bytes == null) return "–";
  let unit = 0, n = Math.abs(bytes);
  if (n >= 1024) { n /= 1024; unit = 1; }
  while (n >= 1023.95 && unit < units.length - 1) { n /= 1024; unit++; }
  return (bytes < 0 ? "-" : "") + (unit ? oneDecimal(n) : n) + " " + units[unit];
}

// oneDecimal rounds halves to the even digit, as Go does.
function oneDecimal(n) {
  const tenths = n * 10;
  let whole = Math.round(tenths);
  if (tenths % 1 === 0.5 && whole % 2) whole--;
  return (whole / 10).toFixed(1);
}

const buffers = n => n === 1 ? "1 buffer" : n + " buffers";

// colour returns a colour of the style sheet, which depends on light and dark.
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

const kindColours = {
  Parameter: "--parameter", Gradient: "--gradient", OptimizerState: "--optimizer", Activation: "--activation",
  Input: "--input", Temporary: "--temporary", Tensor: "--tensor",
  "freed, still used": "--driver", "not named": "--tensor",
};

// kindColour names the colour of a kind; a program's own kinds have theirs by name.
function kindColour(kind) {
  if (kindColours[kind]) return kindColours[kind];
  if (kind.startsWith("other ") || kind.startsWith("all ")) return "--tensor";
  let hash = 0;
  for (const c of kind) hash = (hash * 31 + c.codePointAt(0)) >>> 0;
  return "--own-" + hash % 6;
}

// byKind orders kinds as reports do: those that every program has, then its own by name, then what stands for several.
function byKind(a, b) {
  const known = ["Tensor", ...Object.keys(kindColours)];
  const rank = kind => kind.startsWith("other ") || kind.startsWith("all ") ? 2 * known.length : (known.indexOf(kind) + 1 || known.length + 1);
  return rank(a) - rank(b) || (a < b ? -1 : a > b ? 1 : 0);
}

// element makes an element with a class and a text.
function element(tag, className, text) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  if (text != null) e.textContent = text;
  return e;
}

// MemoryChart draws memory over time: layers as areas on top of each other, and
// lines. Its legend shows the values under the pointer, else those of the place rest or the last ones, and
// switches each on and off.
class MemoryChart {
  // options: seconds (prints a time), and perhaps steps (between its ticks) and hooks for uPlot.
  constructor(div, options) {
    this.options = options;
    this.canvas = element("div", "plot");
    this.legend = element("ul", "legend");
    div.replaceChildren(this.canvas, this.legend);
    div.chart = this;
    this.hidden = new Set();
    this.at = null;
  }

  // show draws seconds, layers ({name, colour, bytes}, bottom first) and lines ({name, colour, dash, bytes, hidden}).
  show(data) {
    const names = JSON.stringify([data.layers, data.lines].map(list => list.map(s => s.name)));
    const known = names === this.names && this.plot;
    if (!known && names !== this.names) {
      this.names = names;
      for (const line of data.lines) if (line.hidden) this.hidden.add(line.name);
    }
    this.data = data;
    if (known) this.plot.setData(this.columns()); else this.draw();
    this.label();
  }

  shown() { return this.data.layers.filter(layer => !this.hidden.has(layer.name)); }

  // columns are uPlot's: the layers that are shown, each on top of those before, the highest first.
  columns() {
    const sum = new Array(this.data.seconds.length).fill(0), stacked = [];
    for (const layer of this.shown()) stacked.unshift(layer.bytes.map((b, i) => b == null ? null : sum[i] += b));
    return [this.data.seconds, ...stacked, ...this.data.lines.map(line => line.bytes)];
  }

  draw() {
    if (!this.data) return;
    if (this.plot) this.plot.destroy();
    const width = this.canvas.clientWidth, quiet = colour("--quiet"), rule = colour("--line");
    const axis = {stroke: quiet, grid: {stroke: rule, width: 1}, ticks: {stroke: rule, width: 1}};
    const series = {paths: uPlot.paths.stepped({align: 1}), points: {show: false}};
    const fill = layer => colour(layer.colour);
    this.plot = new uPlot({
      width, height: width < 600 ? 220 : 300,
      legend: {show: false}, cursor: {points: {show: false}},
      scales: {x: {time: false}, y: {range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1]}},
      axes: [
        {...axis, space: 70, incrs: this.options.steps, values: (u, ticks) => ticks.map(this.options.seconds)},
        {...axis, size: 76, incrs: sizeSteps, values: sizeTicks},
      ],
      series: [
        {},
        ...this.shown().toReversed().map(layer => ({...series, label: layer.name, fill: fill(layer), stroke: fill(layer), width: 0.5})),
        ...this.data.lines.map(line => ({...series, label: line.name, stroke: colour(line.colour), dash: line.dash, width: 1.5,
          spanGaps: !line.gaps, show: !this.hidden.has(line.name)})),
      ],
      hooks: {...this.options.hooks, setCursor: [u => { this.at = u.cursor.idx ?? null; this.label(); }]},
    }, this.columns(), this.canvas);
  }

  // label writes the legend.
  label() {
    const at = this.at ?? this.rest ?? this.data.seconds.length - 1;
    const all = [...this.data.lines, ...this.data.layers.toReversed()];
    if (this.legend.children.length !== all.length || this.labelled !== this.names) {
      this.labelled = this.names;
      this.legend.replaceChildren(...all.map(s => {
        const li = element("li"), button = element("button", "plain");
        const mark = element("i", this.data.lines.includes(s) ? "stroke" : "");
        mark.style.background = `var(${s.colour})`;
        button.append(mark, s.name + " ", element("b"));
        button.onclick = () => {
          if (!this.hidden.delete(s.name)) this.hidden.add(s.name);
          this.draw();
          this.label();
        };
        li.append(button);
        return li;
      }));
    }
    all.forEach((s, i) => {
      const button = this.legend.children[i].firstChild;
      let known = at;
      if (!s.gaps) while (known > 0 && s.bytes[known] == null) known--;
      button.lastChild.textContent = size(s.bytes[known]);
      button.setAttribute("aria-pressed", !this.hidden.has(s.name));
    });
  }
}

// sizeSteps are the distances that ticks may have: round ones of the axis's unit.
function sizeSteps(u, axis, low, high) {
  const unit = unitOf(high), steps = [1, 2, 5, 10, 20, 50, 100, 200, 500];
  return (unit > 1 ? [0.1, 0.2, 0.5, ...steps] : steps).map(n => n * unit);
}

// unitOf returns the unit in which that many bytes are printed.
const unitOf = bytes => bytes < 1024 ? 1 : 1024 ** Math.min(units.length - 1, Math.floor(Math.log2(bytes) / 10));

function sizeTicks(u, ticks) {
  const unit = unitOf(ticks.at(-1)), name = units[Math.round(Math.log2(unit) / 10)];
  return ticks.map(t => (unit > 1 ? (t / unit).toFixed(1) : t) + " " + name);
}

// onChange redraws when the window or the colours change.
function onChange(draw) {
  let pending;
  addEventListener("resize", () => { cancelAnimationFrame(pending); pending = requestAnimationFrame(draw); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
}
