package html

import (
	"cmp"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
)

// The functions of this file are in the order of the page: each writes the cards of one subject.

// body writes all cards of a device. The script fills in what depends on the moment that is shown.
func (v *deviceView) body(p *webpage.Page) {
	if v.notice != nil {
		v.notice.card(p)
	}
	v.tiles(p)
	v.overTime(p)
	if len(v.data.Kinds) > 0 {
		p.Put(`
<section class="card">
  <h2>Live bytes by kind<span class="at">, %v</span></h2>
  <div class="shares" id="kinds"></div>
  <ul class="legend" id="kinds-legend"></ul>
</section>
`, v.shown())
	}
	var choice webpage.Markup
	if v.past {
		choice = `<div class="choice"><button data-measure="now" aria-pressed="true">live</button><button data-measure="ever" aria-pressed="false">ever allocated</button></div>`
	}
	p.Put(`
<section class="card">
  <div class="bar"><h2>Call stacks<span class="at" id="flame-at">, %v</span></h2>
    %v
  </div>
  <div id="flame" role="group" aria-label="Call stacks: arrow keys move, Enter looks closer, Escape goes back"></div>
  <p class="quiet hint" id="flame-hint">Width is bytes. Click a frame to look closer, the top one to go back; or use the arrow keys, Enter and Escape.</p>
</section>
`, v.shown(), choice)
	v.buffers(p)
	v.segments(p)
	v.lists(p)
	v.sections(p)
	v.profile(p)
	v.marks(p)
}

func (n *notice) card(p *webpage.Page) {
	if n.OutOfMemory {
		p.Put(`
<section class="card notice" id="notice">
  <h2>Out of memory</h2>
  <p><b>%v</b></p>
`, n.What)
	} else {
		p.Put(`
<section class="card notice off" id="notice">
  <p><span class="quiet">Written because:</span> <b>%v</b></p>
`, n.What)
	}
	if n.Advice != "" {
		p.Put("  <p><b>What would help:</b> %v</p>\n", n.Advice)
	}
	if len(n.Facts) > 0 {
		p.Put("  <ul>")
		each(p, "<li>%v</li>", n.Facts)
		p.Put("</ul>\n")
	}
	if len(n.Holders) > 0 {
		p.Put("  <p>What took it:</p><ol>")
		each(p, `<li class="code">%v</li>`, n.Holders)
		p.Put("</ol>\n")
	}
	p.Put("</section>\n")
}

// each writes texts, each within the same markup.
func each(p *webpage.Page, m webpage.Markup, texts []string) {
	for _, text := range texts {
		p.Put(m, text)
	}
}

func (v *deviceView) tiles(p *webpage.Page) {
	p.Put("\n" + `<section class="tiles">`)
	for _, t := range tiles(v.at, v.peak()) {
		p.Put("\n"+`  <div class="tile"><div class="name">%v</div><div class="value" id="%v">%v</div><div class="note">%v</div></div>`, t.Name, t.ID, t.Value, t.Note)
	}
	p.Put("\n</section>\n")
	if left := v.dump.LeftOut(); len(left) > 0 {
		p.Put(`<p class="card quiet">This file is not whole. It lacks: %v.</p>`+"\n", strings.Join(left, "; "))
	}
}

// overTime writes the chart, and what chooses the moment of all that stands below.
func (v *deviceView) overTime(p *webpage.Page) {
	if len(v.data.Moments) > 1 {
		p.Put(`
<section class="card" id="moments">
  <div class="bar">
    <label for="moment"><b>At <span id="moment-name"></span></b> <span class="quiet" id="moment-levels"></span></label>
    <div class="choice" id="named" role="group" aria-label="moments"></div>
  </div>
  <input type="range" id="moment" min="0" step="1" aria-describedby="moment-hint">
</section>
`)
	}
	if v.data.Timeline == nil && v.whyNoHistory() == "" {
		return
	}
	p.Put("\n<section class=\"card\">\n")
	if v.data.Timeline == nil {
		p.Put(`  <h2>Over time</h2><p class="quiet" id="moment-hint">%v</p>
</section>
`, v.whyNoHistory())
		return
	}
	var layers webpage.Markup
	if len(v.data.Kinds) > 0 {
		layers = `<div class="choice"><button data-layers="kinds">by kind</button><button data-layers="lines">by line of code</button></div>`
	}
	p.Put(`  <div class="bar"><h2>Over time</h2>
    %v
  </div>
  <div id="chart"></div>
  <p class="quiet hint" id="moment-hint">All below is of one moment: click the chart, move the mark on it, or use the arrow keys in the bar above. Drag elsewhere to zoom, double-click to go back. %v</p>
</section>
`, layers, v.history())
}

// buffers writes the headings of the table's columns that the source can fill.
func (v *deviceView) buffers(p *webpage.Page) {
	var kind, shape, elements webpage.Markup
	filter := webpage.Markup("file:line")
	if len(v.data.Kinds) > 0 {
		kind, filter = "<th>Kind</th>", "kind, "+filter
	}
	if v.shapes {
		shape, filter = "<th>Shape</th>", "shape, "+filter
	}
	if v.types {
		elements = "<th>Type</th>"
	}
	p.Put(`
<section class="card" id="buffers">
  <div class="bar"><h2>Live buffers<span class="at">, %v</span></h2>
    <input id="filter" type="search" placeholder="filter: %v" aria-label="filter the table">
  </div>
  <div class="scroll"><table id="live-table" class="cells">
    <thead><tr><th class="num" aria-sort="descending"><button data-key="bytes">Memory</button></th><th class="num"><button data-key="count">Count</button></th>%v%v%v<th>Allocated at</th></tr></thead>
    <tbody></tbody>
  </table></div>
  <p class="quiet hint" id="table-more"></p>
</section>
`, v.shown(), filter, kind, shape, elements)
}

func (v *deviceView) segments(p *webpage.Page) {
	if !v.hasSegments() {
		return
	}
	p.Put(`
<section class="card">
  <h2>Segments of the cache<span class="at">, %v</span></h2>
`, v.shown())
	if len(v.stuck) > 0 {
		p.Put("  <p>Why memory is reserved that no buffer uses, %v:</p>\n  <ul>", v.shown())
		each(p, "<li>%v</li>", v.w.list(v.stuck))
		p.Put("</ul>\n")
	}
	p.Put(`  <p class="quiet hint">A segment goes back to the driver when nothing in it is in use. Those with most inactive memory come first. What is empty is inactive.</p>
  <div class="scroll"><table id="segments" class="cells">
    <thead><tr><th class="num">Size</th><th class="num">Inactive</th><th>Blocks</th><th>Kept by</th></tr></thead>
    <tbody></tbody>
  </table></div>
  <p class="quiet hint" id="segments-more"></p>
</section>
`)
}

// lists writes lost buffers, leak suspects and what grows.
func (v *deviceView) lists(p *webpage.Page) {
	if len(v.lost) > 0 {
		lost, sum := v.w.lost(v.lost)
		p.Put(`
<section class="card"><h2>Lost buffers</h2>
  <p>%v that nothing refers to any more and that were never freed: nobody can free them.</p>
  <ul class="code">`, sum)
		each(p, "<li>%v</li>", lost)
		p.Put("</ul>\n</section>\n")
	}
	for _, list := range []struct {
		name  string
		texts []string
	}{{"Leak suspects", v.suspects}, {"Growing, not yet known whether bounded", v.growth}} {
		if len(list.texts) > 0 {
			p.Put(`<section class="card"><h2>%v</h2>`, list.name)
			each(p, `<pre class="code">%v</pre>`, v.w.list(list.texts))
			p.Put("</section>\n")
		}
	}
}

func (v *deviceView) sections(p *webpage.Page) {
	if len(v.facts.sections) == 0 {
		return
	}
	p.Put(`
<section class="card"><h2>Sections: what they allocated</h2>
  <div class="scroll"><table class="cells" id="sections">
    <thead><tr><th>Section</th><th class="num">Live</th><th class="num">At the peak</th><th class="num">Ever</th></tr></thead>
    <tbody>`)
	shown := v.facts.sections[:min(len(v.facts.sections), v.w.lines)]
	for _, s := range shown {
		path := cmp.Or(v.w.text(s.Path), "outside of all")
		p.Put("\n"+`    <tr><td class="code" data-name="Section">%v</td><td class="num" data-name="Live">%v</td><td class="num" data-name="At the peak">%v</td><td class="num" data-name="Ever">%v</td></tr>`,
			path, s.Live.Bytes, s.Peak.Bytes, s.Ever.Bytes)
	}
	endOfSections(p, len(v.facts.sections)-len(shown))
}

func (v *deviceView) profile(p *webpage.Page) {
	if len(v.facts.profile) == 0 {
		return
	}
	p.Put(`
<section class="card"><h2>Sections: their calls</h2>
  <div class="scroll"><table class="cells" id="profile">
    <thead><tr><th>Section</th><th class="num">Calls</th><th class="num">Time</th><th class="num">Highest peak</th><th class="num">Kept a call</th></tr></thead>
    <tbody>`)
	shown := v.facts.profile[:min(len(v.facts.profile), v.w.lines)]
	for _, r := range shown {
		p.Put("\n"+`    <tr><td class="code" data-name="Section">%v</td><td class="num" data-name="Calls">%v</td><td class="num" data-name="Time">%v</td><td class="num" data-name="Highest peak">%v</td><td class="num" data-name="Kept a call">%v</td></tr>`,
			v.w.text(r.Path), r.Calls, r.Time.Round(time.Microsecond), r.Peak, r.Kept())
	}
	endOfSections(p, len(v.facts.profile)-len(shown))
}

// endOfSections ends a table of sections, and says how many sections were left out.
func endOfSections(p *webpage.Page, more int) {
	p.Put("\n    </tbody></table></div>\n")
	if more > 0 {
		p.Put(`  <p class="quiet hint">and %v more sections</p>`+"\n", more)
	}
	p.Put("</section>\n")
}

func (v *deviceView) marks(p *webpage.Page) {
	if len(v.data.Marks) == 0 && v.whyNoMarks() == "" {
		return
	}
	p.Put(`
<section class="card" id="marks">
  <h2>Marks</h2>
`)
	if len(v.data.Marks) == 0 {
		p.Put(`  <p class="quiet">%v</p>`+"\n", v.whyNoMarks())
	} else {
		p.Put(`  <div class="chips" id="chips"></div>
  <article id="mark" aria-live="polite"></article>
`)
		if earlier := v.earlierMarks(); earlier > 0 {
			p.Put(`  <p class="quiet hint">The tables of %v earlier marks are left out.</p>`+"\n", earlier)
		}
	}
	p.Put("</section>\n")
}
