// Scales: which window of the recording a panel shows, where it lies on the screen, and the ticks of its axes.

// A View maps a window of time (from, to: moments or seconds) and of height (low, high: bytes) to width x height pixels.
class View {
  constructor(from, to, low, high, width, height) {
    Object.assign(this, {from, to, low, high, width, height});
  }
  x(time) { return (time - this.from) / (this.to - this.from) * this.width; }
  y(bytes) { return this.height - (bytes - this.low) / (this.high - this.low) * this.height; }
  time(x) { return this.from + x / this.width * (this.to - this.from); }
  bytes(y) { return this.low + (this.height - y) / this.height * (this.high - this.low); }
}

// within moves a window into [least, most] without changing its length, unless it is longer than that.
function within([from, to], [least, most]) {
  const length = Math.min(to - from, most - least), begin = Math.min(Math.max(from, least), most - length);
  return [begin, begin + length];
}

// zoomed returns a window that is factor times as long, with what lies at around left in its place, within limits and not
// shorter than shortest.
function zoomed([from, to], factor, around, limits, shortest) {
  const length = Math.min(limits[1] - limits[0], Math.max(shortest, (to - from) * factor));
  const part = to > from ? (around - from) / (to - from) : 0.5;
  return within([around - part * length, around + (1 - part) * length], limits);
}

// roundStep returns a step of 1, 2 or 5 times a power of ten that divides a length into at most count parts.
function roundStep(length, count) {
  const least = length / Math.max(1, count), power = 10 ** Math.floor(Math.log10(least));
  return [1, 2, 5, 10].map(n => n * power).find(step => step >= least * (1 - 1e-9));
}

// ticks returns where a window has multiples of a step, if its zero is at first.
function ticks(from, to, step, first = 0) {
  const list = [];
  if (!(step > 0) || !((to - from) / step < 1000)) return list;
  for (let i = Math.ceil((from + first) / step - 1e-9); i * step <= to + first + step * 1e-9; i++) list.push(i * step - first);
  return list;
}

// byteTicks returns at most count round numbers of one binary unit, with their labels.
function byteTicks(low, high, count) {
  const unit = unitOf(Math.max(1, high)), name = units[Math.round(Math.log2(unit) / 10)];
  const step = Math.max(roundStep((high - low) / unit, count), unit > 1 ? 0 : 1);
  const digits = Math.max(0, Math.min(6, -Math.floor(Math.log10(step) + 1e-9)));
  return ticks(low / unit, high / unit, step).map(n => ({at: n * unit, label: `${n.toFixed(digits)} ${name}`}));
}
