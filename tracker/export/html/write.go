package html

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"

	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS template.CSS
	//go:embed page.js
	pageJS template.JS

	pageTemplate = webpage.Template("page.html", pageHTML)
)

// Policy returns the Content-Security-Policy of the pages that Write writes, for a
// server that sends one. The pages have it in them too.
func Policy() string { return webpage.Policy(pageJS) }

// maxPage is the size of a page. What is small is left out until it fits.
const maxPage = 2 << 20

// Write writes the dump as an HTML page. The error is that the dump has no snapshot, or the writer's.
func Write(w io.Writer, r *snapshot.Dump) error {
	if r.Snapshot == nil {
		return fmt.Errorf("write HTML page: %w", walk.ErrNoSnapshot)
	}
	devices, more := factsOf(r)
	var text bytes.Buffer
	for d := full; ; d = d.half() {
		text.Reset()
		if err := pageTemplate().Execute(&text, newPage(devices, more, d)); err != nil {
			return fmt.Errorf("write HTML page: %w", err)
		}
		if text.Len() <= maxPage || d.frames <= 1 {
			break
		}
	}
	if _, err := text.WriteTo(w); err != nil {
		return fmt.Errorf("write HTML page: %w", err)
	}
	return nil
}

// maxDevices bounds the devices that a page shows.
const maxDevices = 32

// page is what page.html shows.
type page struct {
	webpage.Page
	Devices     []device // at least one
	MoreDevices int      // that are left out
}

func newPage(devices []*facts, more int, d detail) *page {
	p := &page{MoreDevices: more}
	for _, f := range devices {
		p.Devices = append(p.Devices, f.device(d))
	}
	p.Page = webpage.Page{Title: "GPU memory of " + p.Devices[0].Name, Policy: Policy(), Style: pageCSS, Script: pageJS}
	if n := p.Devices[0].Notice; n != nil && n.OutOfMemory {
		p.Title = "Out of memory: " + p.Title
	}
	return p
}
