package live

import (
	_ "embed"
	"html/template"
	"io"
	"net/http"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
)

var (
	//go:embed index.html
	indexHTML string
	//go:embed index.css
	indexCSS template.CSS
	//go:embed index.js
	indexJS template.JS

	indexTemplate = webpage.Template{Text: indexHTML}
	indexPolicy   = sync.OnceValue(func() string { return webpage.Policy(indexJS) })
)

// indexPage is what index.html shows.
type indexPage struct {
	webpage.Page
	Device, Origin string
	Inside         bool // the tracker is in this process, and knows where Track was called
}

func (h *handler) index(w http.ResponseWriter, r *http.Request) {
	if request.New(r).Refused(w) {
		return
	}
	w.Header().Set("Content-Security-Policy", indexPolicy()+"; frame-ancestors 'none'")
	h.send(w, r, htmlFile, func(w io.Writer) error {
		s := h.source.LightSnapshot()
		p := indexPage{Device: export.Device(s), Origin: s.Origin.String(), Inside: h.inProcess}
		p.Page = webpage.Page{Title: "Live: " + p.Device, Style: indexCSS, Script: indexJS}
		return indexTemplate.Execute(w, p)
	})
}

func (h *handler) icon(w http.ResponseWriter, r *http.Request) {
	if !request.New(r).Refused(w) {
		h.send(w, r, file{contentType: "image/svg+xml"}, func(w io.Writer) error {
			_, err := io.WriteString(w, webpage.Icon)
			return err
		})
	}
}
