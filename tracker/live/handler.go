package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"path"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Handler returns a handler for all that the package comment lists. Mount it at any path that ends
// in a slash. A closed tracker still answers with what it has kept. If source is nil, each page is
// answered with 503.
//
// It accepts requests whose Host header has one of the names of hosts, without a port, such as
// "gpu-7.example.com"; "*" accepts all. It always accepts numeric addresses, localhost, and names that
// end in ".localhost".
func Handler(source Source, hosts ...string) http.Handler {
	h := newHandler(hosts)
	if v := reflect.ValueOf(source); v.IsValid() && (v.Kind() != reflect.Pointer || !v.IsNil()) {
		h.serve(source)
	}
	return h
}

// Source has the memory that the pages show: a *tracker.MemTracker for this program's, an
// *attach.Source for another program's. Any goroutine may call its methods.
//
// If a source also has a tracker's method ClearCache, its memory is in this program: /profile then
// accepts gc=1.
type Source interface {
	Snapshot() *snapshot.Snapshot
	LightSnapshot() *snapshot.Snapshot // without single allocations
	// WaitMark returns the oldest mark kept whose Seq is above after, and waits for one if
	// there is none. The error is the context's, or alloc.ErrClosed when there will be no more.
	WaitMark(ctx context.Context, after int) (*snapshot.Mark, error)
	Dump() *snapshot.Dump
}

// isInProcess reports whether a source shows the memory of this program.
func isInProcess(s Source) bool {
	_, ok := s.(interface{ ClearCache() (alloc.Bytes, error) })
	return ok
}

const (
	maxCopies  = 4  // concurrent answers from a copy of the whole ledger
	maxLight   = 4  // concurrent answers from groups and call sites
	maxReaders = 64 // concurrent clients of marks
	maxWaiting = 64 // concurrent profiles of some seconds
)

type handler struct {
	source    Source
	inProcess bool   // the source shows the memory of this program
	run       string // distinguishes marks of this run from those of an earlier one
	pages     map[string]http.HandlerFunc
	hosts     map[string]bool // allowed in the Host header
	waitLimit time.Duration   // how long a request waits for a semaphore
	copies    semaphore
	light     semaphore
	waiting   semaphore
	files     semaphore
	readers   semaphore
}

func newHandler(hosts []string) *handler {
	h := &handler{
		run:       strconv.FormatInt(time.Now().UnixNano(), 36),
		hosts:     make(map[string]bool),
		waitLimit: 5 * time.Second,
		copies:    newSemaphore(maxCopies),
		light:     newSemaphore(maxLight),
		waiting:   newSemaphore(maxWaiting),
		files:     newSemaphore(maxFiles),
		readers:   newSemaphore(maxReaders),
	}
	for _, name := range hosts {
		h.hosts[request.CanonicalHost(name)] = true
	}
	return h
}

// serve sets the pages of a source.
func (h *handler) serve(source Source) {
	h.source, h.inProcess = source, isInProcess(source)
	h.pages = map[string]http.HandlerFunc{
		"":                  h.index,
		"profile":           h.profile,
		"snapshot":          h.snapshot,
		"dump":              h.dump,
		"trace":             h.trace,
		"memory_viz.pickle": h.pickle,
		"report":            h.report,
		"leaks":             h.leaks,
		"lines":             h.lines,
		"levels":            h.levels,
		"timeline":          h.timeline,
		"marks":             h.readers.wrap(h.marks),
		"metrics":           h.metrics,
		"favicon.ico":       h.icon,
	}
}

// ServeHTTP answers by the last element of the path.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.admit(w, r) {
		h.answer(w, r, lastElement(r.URL.Path))
	}
}

// admit writes the headers that every answer has, and refuses hosts that are not allowed.
func (h *handler) admit(w http.ResponseWriter, r *http.Request) bool {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	if !h.hosts["*"] && !request.AllowsHost(r.Host, h.hosts) {
		refuseHost(w, r.Host)
		return false
	}
	return true
}

// lastElement is "" for a folder. A path is empty behind a StripPrefix with the slash.
func lastElement(p string) string {
	if p == "" || strings.HasSuffix(p, "/") {
		return ""
	}
	return path.Base(p)
}

func (h *handler) answer(w http.ResponseWriter, r *http.Request, name string) {
	page, ok := h.pages[name]
	switch {
	case h.pages == nil:
		refuse(w, errNoSource)
	case !ok:
		http.Error(w, fmt.Sprintf("no page %q here: see the index", name), http.StatusNotFound)
	case r.Method == http.MethodGet || r.Method == http.MethodHead || r.Method == http.MethodPost && name == "profile":
		page(w, r)
	default:
		refuseMethod(w, "GET, HEAD", "only GET: this page reads")
	}
}

func refuseHost(w http.ResponseWriter, host string) {
	http.Error(w, fmt.Sprintf("the host %q is not allowed: ask by localhost or by an address, or let the program pass %q to live.Handler, or gpumemtrack attach --allow-host %[2]q",
		host, request.CanonicalHost(strings.Split(host, ":")[0])), http.StatusForbidden)
}

// send calls write for a complete answer before it sends that, because sending may wait for the client.
// For HEAD it sends the headers only. If write fails, its error is sent instead.
func (h *handler) send(w http.ResponseWriter, r *http.Request, f file, write func(io.Writer) error) {
	header := w.Header()
	header.Set("Content-Type", f.contentType)
	if f.name != "" {
		header.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", f.name))
	}
	if !f.compressed {
		header.Set("Vary", "Accept-Encoding")
	}
	if r.Method == http.MethodHead {
		return
	}
	body := &spool{files: h.files}
	defer body.close()
	if err := f.write(body, header, acceptsGzip(r), write); err != nil {
		header.Del("Content-Disposition")
		header.Del("Content-Encoding")
		refuse(w, err)
		return
	}
	header.Set("Content-Length", strconv.FormatInt(body.size, 10))
	if err := body.sendTo(newDeadlineWriter(w)); err != nil {
		panic(http.ErrAbortHandler) // the client is gone, or must not take a part for a complete answer
	}
}

// within returns write, limited by a semaphore.
func (h *handler) within(limit semaphore, r *http.Request, write func(io.Writer) error) func(io.Writer) error {
	return func(w io.Writer) error {
		return h.limited(limit, r, func() error { return write(w) })
	}
}

// limited calls do while it holds a semaphore, for which it waits at most waitLimit. An answer holds it
// only while it is made, not while it is sent.
func (h *handler) limited(limit semaphore, r *http.Request, do func() error) error {
	ctx, cancel := context.WithTimeoutCause(r.Context(), h.waitLimit, errBusy)
	defer cancel()
	if limit.acquire(ctx) != nil {
		return context.Cause(ctx)
	}
	defer limit.release()
	return do()
}

func refuseMethod(w http.ResponseWriter, allowed, why string) {
	w.Header().Set("Allow", allowed)
	http.Error(w, why, http.StatusMethodNotAllowed)
}

// refuse answers with an error.
func refuse(w http.ResponseWriter, err error) {
	code := http.StatusInternalServerError
	for _, later := range []error{errBusy, errNothingYet, errNoSource, alloc.ErrClosed, context.Canceled, context.DeadlineExceeded} {
		if errors.Is(err, later) {
			code = http.StatusServiceUnavailable
		}
	}
	if errors.Is(err, errBusy) {
		w.Header().Set("Retry-After", "5")
	}
	http.Error(w, err.Error(), code)
}

var (
	errBusy       = errors.New("too many requests of this kind are in work: try again in a few seconds")
	errNoSource   = errors.New("there is nothing to show: the program gave live.Handler a source that is nil")
	errNothingYet = errors.New("there is nothing to show yet: no memory was allocated")
)
