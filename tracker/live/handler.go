package live

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path"
	"reflect"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Handler returns a handler for all that the package comment lists. Mount it at any path that ends
// in a slash. A closed tracker still answers with what it has left. Where source is nil, each page is
// answered with 503.
//
// It accepts requests whose Host header has one of the names of hosts, without a port, such as
// "gpu-7.example.com"; "*" accepts all. It always accepts numeric addresses, localhost, and names that
// end in ".localhost".
func Handler(source Source, hosts ...string) http.Handler {
	h := newHandler(hosts)
	if v := reflect.ValueOf(source); v.IsValid() && (v.Kind() != reflect.Pointer || !v.IsNil()) {
		h.show(source)
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

// inside reports whether a source shows the memory of this program.
func inside(s Source) bool {
	_, ok := s.(interface{ ClearCache() (alloc.Bytes, error) })
	return ok
}

const (
	maxCopies  = 4  // answers at a time that are made from a copy of the whole ledger
	maxLight   = 4  // light answers at a time, made from groups and call sites
	maxReaders = 64 // clients of marks at a time
	maxWaiting = 64 // profiles at a time that wait for their seconds to pass
)

type handler struct {
	source  Source
	inside  bool   // the source shows the memory of this program
	run     string // tells marks of this run from those of an earlier one
	pages   map[string]http.HandlerFunc
	hosts   map[string]bool // that the program lets in
	busy    time.Duration   // how long a request waits for a place to make its answer
	copies  limit
	light   limit
	waiting limit
	files   limit
	readers limit
}

func newHandler(hosts []string) *handler {
	h := &handler{
		run:     strconv.FormatInt(time.Now().UnixNano(), 36),
		hosts:   make(map[string]bool),
		busy:    5 * time.Second,
		copies:  newLimit(maxCopies),
		light:   newLimit(maxLight),
		waiting: newLimit(maxWaiting),
		files:   newLimit(maxFiles),
		readers: newLimit(maxReaders),
	}
	for _, name := range hosts {
		h.hosts[canonical(name)] = true
	}
	return h
}

// show gives the handler the pages of a source.
func (h *handler) show(source Source) {
	h.source, h.inside = source, inside(source)
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
		"marks":             h.readers.guard(h.marks),
		"metrics":           h.metrics,
		"favicon.ico":       h.icon,
	}
}

// ServeHTTP answers by the last element of the path.
func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if h.enters(w, r) {
		h.answer(w, r, lastElement(r.URL.Path))
	}
}

// enters writes the headers that every answer has, and refuses hosts that are not allowed.
func (h *handler) enters(w http.ResponseWriter, r *http.Request) bool {
	header := w.Header()
	header.Set("X-Content-Type-Options", "nosniff")
	header.Set("Cache-Control", "no-store")
	header.Set("Referrer-Policy", "no-referrer")
	header.Set("Cross-Origin-Resource-Policy", "same-origin")
	header.Set("Content-Security-Policy", "default-src 'none'; frame-ancestors 'none'")
	if !h.allows(r.Host) {
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

// allows reports whether the Host header may be what it is. No browser leaves it out. The check stops DNS
// rebinding: a web page that points a name of its own at this program's address. The browser then sends that
// name in the Host header.
func (h *handler) allows(host string) bool {
	name, _, err := net.SplitHostPort(host)
	if err != nil {
		name = strings.TrimSuffix(strings.TrimPrefix(host, "["), "]")
	}
	if _, err := netip.ParseAddr(name); err == nil || name == "" {
		return true
	}
	name = canonical(name)
	return name == "localhost" || strings.HasSuffix(name, ".localhost") || h.hosts[name] || h.hosts["*"]
}

func canonical(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

func refuseHost(w http.ResponseWriter, host string) {
	http.Error(w, fmt.Sprintf("the host %q is not allowed: ask by localhost or by an address, or let the program pass %q to live.Handler, or gpumemtrack attach --allow-host %[2]q",
		host, canonical(strings.Split(host, ":")[0])), http.StatusForbidden)
}

// send makes an answer first and writes it afterwards, because writing may wait for the client. For
// HEAD it writes only the headers. If making the answer fails, the error is sent instead.
func (h *handler) send(w http.ResponseWriter, r *http.Request, f file, write func(io.Writer) error) {
	header := w.Header()
	header.Set("Content-Type", f.contentType)
	if f.name != "" {
		header.Set("Content-Disposition", fmt.Sprintf("attachment; filename=%q", f.name))
	}
	if !f.packed {
		header.Set("Vary", "Accept-Encoding")
	}
	if r.Method == http.MethodHead {
		return
	}
	body := &spool{places: h.files}
	defer body.close()
	if err := f.make(body, header, acceptsGzip(r), write); err != nil {
		header.Del("Content-Disposition")
		header.Del("Content-Encoding")
		refuse(w, err)
		return
	}
	header.Set("Content-Length", strconv.FormatInt(body.size, 10))
	if err := body.sendTo(newPatient(w)); err != nil {
		panic(http.ErrAbortHandler) // the client is gone, or must not take a part for the whole
	}
}

// within makes an answer as limited does.
func (h *handler) within(places limit, r *http.Request, write func(io.Writer) error) func(io.Writer) error {
	return func(w io.Writer) error {
		return h.limited(places, r, func() error { return write(w) })
	}
}

// limited calls do when one of the places is free, and waits a little for that. A place is
// taken only while an answer is made, not while it is written.
func (h *handler) limited(places limit, r *http.Request, do func() error) error {
	ctx, cancel := context.WithTimeoutCause(r.Context(), h.busy, errBusy)
	defer cancel()
	if places.enter(ctx) != nil {
		return context.Cause(ctx)
	}
	defer places.leave()
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
