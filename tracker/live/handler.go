package live

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/prom"
)

const (
	maxCopies  = 4                // answers at a time that hold a copy of the ledger
	maxReaders = 64               // clients of marks at a time
	patience   = 30 * time.Second // for a client that takes nothing
)

// Handler returns a handler for all that the package comment lists. It is for
// any path that ends in a slash; a tracker that is closed answers with what it has left.
func Handler(tr *tracker.MemTracker) http.Handler {
	h := &handler{
		tracker: tr,
		copies:  make(chan struct{}, maxCopies),
		readers: make(chan struct{}, maxReaders),
	}
	h.pages = map[string]http.HandlerFunc{
		"":                  h.index,
		"profile":           h.limited(h.copies, h.profile),
		"snapshot":          h.limited(h.copies, h.snapshot),
		"dump":              h.limited(h.copies, h.dump),
		"trace":             h.limited(h.copies, h.trace),
		"memory_viz.pickle": h.limited(h.copies, h.pickle),
		"report":            h.limited(h.copies, h.report),
		"levels":            h.levels,
		"marks":             h.limited(h.readers, h.marks),
		"metrics":           h.metrics,
	}
	return h
}

type handler struct {
	tracker *tracker.MemTracker
	pages   map[string]http.HandlerFunc
	copies  chan struct{}
	readers chan struct{}
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("X-Content-Type-Options", "nosniff")
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "only GET: this handler reads", http.StatusMethodNotAllowed)
		return
	}
	name := ""
	if !strings.HasSuffix(r.URL.Path, "/") {
		name = path.Base(r.URL.Path)
	}
	page, ok := h.pages[name]
	if !ok {
		http.Error(w, fmt.Sprintf("no page %q here: see the index", name), http.StatusNotFound)
		return
	}
	page(w, r)
}

// limited answers 503 while as many requests are in work as the channel holds.
func (h *handler) limited(in chan struct{}, page http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		select {
		case in <- struct{}{}:
			defer func() { <-in }()
			page(w, r)
		default:
			w.Header().Set("Retry-After", "5")
			http.Error(w, "too many requests of this kind are in work: try again in a few seconds", http.StatusServiceUnavailable)
		}
	}
}

func (h *handler) metrics(w http.ResponseWriter, r *http.Request) {
	top, ok := number(w, r, "top", 100)
	if !ok {
		return
	}
	registry := prometheus.NewRegistry()
	registry.MustRegister(prom.NewCollector(h.tracker, prom.Config{TopSites: top}))
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{}).ServeHTTP(w, r)
}

// patient is a response whose client has a while for each piece, and ends a
// request whose client takes nothing. It gives the client the time that the
// server's WriteTimeout may not.
type patient struct {
	http.ResponseWriter
	control *http.ResponseController
}

func newPatient(w http.ResponseWriter) patient {
	return patient{w, http.NewResponseController(w)}
}

const piece = 1 << 16 // what a client has to take within the time

func (p patient) Write(b []byte) (n int, err error) {
	for first := true; first || len(b) > 0; first = false {
		// A writer that has no deadlines is a test's, or a middleware's that sees to it.
		_ = p.control.SetWriteDeadline(time.Now().Add(patience))
		m, err := p.ResponseWriter.Write(b[:min(len(b), piece)])
		n += m
		if err != nil {
			return n, err
		}
		b = b[m:]
	}
	return n, nil
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

// answer is a buffer for answers that are small.
func answer(w http.ResponseWriter, contentType string, write func(*bytes.Buffer) error) {
	var b bytes.Buffer
	if err := write(&b); err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", contentType)
	newPatient(w).Write(b.Bytes())
}
