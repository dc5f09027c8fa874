package live

import (
	"fmt"
	"net/http"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/prom"
)

// Handler returns a handler for all that the package comment lists. It is for
// any path that ends in a slash; a tracker that is closed answers with what it has left.
// A nil tracker is a panic.
func Handler(tr *tracker.MemTracker, options ...Option) http.Handler {
	if tr == nil {
		panic("live.Handler: the tracker is nil")
	}
	h := &handler{
		tracker: tr,
		run:     strconv.FormatInt(time.Now().UnixNano(), 36),
		hosts:   make(map[string]bool),
		busy:    5 * time.Second,
		copies:  newLimit(maxCopies),
		light:   newLimit(maxLight),
		waiting: newLimit(maxWaiting),
		files:   newLimit(maxFiles),
	}
	for _, o := range options {
		o(h)
	}
	h.pages = map[string]http.HandlerFunc{
		"":                  h.index,
		"profile":           h.profile,
		"snapshot":          h.snapshot,
		"dump":              h.dump,
		"trace":             h.trace,
		"memory_viz.pickle": h.pickle,
		"report":            h.report,
		"leaks":             h.leaks,
		"levels":            h.levels,
		"timeline":          h.timeline,
		"marks":             newLimit(maxReaders).guard(h.marks),
		"metrics":           h.metrics,
		"favicon.ico":       h.icon,
	}
	return h
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	if !h.allows(r.Host) {
		refuseHost(w, r.Host)
		return
	}
	name := ""
	if p := r.URL.Path; p != "" && !strings.HasSuffix(p, "/") { // it is empty behind a StripPrefix with the slash
		name = path.Base(p)
	}
	page, ok := h.pages[name]
	switch {
	case !ok:
		http.Error(w, fmt.Sprintf("no page %q here: see the index", name), http.StatusNotFound)
	case r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodPost && name == "profile":
		page(w, r)
	default:
		refuseMethod(w, "GET, HEAD", "only GET: this page reads")
	}
}

// metrics answers in the format that the client asks for: that of OpenMetrics,
// or Prometheus's own.
func (h *handler) metrics(w http.ResponseWriter, r *http.Request) {
	q := newQuery(r)
	cfg := prom.Config{TopSites: q.number("top", 100), Suspects: q.flag("suspects")}
	if q.refused(w) {
		return
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(prom.NewCollector(h.tracker, cfg))
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(newPatient(w), r)
}
