package live

import (
	_ "embed"
	"fmt"
	"io"
	"iter"
	"net/http"
	"net/url"
	"path"
	"strconv"
	"strings"
	"sync"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpumemtrack/gpumemtrack/internal/webpage"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Several returns a handler for sources that come and go, each with a name that is an
// element of a path:
//
//	/            the sources, with links; where there is one, its page
//	/list        the sources, also if there is one
//	/NAME/       what Handler answers for the source of that name
//	/dump        all of them, the first with the rest as its others: JSON
//	/metrics     all of them, with the labels program and pid
//
// It calls list for each request. The names of hosts are those of Handler. The sources must be comparable, as pointers are. The limits
// of the package comment are for all sources together.
func Several(list func() iter.Seq2[string, Source], hosts ...string) http.Handler {
	s := &several{handler: newHandler(hosts), list: list, known: make(map[Source]*handler)}
	s.pages = map[string]http.HandlerFunc{
		"": s.first, "list": s.index, "dump": s.dump, "metrics": s.metrics, "favicon.ico": s.icon,
	}
	return s
}

type several struct {
	*handler
	list func() iter.Seq2[string, Source]

	mu    sync.Mutex
	known map[Source]*handler
	seen  int // number of sources so far
}

// ServeHTTP chooses the answer by the last element of the path. If the element before it names a
// source, that source's handler answers.
func (s *several) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if !s.admit(w, r) {
		return
	}
	h := s.handler
	folder, _ := path.Split(r.URL.Path)
	all := make(map[Source]bool)
	for name, source := range s.list() {
		all[source] = true
		if name == path.Base(folder) {
			h = s.handlerOf(source)
		}
	}
	s.dropGone(all)
	h.answer(w, r, lastElement(r.URL.Path))
}

// handlerOf returns the handler of a source. All handlers share the limits.
func (s *several) handlerOf(source Source) *handler {
	s.mu.Lock()
	defer s.mu.Unlock()
	h := s.known[source]
	if h == nil {
		its := *s.handler
		h = &its
		h.run += "-" + strconv.Itoa(s.seen)
		s.seen++
		h.serve(source)
		s.known[source] = h
	}
	return h
}

// dropGone drops the handlers of sources that are no longer listed.
func (s *several) dropGone(all map[Source]bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for source := range s.known {
		if !all[source] {
			delete(s.known, source)
		}
	}
}

// first leads to the page of the only source there is, or lists them.
func (s *several) first(w http.ResponseWriter, r *http.Request) {
	only, n := "", 0
	for name := range s.list() {
		only, n = name, n+1
	}
	if n == 1 && !request.New(r).Refused(w) {
		w.Header().Set("Location", only+"/") // relative to this folder, wherever the handler is mounted
		w.WriteHeader(http.StatusFound)
		return
	}
	s.index(w, r)
}

var (
	//go:embed several.html
	severalHTML string

	severalTemplate = webpage.Template{Text: severalHTML}
	severalPolicy   = sync.OnceValue(func() string { return webpage.Policy("") })
)

// severalPage is what several.html shows.
type severalPage struct {
	webpage.Page
	Sources []sourceRow
}

// sourceRow is a line of the list of sources.
type sourceRow struct {
	Link       string // the source's page, relative to the list
	Of, On     string
	Live, Peak mem.Tally
	Ended      bool
}

func (s *several) index(w http.ResponseWriter, r *http.Request) {
	if request.New(r).Refused(w) {
		return
	}
	w.Header().Set("Content-Security-Policy", severalPolicy()+"; frame-ancestors 'none'")
	w.Header().Set("Refresh", "5") // the browser asks again after 5 seconds
	s.send(w, r, htmlFile, s.within(s.light, r, func(w io.Writer) error {
		return severalTemplate.Execute(w, s.page())
	}))
}

func (s *several) page() severalPage {
	var p severalPage
	for name, source := range s.list() {
		at := source.LightSnapshot()
		p.Sources = append(p.Sources, sourceRow{folder(name), at.Origin.String(), export.Device(at), at.Live, at.Peak, s.handlerOf(source).ended()})
	}
	p.Title = fmt.Sprintf("Live: %d sources", len(p.Sources))
	return p
}

// folder returns the address of a source's page in this folder, whatever its name holds: a name is no scheme and no host.
func folder(name string) string {
	if strings.HasPrefix(name, "/") {
		name = "." + name
	}
	address := url.URL{Path: name + "/"} // String puts "./" before a name with a colon
	return address.String()
}

// dump writes the dumps of all sources as one, as a file of several devices has them.
func (s *several) dump(w http.ResponseWriter, r *http.Request) {
	s.sendFull(w, r, jsonFile.named("gpumem.dump.json"), func(w io.Writer) error {
		var first *snapshot.Dump
		for _, source := range s.list() {
			if its := source.Dump(); first == nil {
				first = its
			} else {
				first.Others = append(first.Others, its)
			}
		}
		if first == nil {
			return errNothingYet
		}
		return first.WriteJSON(w)
	})
}

func (s *several) metrics(w http.ResponseWriter, r *http.Request) {
	all := func(yield func(Source) bool) {
		for _, source := range s.list() {
			if !yield(source) {
				return
			}
		}
	}
	s.scrape(w, r, all, func(at *snapshot.Snapshot) prometheus.Labels {
		return prometheus.Labels{
			"pid":       strconv.Itoa(at.Origin.PID),
			"program":   strings.ToValidUTF8(at.Origin.Program, "\uFFFD"),
			"container": strings.ToValidUTF8(at.Origin.Container, "\uFFFD"),
		}
	})
}
