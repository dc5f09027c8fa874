// Overview: the whole recording as one line of levels, with the window of the timeline on it. A drag on it chooses a window.

class Overview {
  constructor(app, timeline, canvas) {
    Object.assign(this, {app, timeline, canvas, context: canvas.getContext("2d")});
    let from = null;
    canvas.addEventListener("pointerdown", e => {
      const {low, high} = timeline.view(), at = this.#time(e), view = timeline.view();
      const inside = at >= view.from && at <= view.to && view.to - view.from < timeline.span * 0.999;
      from = {at, window: inside ? [view.from, view.to] : null, heights: [low, high]};
      try { canvas.setPointerCapture(e.pointerId); } catch { /* it is not the browser's own */ }
    });
    canvas.addEventListener("pointermove", e => {
      if (!from) return;
      const to = this.#time(e), {span} = timeline;
      const window = from.window ? within(from.window.map(t => t + to - from.at), [0, span]) : [from.at, to].sort((a, b) => a - b);
      if (window[1] - window[0] >= timeline.shortest().time) timeline.look(window, from.heights);
    });
    for (const name of ["pointerup", "pointercancel"]) canvas.addEventListener(name, () => { from = null; });
    canvas.addEventListener("dblclick", () => timeline.look([0, timeline.span], [0, timeline.top]));
    new ResizeObserver(() => this.draw()).observe(canvas);
  }

  #time(e) {
    const box = this.canvas.getBoundingClientRect(), left = this.timeline.box().left;
    return Math.min(1, Math.max(0, (e.clientX - box.left - left) / (box.width - left))) * this.timeline.span;
  }

  draw() {
    const {canvas, context, timeline, app} = this, {whole} = timeline.levels, ratio = Math.min(2, devicePixelRatio || 1);
    if (!timeline.tiles || !canvas.clientWidth) return;
    const width = canvas.clientWidth, height = canvas.clientHeight, css = app.palette.css, {left} = timeline.box();
    canvas.width = Math.round(width * ratio);
    canvas.height = Math.round(height * ratio);
    context.setTransform(ratio, 0, 0, ratio, ratio * left, 0);
    const view = new View(0, timeline.span, 0, timeline.top, width - left, height);
    context.globalAlpha = 0.6;
    if (whole) timeline.levels.area(context, view, css.quiet, whole);
    context.globalAlpha = 1;
    const shown = timeline.view(), x = view.x(shown.from), w = Math.max(2, view.x(shown.to) - x);
    context.globalAlpha = 0.72;
    context.fillStyle = css.card;
    context.fillRect(0, 0, x, height);
    context.fillRect(x + w, 0, view.width, height);
    context.globalAlpha = 1;
    context.strokeStyle = css.accent;
    context.lineWidth = 1.5;
    context.strokeRect(x + 0.75, 0.75, Math.max(1, w - 1.5), height - 1.5);
    const at = app.place();
    context.fillStyle = css.accent;
    if (at != null) context.fillRect(view.x(at), 0, 1.5, height);
  }
}
