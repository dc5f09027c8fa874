// Gestures: what the mouse, the wheel, fingers and the keyboard do to the timeline.

class Gestures {
  #fingers = new Map();
  #moved = false;

  constructor(timeline) {
    this.timeline = timeline;
    const {canvas} = timeline, on = (name, f, options) => canvas.addEventListener(name, f.bind(this), options);
    on("wheel", this.wheel, {passive: false});
    on("pointerdown", this.down);
    on("pointermove", this.move);
    on("pointerup", this.up);
    on("pointercancel", this.up);
    on("pointerleave", () => timeline.hover(null));
    on("dblclick", e => this.zoom(0.4, 1, timeline.place(e)));
    on("keydown", this.key);
  }

  // zoom makes the window of time and that of height a factor of what they are, around a place.
  zoom(time, height, {time: t, bytes}) {
    const {timeline} = this, view = timeline.view(), shortest = timeline.shortest();
    timeline.look(zoomed([view.from, view.to], time, t, [0, timeline.span], shortest.time), zoomed([view.low, view.high], height, bytes, [0, timeline.top], shortest.bytes));
  }

  // pan moves the window by pixels.
  pan(dx, dy) {
    const {timeline} = this, view = timeline.view(), t = dx / view.width * (view.to - view.from), b = dy / view.height * (view.high - view.low);
    timeline.look(within([view.from + t, view.to + t], [0, timeline.span]), within([view.low - b, view.high - b], [0, timeline.top]));
  }

  // wheel zooms time, with Shift height, with Ctrl (a pinch of a touch pad) both; sideways it pans. Where it can do nothing the page scrolls.
  wheel(e) {
    const unit = e.deltaMode === 1 ? 30 : e.deltaMode === 2 ? 300 : 1, {timeline} = this, view = timeline.view();
    const dx = e.deltaX * unit, dy = e.deltaY * unit;
    if (Math.abs(dx) > Math.abs(dy) && !e.shiftKey) {
      if (view.to - view.from < timeline.span) { e.preventDefault(); this.pan(dx, 0); }
      return;
    }
    const turn = dy || dx, factor = Math.exp(Math.max(-300, Math.min(300, turn)) * (e.ctrlKey ? 0.008 : 0.0018));
    const whole = view.to - view.from >= timeline.span * (1 - 1e-9) && view.high - view.low >= timeline.top * (1 - 1e-9);
    if (whole && factor > 1) return;
    e.preventDefault();
    this.zoom(e.shiftKey ? 1 : factor, e.shiftKey || e.ctrlKey ? factor : 1, timeline.place(e));
  }

  down(e) {
    if (e.pointerType === "mouse" && e.button !== 0) return;
    const place = this.timeline.place(e);
    this.#fingers.set(e.pointerId, place);
    if (this.#fingers.size === 1) this.#moved = false;
    try { e.target.setPointerCapture(e.pointerId); } catch { /* it is not the browser's own */ }
    this.timeline.hover(null);
  }

  move(e) {
    const {timeline} = this, now = timeline.place(e), before = this.#fingers.get(e.pointerId);
    if (!before) {
      timeline.hover(now);
      return;
    }
    if (this.#fingers.size === 1) {
      if (!this.#moved && Math.hypot(now.x - before.x, now.y - before.y) < 4) return;
      this.#moved = true;
      this.pan(before.x - now.x, before.y - now.y);
    } else {
      // The place between two fingers stays between them.
      this.#moved = true;
      const other = [...this.#fingers].find(([id]) => id !== e.pointerId)[1];
      const ratio = (a, b, c) => Math.abs(b - c) < 12 || Math.abs(a - c) < 12 ? 1 : Math.abs(b - c) / Math.abs(a - c);
      this.zoom(ratio(now.x, before.x, other.x), ratio(now.y, before.y, other.y), other);
    }
    this.#fingers.set(e.pointerId, now);
  }

  up(e) {
    const one = this.#fingers.size === 1 && this.#fingers.has(e.pointerId);
    this.#fingers.delete(e.pointerId);
    if (e.type === "pointerup" && one && !this.#moved) {
      const place = this.timeline.place(e);
      if (place.inside) this.timeline.choose(place);
    }
  }

  key(e) {
    if (e.altKey || e.metaKey || e.ctrlKey) return;
    const {timeline} = this, {app} = timeline, view = timeline.view();
    const middle = {time: app.place() >= view.from && app.place() <= view.to ? app.place() : (view.from + view.to) / 2, bytes: (view.low + view.high) / 2};
    const moment = app.moment();
    const actions = {
      ArrowLeft: () => e.shiftKey ? app.choose(moment - 1) : this.pan(-view.width / 8, 0),
      ArrowRight: () => e.shiftKey ? app.choose(moment + 1) : this.pan(view.width / 8, 0),
      ArrowUp: () => e.shiftKey ? this.pan(0, -view.height / 8) : app.step(1),
      ArrowDown: () => e.shiftKey ? this.pan(0, view.height / 8) : app.step(-1),
      PageUp: () => this.pan(0, -view.height / 2),
      PageDown: () => this.pan(0, view.height / 2),
      "+": () => this.zoom(0.6, 1, middle), "=": () => this.zoom(0.6, 1, middle), "-": () => this.zoom(1 / 0.6, 1, middle),
      "*": () => this.zoom(1, 0.6, middle), "/": () => this.zoom(1, 1 / 0.6, middle),
      Home: () => this.pan(-1e12, 0), End: () => this.pan(1e12, 0),
      0: () => timeline.look([0, timeline.span], [0, timeline.top]),
      p: () => app.showMoment(app.track.peak),
      s: () => app.showSelected(),
      Enter: () => app.step(0),
      Escape: () => app.clear(),
    };
    const action = actions[e.key];
    if (!action) return;
    e.preventDefault();
    action();
  }
}
