// Levels: the live and reserved bytes of the whole recording over time, and of the window that is shown with a value for each pixel.

class Levels {
  #latest = new Latest();
  #timer = 0;
  #opened = ""; // the track and the axis
  #asked = "";  // the window

  constructor(app, changed) {
    this.app = app;
    this.changed = changed;
  }

  // open asks for the whole, unless it is there: no filter changes it.
  open(span) {
    const key = `${this.app.track.track} ${this.app.axis()}`;
    if (key === this.#opened) return;
    this.#opened = key;
    this.whole = this.part = null;
    this.#asked = "";
    clearTimeout(this.#timer);
    this.span = span;
    this.#latest.run(signal => this.#ask(0, span, 1024, signal), curve => { this.whole = curve; this.changed(); });
  }

  // want asks for a window once it has stopped moving.
  want(view) {
    const key = `${view.from} ${view.to} ${Math.round(view.width)}`;
    if (key === this.#asked || !this.whole) return;
    this.#asked = key;
    clearTimeout(this.#timer);
    if (view.to - view.from >= this.span * 0.999) { this.part = null; return; }
    const {from, to} = view, columns = Math.max(16, Math.min(1600, Math.round(view.width)));
    this.#timer = setTimeout(() => this.#latest.run(signal => this.#ask(from, to, columns, signal), curve => { this.part = curve; this.changed(); }), 120);
  }

  async #ask(x0, x1, columns, signal) {
    const {track} = this.app;
    return {...await ask("curve", {track: track.track, axis: this.app.axis(), x0, x1, columns}, signal), x0, x1, columns};
  }

  #curve(view) { return this.part && this.part.x0 <= view.from && this.part.x1 >= view.to ? this.part : this.whole; }

  // #path draws one of the values as steps, from the left to the right.
  #path(context, view, curve, values) {
    const column = (curve.x1 - curve.x0) / curve.columns;
    const first = Math.max(0, Math.floor((view.from - curve.x0) / column)), last = Math.min(curve.columns - 1, Math.ceil((view.to - curve.x0) / column));
    let known = false;
    for (let i = first; i <= last; i++) {
      if (values[i] == null) { known = false; continue; }
      const y = view.y(values[i]);
      if (known) context.lineTo(view.x(curve.x0 + i * column), y);
      else context.moveTo(view.x(curve.x0 + i * column), y);
      context.lineTo(view.x(curve.x0 + (i + 1) * column), y);
      known = true;
    }
    return [view.x(curve.x0 + first * column), view.x(curve.x0 + (last + 1) * column)];
  }

  // area fills what is live, whatever the filter.
  area(context, view, style, curve = this.#curve(view)) {
    if (!curve) return;
    context.beginPath();
    const [left, right] = this.#path(context, view, curve, curve.high);
    context.lineTo(right, view.y(0));
    context.lineTo(left, view.y(0));
    context.fillStyle = style;
    context.fill();
  }

  // lines draws the reserved bytes.
  lines(context, view, css) {
    const curve = this.#curve(view);
    if (!curve?.reserved.some(b => b != null)) return;
    context.beginPath();
    this.#path(context, view, curve, curve.reserved);
    context.strokeStyle = css.reserved;
    context.lineWidth = 1.5;
    context.setLineDash([5, 3]);
    context.stroke();
    context.setLineDash([]);
  }
}
