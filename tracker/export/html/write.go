package html

import (
	"bytes"
	_ "embed"
	"fmt"
	"html/template"
	"io"
	"strings"
	"unicode"

	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

var (
	//go:embed page.html
	pageHTML string
	//go:embed page.css
	pageCSS template.CSS
	//go:embed page.js
	pageJS template.JS

	pageTemplate = webpage.Template{Text: pageHTML}
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
		if err := pageTemplate.Execute(&text, newPage(devices, more, d)); err != nil {
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

// detail says how many of the largest things a page shows.
type detail struct {
	groups   int // lines of the table; each moment shows some of them
	frames   int // frames of the flame graph
	marks    int // tables of marks, the latest
	changes  int // rows of a mark's table
	segments int // segments of each moment
	moments  int
	lines    int // lines of the other lists
	text     int // characters of a name
}

var full = detail{groups: 1000, frames: 2500, marks: 200, changes: 20, segments: maxSegments, moments: manyMoments, lines: 50, text: 160}

// half is less of all. Moments go first: where there are many, the next is near.
func (d detail) half() detail {
	if d.moments > fewMoments {
		d.moments /= 2
		return d
	}
	for _, n := range []*int{&d.groups, &d.frames, &d.marks, &d.changes, &d.segments, &d.lines} {
		*n = (*n + 1) / 2
	}
	d.text = max(40, d.text/2)
	return d
}

// writer turns facts into what a page of some detail shows.
type writer struct {
	detail
	names *lines.Names
}

// text makes a name that came from outside printable, and short.
func (w *writer) text(s string) string { return clip(s, w.detail.text) }

// long is for texts that are sentences.
func (w *writer) long(s string) string { return clip(s, 10*w.detail.text) }

// line names a line of code.
func (w *writer) line(f mem.Frame) string { return w.text(w.names.Of(f)) }

// clip replaces characters that cannot be printed, and shortens long text in the middle.
func clip(s string, most int) string {
	if len(s) > 8*most {
		s = s[:4*most] + s[len(s)-4*most:]
	}
	s = strings.Map(func(r rune) rune {
		switch {
		case r == '\n' || r == '\t':
			return ' '
		case unicode.IsPrint(r):
			return r
		}
		return unicode.ReplacementChar
	}, strings.ToValidUTF8(s, string(unicode.ReplacementChar)))
	if runes := []rune(s); len(runes) > most {
		s = string(runes[:most/2]) + "…" + string(runes[len(runes)-most/2+1:])
	}
	return s
}
