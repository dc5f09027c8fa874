package live

import (
	_ "embed"
	"html/template"
	"io"
	"net/http"

	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

var (
	//go:embed index.html
	indexHTML string
	//go:embed index.js
	indexJS string

	indexPage = template.Must(template.New("index").Parse(indexHTML))
)

// link is a line of the index.
type link struct{ Path, What string }

var links = []link{
	{"report", "HTML page, to keep or to mail"},
	{"profile", "pprof: go tool pprof"},
	{"profile?seconds=10", "pprof of what changes in 10 seconds"},
	{"profile?debug=1", "live buffers as text"},
	{"lines", "JSON: the lines of code that hold memory now, with their call stacks"},
	{"leaks", "JSON: leak suspects, and what grows"},
	{"memory_viz.pickle", "for pytorch.org/memory_viz"},
	{"trace", "for ui.perfetto.dev"},
	{"snapshot", "JSON"},
	{"dump", "JSON, with the history"},
	{"timeline", "JSON: the levels over time"},
	{"metrics", "for Prometheus"},
	{"metrics?top=10", "with the lines of code that hold most"},
	{"metrics?suspects=1", "with leak suspects"},
	{"marks", "server-sent events"},
}

var indexPolicy = webpage.Policy(indexJS)

func (h *handler) index(w http.ResponseWriter, r *http.Request) {
	if newQuery(r).refused(w) {
		return
	}
	w.Header().Set("Content-Security-Policy", indexPolicy+"; frame-ancestors 'none'")
	h.send(w, r, htmlFile, func(w io.Writer) error {
		s := h.source.LightSnapshot()
		return indexPage.Execute(w, map[string]any{
			"Parts": webpage.Get(), "Script": template.JS(indexJS), "Links": links,
			"Device": export.Device(s), "Origin": s.Origin.String(), "Inside": h.inside,
		})
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
