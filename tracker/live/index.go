package live

import (
	_ "embed"
	"io"
	"net/http"

	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

var (
	//go:embed index.html
	indexHTML webpage.Markup
	//go:embed index.css
	indexCSS webpage.Markup
	//go:embed index.js
	indexJS webpage.Markup
)

var indexPolicy = webpage.Policy(string(indexJS))

func (h *handler) index(w http.ResponseWriter, r *http.Request) {
	if newQuery(r).refused(w) {
		return
	}
	w.Header().Set("Content-Security-Policy", indexPolicy+"; frame-ancestors 'none'")
	h.send(w, r, htmlFile, func(w io.Writer) error {
		s := h.source.LightSnapshot()
		device, called := export.Device(s), webpage.Markup("")
		if h.inside {
			called = `<th id="called">Track called at</th>`
		}
		var p webpage.Page
		p.Head("Live: "+device, "", indexCSS)
		p.Put(indexHTML, device, s.Origin, called)
		p.Scripts(indexJS)
		_, err := p.WriteTo(w)
		return err
	})
}

func (h *handler) icon(w http.ResponseWriter, r *http.Request) {
	if !newQuery(r).refused(w) {
		h.send(w, r, file{contentType: "image/svg+xml"}, func(w io.Writer) error {
			_, err := io.WriteString(w, webpage.Icon)
			return err
		})
	}
}
