package live

import (
	"context"
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

const (
	maxCopies  = 4  // answers at a time that hold a copy of the ledger
	maxReaders = 64 // clients of marks at a time
	maxWaiting = 64 // profiles at a time that wait for their seconds to pass
)

// Handler returns a handler for all that the package comment lists. It is for
// any path that ends in a slash; a tracker that is closed answers with what it has left.
// A nil tracker is a panic.
func Handler(tr *tracker.MemTracker) http.Handler {
	if tr == nil {
		panic("live.Handler: the tracker is nil")
	}
	h := &handler{
		tracker: tr,
		run:     strconv.FormatInt(time.Now().UnixNano(), 36),
		copies:  newLimit(maxCopies),
		waiting: newLimit(maxWaiting),
	}
	h.pages = map[string]http.HandlerFunc{
		"":                  h.index,
		"profile":           h.profile,
		"snapshot":          h.copies.guard(h.snapshot),
		"dump":              h.copies.guard(h.dump),
		"trace":             h.copies.guard(h.trace),
		"memory_viz.pickle": h.copies.guard(h.pickle),
		"report":            h.copies.guard(h.report),
		"leaks":             h.copies.guard(h.leaks),
		"levels":            h.levels,
		"marks":             newLimit(maxReaders).guard(h.marks),
		"metrics":           h.metrics,
	}
	return h
}

type handler struct {
	tracker *tracker.MemTracker
	run     string // tells the marks of this handler from those of a program before
	pages   map[string]http.HandlerFunc
	copies  limit
	waiting limit
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	w.Header().Set("Cache-Control", "no-store")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET: this handler reads", http.StatusMethodNotAllowed)
		return
	}
	name := ""
	if p := r.URL.Path; p != "" && !strings.HasSuffix(p, "/") { // it is empty behind a StripPrefix with the slash
		name = path.Base(p)
	}
	page, ok := h.pages[name]
	if !ok {
		http.Error(w, fmt.Sprintf("no page %q here: see the index", name), http.StatusNotFound)
		return
	}
	page(w, r)
}

func (h *handler) metrics(w http.ResponseWriter, r *http.Request) {
	top, ok := number(w, r, "top", 100)
	if !ok {
		return
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(prom.NewCollector(h.tracker, prom.Config{TopSites: top, Suspects: isSet(r, "suspects")}))
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(newPatient(w), r)
}

// wait waits for some time, or until the client is gone.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}
