"use strict";
(async () => {
  for (let seq = -1; ;) {
    const state = await (await fetch("api/state" + (seq < 0 ? "" : "?after=" + seq))).json();
    seq = state.seq;
    document.getElementById("state").textContent = JSON.stringify(state, null, 1);
    if (state.done) return;
  }
})();
