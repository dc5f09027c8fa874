package html

import (
	_ "embed"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

var (
	//go:embed page.css
	pageCSS webpage.Markup
	//go:embed page.js
	pageJS webpage.Markup
)

// Policy returns the Content-Security-Policy of the pages that Write writes, for a
// server that sends one. The pages have it in them too.
func Policy() string { return webpage.Policy(string(pageJS)) }

// maxPage is the size of a page. What is small is left out until it fits.
const maxPage = 2 << 20

// Write writes the dump as an HTML page. The error is that the dump has no snapshot, or the writer's.
func Write(w io.Writer, r *snapshot.Dump) error {
	if r.Snapshot == nil {
		return fmt.Errorf("write HTML page: %w", walk.ErrNoSnapshot)
	}
	devices, more := factsOf(r)
	for d := full; ; d = d.half() {
		p := page(devices, more, d)
		if p.Len() > maxPage && d.frames > 1 {
			continue
		}
		if _, err := p.WriteTo(w); err != nil {
			return fmt.Errorf("write HTML page: %w", err)
		}
		return nil
	}
}

// maxDevices bounds the devices that a page shows.
const maxDevices = 32

// page is the page of the first device, with templates of the others, which the script shows when the reader chooses them.
func page(devices []*facts, more int, d detail) *webpage.Page {
	views := make([]deviceView, len(devices))
	for i, f := range devices {
		views[i] = f.view(d)
	}
	first := &views[0]
	p, title := new(webpage.Page), "GPU memory of "+first.device()
	if first.notice != nil && first.notice.OutOfMemory {
		title = "Out of memory: " + title
	}
	p.Head(title, Policy(), pageCSS)
	p.Put("<body>\n<header>\n  <h1>GPU memory <span class=\"quiet\">of</span> ")
	if len(views) == 1 {
		p.Put("%v", first.device())
	} else {
		choice(p, views, more)
	}
	p.Put("</h1>\n  <p class=\"quiet\">%v", first.when())
	if origin := first.w.long(first.at.Origin.String()); origin != "" {
		p.Put(" · %v", origin)
	}
	p.Put(`</p>
</header>
<noscript><p class="card notice">This page draws itself with JavaScript, which is switched off.</p></noscript>
<main>
`)
	first.body(p)
	p.Put(`
</main>
<footer class="quiet">gpumemtrack</footer>
<script type="application/json" id="data">`)
	p.JSON(first.data)
	p.Put("</script>\n")
	for i := range views[1:] {
		p.Put(`<template class="device">`)
		views[1+i].body(p)
		p.Put("</template>\n" + `<script type="application/json">`)
		p.JSON(views[1+i].data)
		p.Put("</script>\n")
	}
	p.Scripts(pageJS)
	return p
}

// choice writes the list of devices.
func choice(p *webpage.Page, views []deviceView, more int) {
	p.Put("\n    " + `<select id="device" aria-label="device">`)
	for i := range views {
		p.Put("\n      <option>%v</option>", views[i].summary())
	}
	if more > 0 {
		p.Put("\n      <option disabled>and %v more devices, which are left out</option>", more)
	}
	p.Put("\n    </select>")
}
