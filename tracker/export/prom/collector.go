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
}

// collector collects the metrics of one source.
type collector struct {
	take  func() *snapshot.Snapshot
	cfg   metrics.Config
	descs map[string]*prometheus.Desc // by name
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
	c := &collector{take, metrics.Config{TopCallSites: cfg.TopCallSites, Suspects: true}, make(map[string]*prometheus.Desc)}
	device := prometheus.Labels(metrics.DeviceLabels(take()))
	for f := range metrics.Families(c.cfg) {
		var labels []string
		if f.Label != "" {
			labels = []string{f.Label}
		}
		c.descs[f.Name] = prometheus.NewDesc(f.Name, f.Help, labels, device)
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
		to <- d
	}
}

// Collect sends the values of one instant.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	for f, series := range metrics.Of(c.take(), c.cfg).All() {
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
