// Text: how times and counts are printed and read, and elements that hold texts. size, colour and element are of the common script.

// parseSize reads "512", "1.5 MiB" or "2g" as bytes; null if it is no size.
function parseSize(text) {
  const m = /^\s*(\d+(?:\.\d*)?|\.\d+)\s*([kmgtpe]?)(i?b?)?\s*$/i.exec(text);
  return m && Math.round(+m[1] * 1024 ** Math.max(0, "kmgtpe".indexOf(m[2].toLowerCase() || " ") + 1));
}

// parseDuration reads "200ms", "3 s" or "2min" as seconds, a number alone as seconds; null if it is no duration.
function parseDuration(text) {
  const m = /^\s*(\d+(?:\.\d*)?|\.\d+)\s*(us|µs|ms|s|min|m|h)?\s*$/i.exec(text);
  return m && +m[1] * {us: 1e-6, "µs": 1e-6, ms: 1e-3, s: 1, min: 60, m: 60, h: 3600}[(m[2] ?? "s").toLowerCase()];
}

const threeDigits = n => String(+n.toPrecision(3));

// duration prints seconds with three digits, in the unit that suits them.
function duration(seconds) {
  if (seconds == null) return "unknown";
  const n = Math.abs(seconds);
  if (n === 0) return "0 s";
  if (n < 1e-3) return threeDigits(seconds * 1e6) + " µs";
  if (n < 1) return threeDigits(seconds * 1e3) + " ms";
  if (n < 120) return threeDigits(seconds) + " s";
  if (n < 7200) return threeDigits(seconds / 60) + " min";
  return threeDigits(seconds / 3600) + " h";
}

// momentsInSeconds returns a function that prints moments in one unit, with the digits that tell those a step apart from each other.
function momentsInSeconds(step, to) {
  const [unit, name] = step < 1e-4 && to < 0.1 ? [1e-6, "µs"] : step < 0.1 && to < 10 ? [1e-3, "ms"] : [1, "s"];
  const digits = Math.max(0, Math.min(9, -Math.floor(Math.log10(step / unit) + 1e-9)));
  return seconds => `${(seconds / unit).toFixed(digits)} ${name}`;
}

const number = n => n == null ? "unknown" : Math.round(n).toLocaleString("en-US");
const counted = (n, one) => `${number(n)} ${one}${n === 1 ? "" : "s"}`;
const byID = id => document.getElementById(id);

// build makes an element with a class and children. Strings become text, never markup.
function build(tag, className, ...children) {
  const e = element(tag, className);
  e.append(...children.filter(c => c != null));
  return e;
}

// button makes a button that calls f.
function button(className, text, f) {
  const b = element("button", className, text);
  b.type = "button";
  b.onclick = f;
  return b;
}

// baseName shortens the path in "dir/file.py:12 function" to its last part.
const baseName = place => place.replace(/[^\s]*[/\\](?=[^/\\\s]*:\d+)/, "");
