package prom

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/metrics"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Config says what a collector gives in addition to the levels. The zero Config adds nothing.
type Config struct {
	// TopCallSites is the number of lines of code that gpumem_call_site_live_bytes reports, those
	// with the most live bytes; the others are summed as "other". 0 means none. The lines may
	// change from scrape to scrape, and with them the series.
	TopCallSites int
	// Suspects adds gpumem_suspect_bytes and gpumem_suspect_buffers: what
	// leaks.Suspects finds, by line of code. Each scrape then costs a Snapshot.
	Suspects bool
}

// Source is the owner of the memory, for example a *tracker.MemTracker. Its methods may be called
// from any goroutine.
type Source interface {
	Snapshot() *snapshot.Snapshot
	LightSnapshot() *snapshot.Snapshot // without single allocations
}

// collector collects the metrics of one source.
type collector struct {
	source Source
	cfg    metrics.Config
	descs  map[string]*prometheus.Desc // by name
}

// NewCollector returns a collector of the source's metrics, for a registry. A registry may have the
// collectors of several sources if their devices differ in name or ordinal. Otherwise tell them
// apart by labels of your own: see prometheus.WrapRegistererWith. A registry refuses the collector of
// a nil source with an error.
func NewCollector(source Source, cfg Config) prometheus.Collector {
	if source == nil {
		return noSource{}
	}
	c := &collector{source, metrics.Config(cfg), make(map[string]*prometheus.Desc)}
	device := prometheus.Labels(metrics.DeviceLabels(source.LightSnapshot()))
	for f := range metrics.Families(c.cfg) {
		var labels []string
		if f.Label != "" {
			labels = []string{f.Label}
		}
		c.descs[f.Name] = prometheus.NewDesc(f.Name, f.Help, labels, device)
	}
	return c
}

// noSource is the collector of a nil source.
type noSource struct{}

var errNoSource = errors.New("prom.NewCollector: the source is nil")

// Describe sends what a registry refuses.
func (noSource) Describe(to chan<- *prometheus.Desc) { to <- prometheus.NewInvalidDesc(errNoSource) }

// Collect sends nothing: no registry has the collector.
func (noSource) Collect(chan<- prometheus.Metric) {}

// Describe sends every metric.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		to <- d
	}
}

// Collect sends the values of one instant.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	for f, series := range metrics.Of(c.source, c.cfg).All() {
		kind := prometheus.GaugeValue
		if f.Counter() {
			kind = prometheus.CounterValue
		}
		for label, value := range series {
			if f.Label == "" {
				to <- prometheus.MustNewConstMetric(c.descs[f.Name], kind, value)
			} else {
				to <- prometheus.MustNewConstMetric(c.descs[f.Name], kind, value, label)
			}
		}
	}
}
