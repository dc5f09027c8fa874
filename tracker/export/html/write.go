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
	//go:embed page.js
	pageJS string

	page = template.Must(template.New("page").Parse(pageHTML))
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
	for d := full; ; d = d.half() {
		var b bytes.Buffer
		if err := page.Execute(&b, viewOf(devices, more, d)); err != nil {
			return fmt.Errorf("write HTML page: %w", err)
		}
		if b.Len() > maxPage && d.frames > 1 {
			continue
		}
		if _, err := b.WriteTo(w); err != nil {
			return fmt.Errorf("write HTML page: %w", err)
		}
		return nil
	}
}

// maxDevices bounds the devices that a page shows.
const maxDevices = 32
