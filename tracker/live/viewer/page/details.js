// Details: what is known of the selected allocation: its size, its life, its stack, and who had its address before and after.

class Details {
  #latest = new Latest();

  constructor(app, card) { Object.assign(this, {app, card, body: card.querySelector(".body")}); }

  // load asks for an allocation, and shows it.
  load(id) {
    if (id == null) {
      this.#latest.stop();
      this.app.selected = null;
      this.body.replaceChildren(element("p", "quiet", "Click an area of the timeline, a block of the segments or a row of the table: its call stack, its life and who had its address are shown here."));
      return;
    }
    this.#latest.run(signal => ask("allocation", {track: this.app.track.track, id}, signal), a => {
      this.app.selected = a;
      this.app.names.add("lines", a.line, a.name);
      this.show(a);
      this.app.selectionLoaded();
    }, error => {
      this.body.replaceChildren(element("p", "quiet", error.message));
    });
  }

  show(a) {
    const {app} = this, facts = build("dl", "facts");
    const fact = (name, ...values) => { if (values.some(v => v != null && v !== "")) facts.append(element("dt", "", name), build("dd", "", ...values)); };
    fact("Size", element("b", "", size(a.bytes)), a.allocated_bytes > a.bytes ? ` (${size(a.allocated_bytes)} after rounding)` : null);
    fact("Kind", a.kind_name);
    fact("Shape", a.shape, a.dtype ? ` ${a.dtype}` : null);
    fact("Label", a.label);
    fact("Section", a.section);
    fact("Allocated", a.born_before ? "before the recording" : app.momentText(a.born, a.born_seconds));
    fact("Freed", a.died == null ? "never: live at the end" : app.momentText(a.died, a.died_seconds));
    fact("Lifetime", a.life_seconds != null ? duration(a.life_seconds) : a.died != null && !a.born_before ? counted(a.died - a.born, "event") : null);
    fact("Address", element("span", "code", a.address), a.stream != null ? `, stream ${a.stream}` : null, a.memory ? `, ${a.memory}` : null);
    const history = build("dl", "facts");
    for (const [name, ref, more, none] of [["Before it", a.before, a.before_more, "nobody, as far as the recording goes back"], ["After it", a.after, a.after_more, a.died == null ? "it is still there" : "nobody"]]) {
      history.append(element("dt", "", name));
      history.append(ref ? build("dd", "", button("link", `${size(ref.bytes)}, ${baseName(ref.name)}`, () => app.choose(app.moment(), ref.allocation)),
        element("span", "quiet", ` ${app.momentText(ref.born)} to ${ref.died == null ? "the end" : app.momentText(ref.died)}${more ? `, and ${more} more` : ""}`)) : element("dd", "quiet", none));
    }
    const show = button("", "Show all of its life", () => app.showSelected()), same = button("", "Select its line", () => app.state.set({line: String(a.line), frame: null}));
    this.body.replaceChildren(build("div", "choice", show, same), facts, element("h3", "", "Call stack"), stackList(a.stack, a.stack_more),
      ...(a.freed_at?.length ? [element("h3", "", "Freed at"), stackList(a.freed_at)] : []), element("h3", "", "Its address"), history);
  }
}

// stackList lists frames, the innermost first; the call site, which stands for the stack elsewhere, is bold.
function stackList(frames, more) {
  const list = build("ol", "stack code");
  for (const f of frames) {
    const li = build("li", f.call_site ? "call-site" : "", element("span", "", f.function || "unknown"));
    if (f.file) li.append(" ", element("span", "quiet", f.line ? `${f.file}:${f.line}` : f.file));
    list.append(li);
  }
  if (!frames.length) list.append(element("li", "quiet", "no call stack was recorded"));
  if (more) list.append(element("li", "quiet", `and ${counted(more, "outer frame")} more`));
  return list;
}
