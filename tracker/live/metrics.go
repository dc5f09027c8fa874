package live

import (
	"errors"
	"iter"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/gpumemtrack/gpumemtrack/tracker/export/prom"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func (h *handler) metrics(w http.ResponseWriter, r *http.Request) {
	one := func(yield func(Source) bool) { yield(h.source) }
	h.scrape(w, r, one, func(*snapshot.Snapshot) prometheus.Labels { return nil })
}

// scrape answers with the metrics of sources, in the format that the client asks for. The labels that labels returns are
// added to those of a source's device.
//
// Each scrape has a registry of its own: the series of a source that is gone are gone too. promhttp writes after all
// snapshots are taken, so a slow client delays nothing.
func (h *handler) scrape(w http.ResponseWriter, r *http.Request, sources iter.Seq[Source], labels func(*snapshot.Snapshot) prometheus.Labels) {
	q := newQuery(r)
	cfg, suspects := prom.Config{TopCallSites: q.number("top", 100)}, q.flag("suspects")
	if q.refused(w) {
		return
	}
	registry := prometheus.NewRegistry()
	var err error
	switch {
	case r.Method == http.MethodHead: // its answer has no body
	case suspects:
		err = h.limited(h.copies, r, func() error { return register(registry, sources, Source.Snapshot, cfg, labels) })
	default:
		err = register(registry, sources, Source.LightSnapshot, cfg, labels)
	}
	if err != nil {
		refuse(w, err)
		return
	}
	promhttp.HandlerFor(registry, promhttp.HandlerOpts{EnableOpenMetrics: true}).ServeHTTP(newPatient(w), r)
}

// register adds a collector of each source to a registry. All values of a source are of one snapshot.
func register(to prometheus.Registerer, sources iter.Seq[Source], take func(Source) *snapshot.Snapshot, cfg prom.Config, labels func(*snapshot.Snapshot) prometheus.Labels) error {
	for source := range sources {
		s := take(source)
		collector := prom.NewCollector(func() *snapshot.Snapshot { return s }, cfg)
		err := prometheus.WrapRegistererWith(labels(s), to).Register(collector)
		if _, known := errors.AsType[prometheus.AlreadyRegisteredError](err); known {
			continue // an earlier process may have had the same number: the first source with it counts
		}
		if err != nil {
			return err
		}
	}
	return nil
}
