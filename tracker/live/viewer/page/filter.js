// Filter: the fields for what all views show: a text of the stack, a kind, sizes and lifetimes.

class Filter {
  constructor(app, form) {
    Object.assign(this, {app, form});
    this.fields = [
      ["text", "filter-text", text => text.trim() || null, text => text],
      ["kind", "filter-kind", text => text || null, text => text],
      ["min_bytes", "filter-min-bytes", parseSize, exactSize], ["max_bytes", "filter-max-bytes", parseSize, exactSize],
      ["min_life", "filter-min-life", parseDuration, s => exactDuration(s)], ["max_life", "filter-max-life", parseDuration, s => exactDuration(s)],
    ].map(([name, id, read, print]) => ({name, input: byID(id), read, print}));
    for (const field of this.fields) field.input.addEventListener(field.name === "text" ? "input" : "change", () => this.#changed(field));
    form.addEventListener("submit", e => { e.preventDefault(); for (const field of this.fields) this.#changed(field, true); });
    byID("filter-clear").onclick = () => app.state.set(Object.fromEntries(filterNames.map(name => [name, null])));
  }

  #changed(field, now) {
    clearTimeout(this.timer);
    const text = field.input.value, value = field.read(text), wrong = value == null && text.trim() !== "";
    field.input.setAttribute("aria-invalid", wrong);
    if (wrong) return;
    const set = () => this.app.state.set({[field.name]: value});
    if (field.name === "text" && !now) this.timer = setTimeout(set, 250); // while a word is typed
    else set();
  }

  // show puts the state into the fields, except the one that is being written in.
  show() {
    const {state} = this.app;
    for (const {name, input, print} of this.fields) {
      if (input === document.activeElement && name === "text") continue;
      const value = state.get(name);
      input.value = value == null ? "" : print(value);
      input.setAttribute("aria-invalid", "false");
    }
    const set = filterNames.filter(name => state.get(name) != null);
    byID("filter-clear").hidden = !set.length;
    byID("filter-more").open ||= ["min_bytes", "max_bytes", "min_life", "max_life"].some(name => state.get(name) != null);
  }

  // kinds fills the list of kinds. There is no list where the source has but one.
  kinds(kinds) {
    const select = byID("filter-kind"), any = element("option", "", "any kind");
    any.value = "";
    select.replaceChildren(any, ...kinds.map(k => Object.assign(element("option", "", k.name), {value: k.kind})));
    select.hidden = kinds.length < 2;
    this.show();
  }
}

// exactSize and exactDuration print what parseSize and parseDuration read as the same number.
function exactSize(bytes) {
  for (const [unit, name] of [[1024 ** 3, "GiB"], [1024 ** 2, "MiB"], [1024, "KiB"]]) if (bytes >= unit && bytes % unit === 0) return `${bytes / unit} ${name}`;
  return String(bytes);
}

function exactDuration(seconds) {
  for (const [unit, name] of [[1, "s"], [1e-3, "ms"], [1e-6, "us"]]) {
    const n = +(seconds / unit).toPrecision(15);
    if (n >= 1 && parseDuration(`${n} ${name}`) === seconds) return `${n} ${name}`;
  }
  return String(seconds);
}
