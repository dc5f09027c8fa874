package live

import (
	"fmt"
	"net/http"
	"path"
	"reflect"
	"strconv"
	"strings"
	"time"
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
