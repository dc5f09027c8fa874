"use strict";
const data = JSON.parse(document.getElementById("data").textContent), { panels, height, from, time } = data;
document.body.style.maxWidth = data.width + "px";
const css = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
const ink = () => css("--ink"), grid = () => css("--grid");
const box = document.getElementById("charts");
const width = () => box.clientWidth;

// The point nearest to the pointer that this series has: series differ in their times.
function nearest(u, i, at) {
  const ys = u.data[i];
  if (i === 0 || ys[at] != null) return at;
  for (let d = 1; d < ys.length; d++) {
    if (ys[at - d] != null) return at - d;
    if (ys[at + d] != null) return at + d;
  }
  return at;
}

// The times at which the axis has ticks: round numbers of its unit.
const steps = [];
for (let power = -3; power < 7; power++) for (const m of [1, 2, 5]) steps.push(m * 10 ** power * time.seconds);

// Devices' capacities, across the panel, and a ring around each peak.
function marks(p) {
  return u => {
    const c = u.ctx, left = u.bbox.left, ratio = devicePixelRatio;
    c.save();
    c.strokeStyle = c.fillStyle = ink();
    c.lineWidth = ratio;
    c.setLineDash([3 * ratio, 3 * ratio]);
    c.font = `${11 * ratio}px system-ui, sans-serif`;
    c.textAlign = "left";
    c.textBaseline = "bottom";
    for (const r of p.rules) {
      const y = u.valToPos(r.y, "y", true);
      if (y < u.bbox.top) continue;
      c.beginPath();
      c.moveTo(left, y);
      c.lineTo(left + u.bbox.width, y);
      c.stroke();
      c.fillText(r.label, left + 4 * ratio, y - 2 * ratio);
    }
    c.setLineDash([]);
    for (const l of p.lines) {
      if (!l.peak || l.peak.x < u.scales.x.min || l.peak.x > u.scales.x.max) continue;
      c.strokeStyle = css("--c" + l.color);
      c.beginPath();
      c.arc(u.valToPos(l.peak.x, "x", true), u.valToPos(l.peak.y, "y", true), 5 * ratio, 0, 2 * Math.PI);
      c.stroke();
    }
    c.restore();
  };
}

// A process's color lies between its device's and the text's.
function colorOf(l) {
  const at = (hex, i) => parseInt(hex.slice(i, i + 2), 16), c = css("--c" + l.color), to = ink();
  return l.shade ? `rgb(${[1, 3, 5].map(i => (at(c, i) + at(to, i)) >> 1)})` : c;
}

// Dots are of samples, not of where a line ends.
function dots(l) {
  if (l.dots.length === 0) return { show: l.x.length < 2 ? true : undefined };
  const at = new Set(l.dots);
  return { show: true, size: 4, filter: (u, i) => u.data[0].flatMap((x, k) => at.has(x) && u.data[i][k] != null ? [k] : []) };
}

const charts = panels.map(p => {
  const font = "12px system-ui, sans-serif";
  const axis = { stroke: ink, font, labelFont: font, labelSize: 18, grid: { stroke: grid, width: 1 }, ticks: { stroke: grid, width: 1, size: 6 } };
  const round = (v, unit) => v == null ? "–" : +v.toFixed(3) + " " + unit;
  const div = document.createElement("div");
  div.className = "panel";
  box.append(div);
  return new uPlot({
    width: width(), height: Math.max(240, Math.round(height / panels.length) - 40),
    scales: { x: { time: false, range: (u, lo, hi) => [lo <= u.data[0][0] ? from : lo, hi] }, y: { range: () => [0, p.max] } },
    legend: { markers: { dash: (u, i) => i > 0 && p.lines[i - 1].dashes.length ? "dashed" : "solid" } },
    hooks: { draw: [marks(p)] },
    cursor: { sync: { key: "time" }, drag: { x: true, y: false }, dataIdx: nearest },
    axes: [{ ...axis, label: time.title, size: 28, incrs: steps, values: (u, at) => at.map(v => +(v / time.seconds).toFixed(3)) }, { ...axis, label: `${p.name} [${p.unit}]`, size: 56 }],
    series: [{ label: "time", value: (u, v) => round(v == null ? v : v / time.seconds, time.name) }].concat(p.lines.map(l => ({
      label: l.label, stroke: () => colorOf(l), width: l.width * 1.2, dash: l.dashes.length ? l.dashes.map(d => d * 1.3) : undefined,
      paths: l.steps ? uPlot.paths.stepped({ align: 1 }) : undefined,
      points: dots(l), value: (u, v) => round(v, p.unit),
    }))),
  }, uPlot.join(p.lines.map(l => [l.x, l.y]), p.lines.map(() => [0, 2])), div);
});

addEventListener("resize", () => charts.forEach(u => u.setSize({ width: width(), height: u.height })));
matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => charts.forEach(u => u.redraw(false, true)));
