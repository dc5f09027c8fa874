// Ranks: the tracks of all files side by side, each painted as soon as it is read, all in one scale of height, with the peak of each.

const mostRanks = 64;

class Ranks {
  #cards = new Map(); // by file or track

  constructor(app, div) {
    Object.assign(this, {app, div});
    new ResizeObserver(() => this.draw()).observe(div);
  }

  // update makes the cards of the files that the server has.
  update(files) {
    const wanted = [];
    for (const file of files) {
      if (file.tracks?.length) for (const track of file.tracks) wanted.push([track.track, file, track]);
      else wanted.push(["file " + file.file, file, null]);
    }
    this.div.hidden = wanted.length < 2;
    byID("ranks-more").textContent = wanted.length > mostRanks ? `and ${wanted.length - mostRanks} more, in the list above` : "";
    this.highest = Math.max(1, ...wanted.map(([, , track]) => track?.peak.bytes ?? 0));
    const shown = wanted.slice(0, mostRanks);
    for (const [key, card] of this.#cards) if (!shown.some(([k]) => k === key)) { card.remove(); this.#cards.delete(key); }
    for (const [key, file, track] of shown) this.#card(key, file, track, files.length);
    if (this.drawn !== this.highest) { this.drawn = this.highest; this.draw(); }
  }

  #card(key, file, track, files) {
    let card = this.#cards.get(key);
    if (!card) {
      card = build("button", "rank", build("span", "rank-name"), build("span", "rank-value"), build("canvas", ""));
      card.type = "button";
      card.onclick = () => { if (card.track) this.app.openTrack(card.track.track); };
      this.#cards.set(key, card);
      this.div.append(card);
    }
    const device = track?.host_memory ? "host memory" : track?.device, name = file.rank != null ? `rank ${file.rank}` : file.name;
    card.firstChild.textContent = files > 1 ? name : device ?? name;
    card.title = [file.path, device, file.host].filter(Boolean).join(", ");
    card.children[1].textContent = track ? `${files > 1 && file.tracks.length > 1 ? device + ", " : ""}peak ${size(track.peak.bytes)}` : file.state === "failed" ? "not readable" : file.state === "reading" && file.bytes_total ? `${Math.floor(100 * file.bytes_done / file.bytes_total)} %` : file.state;
    card.disabled = !track;
    card.setAttribute("aria-pressed", track != null && this.app.track?.track === track.track);
    if (track && !card.track) {
      card.track = track;
      this.#paint(card);
    }
  }

  draw() { for (const card of this.#cards.values()) if (card.track) this.#paint(card); }

  // mark shows which track the large timeline has.
  mark() { for (const card of this.#cards.values()) card.setAttribute("aria-pressed", card.track != null && this.app.track?.track === card.track.track); }

  async #paint(card) {
    const canvas = card.querySelector("canvas"), {track} = card, ratio = Math.min(2, devicePixelRatio || 1);
    const columns = Math.min(512, Math.round(canvas.clientWidth * ratio)), rows = Math.min(256, Math.round(canvas.clientHeight * ratio));
    if (columns < 8 || rows < 8) return;
    const highest = this.highest, key = `${columns} ${rows} ${highest}`;
    if (card.tile?.key !== key) {
      if (card.asked === key) return;
      card.asked = key;
      try {
        card.tile = await askTile({track: track.track, x0: 0, x1: track.moments, columns, y0: 0, y1: highest * 1.04, rows});
        card.tile.key = key;
      } catch (error) {
        reportError(error);
        return;
      }
      if (card.asked !== key) return;
    }
    paintTile(card.tile, this.app.palette);
    canvas.width = columns;
    canvas.height = rows;
    canvas.getContext("2d").drawImage(card.tile.bitmap, 0, 0);
    card.dataset.painted = "yes";
  }
}

// progressText tells how far the reading of a file is.
function progressText(file) {
  if (file.state === "waiting") return "waiting";
  if (file.state === "indexing") return "preparing the timeline";
  const rate = file.seconds > 0.2 ? `, ${size(file.bytes_done / file.seconds)}/s` : "";
  const left = file.bytes_total && file.seconds > 0.5 && file.bytes_done ? `, ${duration(Math.ceil(file.seconds * (file.bytes_total / file.bytes_done - 1)))} left` : "";
  return `${size(file.bytes_done)}${file.bytes_total ? " of " + size(file.bytes_total) : ""}${rate}${left}`;
}
