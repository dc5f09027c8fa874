// Colours: one for each line of code or kind, lighter and darker ones for single allocations of it, and those of the style sheet.

// fromOKLCH converts a colour to sRGB bytes (B. Ottosson, "A perceptual color space for image processing", 2020).
function fromOKLCH(lightness, chroma, degrees) {
  const a = chroma * Math.cos(degrees * Math.PI / 180), b = chroma * Math.sin(degrees * Math.PI / 180);
  const l = (lightness + 0.3963377774 * a + 0.2158037573 * b) ** 3;
  const m = (lightness - 0.1055613458 * a - 0.0638541728 * b) ** 3;
  const s = (lightness - 0.0894841775 * a - 1.291485548 * b) ** 3;
  return [4.0767416621 * l - 3.3077115913 * m + 0.2309699292 * s, -1.2684380046 * l + 2.6097574011 * m - 0.3413193965 * s, -0.0041960863 * l - 0.7034186147 * m + 1.707614701 * s]
    .map(v => Math.round(255 * Math.min(1, Math.max(0, v <= 0.0031308 ? 12.92 * v : 1.055 * v ** (1 / 2.4) - 0.055))));
}

// A Palette gives the colours of items. Pixels are little-endian words of ImageData.
class Palette {
  #pixels = new Map();

  constructor(by, names) {
    this.by = by;
    this.names = names;
    this.read();
  }

  // read takes the colours of the style sheet again: light and dark may have changed.
  read() {
    this.dark = matchMedia("(prefers-color-scheme: dark)").matches;
    this.#pixels.clear();
    this.css = Object.fromEntries(["back", "card", "text", "quiet", "line", "accent", "reserved", "oom", "allocated"].map(name => [name, colour("--" + name)]));
  }

  // rgb returns the colour of a line or kind: neighbouring numbers get distant hues. shade is -1, 0 or 1.
  rgb(line, kind, shade = 0, quiet = false) {
    if (this.by === "kind") {
      const css = colour(kindColour(this.names.kind(kind) || "Tensor"));
      const n = parseInt(css.slice(1), 16);
      return [n >> 16 & 255, n >> 8 & 255, n & 255].map(v => Math.round(Math.min(255, (quiet ? 0.6 * v + 0.4 * (this.dark ? 60 : 200) : v) * (1 + 0.07 * shade))));
    }
    const lightness = (this.dark ? 0.66 : 0.76) + 0.03 * shade;
    return fromOKLCH(lightness, quiet ? 0.065 : 0.115, line * 137.508 % 360);
  }

  // pixel returns the pixel of an item. Single allocations of one line differ a little, so that neighbours can be told apart.
  pixel(line, kind, id) {
    const quiet = id === merged, shade = quiet ? 0 : Math.imul(id, 0x9e3779b1) >>> 16 & 3;
    const key = (this.by === "kind" ? kind : line) * 8 + (quiet ? 4 : shade);
    let pixel = this.#pixels.get(key);
    if (pixel === undefined) {
      const [r, g, b] = this.rgb(line, kind, [-1, 0, 1, 0][shade], quiet);
      this.#pixels.set(key, pixel = (0xff000000 | b << 16 | g << 8 | r) >>> 0);
    }
    return pixel;
  }

  style(line, kind) { return `rgb(${this.rgb(line, kind).join(" ")})`; }
}

// darker returns a pixel for the upper edge of an area.
const darker = pixel => (0xff000000 | (pixel >> 16 & 255) * 0.78 << 16 | (pixel >> 8 & 255) * 0.78 << 8 | (pixel & 255) * 0.78) >>> 0;
