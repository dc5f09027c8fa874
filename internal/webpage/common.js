"use strict";
const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];

// size prints bytes in binary units.
function size(bytes) {
  if (bytes == null) return "–";
  let unit = 0, n = Math.abs(bytes);
  while (n >= 1024 && unit < units.length - 1) { n /= 1024; unit++; }
  return (bytes < 0 ? "-" : "") + (unit ? n.toFixed(n < 10 ? 2 : 1) : n) + " " + units[unit];
}

// colour returns a colour of the style sheet, which depends on light and dark.
const colour = name => getComputedStyle(document.documentElement).getPropertyValue(name).trim();

// memoryChart returns uPlot's options for memory over time, less its plugins and hooks.
function memoryChart(div) {
  const quiet = colour("--quiet"), line = colour("--line"), stepped = uPlot.paths.stepped({align: 1});
  const axis = {stroke: quiet, grid: {stroke: line, width: 1}, ticks: {stroke: line, width: 1}};
  const series = {paths: stepped, spanGaps: true, points: {show: false}, value: (u, v) => size(v)};
  return {
    width: div.clientWidth, height: div.clientWidth < 600 ? 220 : 300,
    scales: {x: {time: false}, y: {range: (u, low, high) => [0, high > 0 ? high * 1.08 : 1]}},
    axes: [
      {...axis, values: (u, ticks) => ticks.map(t => +t.toPrecision(6) + " s")},
      // Steps are powers of two, so that sizes stay round.
      {...axis, size: 76, incrs: Array.from({length: 60}, (_, i) => 2 ** i), values: (u, ticks) => ticks.map(size)},
    ],
    series: [
      {label: "time", value: (u, v) => v == null ? "–" : v.toFixed(3) + " s"},
      {...series, label: "allocated", stroke: colour("--accent"), fill: colour("--accent") + "33", width: 1.5},
      {...series, label: "reserved", stroke: colour("--reserved"), width: 1.5},
      {...series, label: "driver used", stroke: colour("--driver"), dash: [5, 4], width: 1.2, show: false},
    ],
  };
}
