package prom

import (
	"errors"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Config says what a collector gives in addition to the levels. The zero Config adds nothing.
type Config struct {
	// TopCallSites is the number of lines of code that gpumem_call_site_live_bytes reports, those
	// with the most live bytes; the others are summed as "other". 0 means none. The lines may
	// change from scrape to scrape, and with them the series.
	TopCallSites int
}

// collector collects the metrics of one source.
type collector struct {
	take  func() *snapshot.Snapshot
	cfg   Config
	descs [len(families)]*prometheus.Desc // nil for a metric that cfg leaves out
}

// NewCollector returns a collector of the metrics of what take returns, for a registry. Each scrape calls take once, in
// any goroutine. It is the LightSnapshot of a *tracker.MemTracker or an *attach.Source, or the Snapshot: that costs more,
// and adds gpumem_suspect_bytes and gpumem_suspect_buffers, what leaks.Suspects finds, by line of code.
//
// A registry may have several collectors if their devices differ in name or ordinal. Otherwise tell them apart by labels
// of your own: see prometheus.WrapRegistererWith. A registry refuses the collector of a nil take
// with an error.
func NewCollector(take func() *snapshot.Snapshot, cfg Config) prometheus.Collector {
	if take == nil {
		return noSource{}
	}
	c := &collector{take: take, cfg: cfg}
	device := deviceLabels(take())
	for i, f := range families {
		if i != siteBytes || cfg.TopCallSites > 0 {
			c.descs[i] = prometheus.NewDesc(f.name, f.help, f.labels(), device)
		}
	}
	return c
}

// noSource is the collector where nothing takes a snapshot.
type noSource struct{}

var errNoSource = errors.New("prom.NewCollector: nothing takes a snapshot")

// Describe sends what a registry refuses.
func (noSource) Describe(to chan<- *prometheus.Desc) { to <- prometheus.NewInvalidDesc(errNoSource) }

// Collect sends nothing: no registry has the collector.
func (noSource) Collect(chan<- prometheus.Metric) {}

// Describe sends every metric.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range c.descs {
		if d != nil {
			to <- d
		}
	}
}

// Collect sends the values of one instant.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	for i, series := range valuesOf(c.take(), c.cfg) {
		for value, n := range series {
			var labels []string
			if families[i].label != "" {
				labels = []string{value}
			}
			to <- prometheus.MustNewConstMetric(c.descs[i], families[i].valueType(), n, labels...)
		}
	}
}
