package prom

import (
	"cmp"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// Config says what a collector gives in addition to the levels. The zero Config adds nothing.
type Config struct {
	// TopSites is for how many lines of code gpumem_site_live_bytes is given,
	// those with the most live bytes; the others are summed as "other". 0 is none. The lines
	// may change from scrape to scrape, and with them the series.
	TopCallSites int
	// Suspects adds gpumem_suspect_bytes and gpumem_suspect_buffers: what
	// leaks.Suspects finds, by line of code. Each scrape then costs a Snapshot.
	Suspects bool
}

// Source is whose memory is collected: a *tracker.MemTracker, for one. Its methods
// may be called from any goroutine.
type Source interface {
	Snapshot() *snapshot.Snapshot
	LightSnapshot() *snapshot.Snapshot // without single allocations
}

// collector collects the metrics of one source.
type collector struct {
	source Source
	cfg    Config
	metrics
}

// NewCollector returns a collector of the source's metrics, for a registry. Several sources may have
// collectors in one registry if their devices, as they are now, differ in name or ordinal; the
// collectors of others differ by labels of yours: see prometheus.WrapRegistererWith. A nil
// source is a panic.
func NewCollector(source Source, cfg Config) prometheus.Collector {
	if source == nil {
		panic("prom.NewCollector: the source is nil")
	}
	return &collector{source, cfg, metricsOf(source.LightSnapshot())}
}

// metrics are the metrics of one device.
type metrics struct {
	liveBytes, liveBuffers, memoryBytes, peakBytes, reservedBytes, deviceBytes *prometheus.Desc
	allocations, allocationBytes, largestInactive, cacheRetries, cacheOOMs     *prometheus.Desc
	siteBytes, suspectBytes, suspectBuffers                                    *prometheus.Desc
}

func metricsOf(s *snapshot.Snapshot) metrics {
	device := prometheus.Labels{"device": label(s.Device), "ordinal": strconv.Itoa(s.Ordinal), "uuid": label(s.UUID)}
	describe := func(name, help string, labels ...string) *prometheus.Desc {
		return prometheus.NewDesc("gpumem_"+name, help, labels, device)
	}
	return metrics{
		liveBytes:       describe("live_bytes", "Requested bytes of the live buffers, by what they are for.", "kind"),
		liveBuffers:     describe("live_buffers", "Number of live buffers, by what they are for.", "kind"),
		memoryBytes:     describe("memory_live_bytes", "Requested bytes of the live buffers, by the type of memory; pinned and mapped memory is the host's, and in no other metric.", "memory"),
		peakBytes:       describe("peak_live_bytes", "Highest sum of requested bytes of live buffers."),
		reservedBytes:   describe("reserved_bytes", "Memory that the tracker's device holds from the driver: allocated, inactive, or freed while other streams may still use it.", "state"),
		deviceBytes:     describe("device_memory_bytes", "All memory of the device: reserved by the tracker, registered by other code, in use but untracked, free.", "state"),
		allocations:     describe("allocations_total", "Buffers ever allocated."),
		allocationBytes: describe("allocation_bytes_total", "Requested bytes of all buffers ever allocated."),
		largestInactive: describe("cache_largest_inactive_bytes", "Largest inactive block: the largest request that is served without the driver."),
		cacheRetries:    describe("cache_retries_total", "Times that the driver was out of memory and was asked again after the cache was emptied."),
		cacheOOMs:       describe("cache_oom_total", "Requests refused for lack of memory."),
		siteBytes:       describe("call_site_live_bytes", "Requested bytes of live buffers, by the line of code that allocated them.", "call_site"),
		suspectBytes:    describe("suspect_bytes", "Requested bytes of live buffers that look forgotten, by the line of code that allocated them.", "call_site"),
		suspectBuffers:  describe("suspect_buffers", "Number of live buffers that look forgotten, by the line of code that allocated them.", "call_site"),
	}
}

// Describe sends every metric.
func (c *collector) Describe(to chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{
		c.liveBytes, c.liveBuffers, c.memoryBytes, c.peakBytes, c.reservedBytes, c.deviceBytes,
		c.allocations, c.allocationBytes, c.largestInactive, c.cacheRetries, c.cacheOOMs,
	} {
		to <- d
	}
	if c.cfg.TopCallSites > 0 {
		to <- c.siteBytes
	}
	if c.cfg.Suspects {
		to <- c.suspectBytes
		to <- c.suspectBuffers
	}
}

// Collect sends the values of one instant.
func (c *collector) Collect(to chan<- prometheus.Metric) {
	s := c.source.LightSnapshot()
	out := sender{to, c.metrics}
	out.kinds(s)
	out.memory(s)
	out.gauge(out.peakBytes, float64(s.Peak.Bytes))
	out.counter(out.allocations, float64(s.Total.Count))
	out.counter(out.allocationBytes, float64(s.Total.Bytes))
	out.reserved(s)
	out.whole(s)
	if c.cfg.TopCallSites > 0 {
		out.sites(s, c.cfg.TopCallSites)
	}
	if c.cfg.Suspects {
		out.suspects(c.source.Snapshot())
	}
}

// label returns a text as Prometheus and a terminal take it.
func label(name string) string { return text.Line(strings.ToValidUTF8(name, "\uFFFD")) }

// sender sends the metrics of a device.
type sender struct {
	to chan<- prometheus.Metric
	metrics
}

func (o sender) send(d *prometheus.Desc, t prometheus.ValueType, value float64, labels []string) {
	o.to <- prometheus.MustNewConstMetric(d, t, value, labels...)
}

func (o sender) gauge(d *prometheus.Desc, value float64, labels ...string) {
	o.send(d, prometheus.GaugeValue, value, labels)
}

func (o sender) counter(d *prometheus.Desc, value float64) {
	o.send(d, prometheus.CounterValue, value, nil)
}

// kinds sends the well-known kinds always, so that their series do not come and
// go, and others that have live buffers.
func (o sender) kinds(s *snapshot.Snapshot) {
	sums := make(map[mem.Kind]mem.Tally)
	for _, kind := range mem.Kinds() {
		sums[kind] = mem.Tally{}
	}
	for g := range s.Groups() {
		if g.Memory.OnHost() {
			continue
		}
		sums[g.Kind] = sums[g.Kind].Add(g.Tally)
	}
	for kind, sum := range sums {
		o.gauge(o.liveBytes, float64(sum.Bytes), kind.String())
		o.gauge(o.liveBuffers, float64(sum.Count), kind.String())
	}
}

// memory sends plain device memory, and the other kinds that have live buffers. A source may not
// tell types of memory.
func (o sender) memory(s *snapshot.Snapshot) {
	if s.Memory == (snapshot.ByMemory{}) && !s.Live.IsZero() {
		return
	}
	for _, m := range alloc.Memories() {
		if live := s.Memory[m]; m == alloc.DeviceMemory || !live.IsZero() {
			o.gauge(o.memoryBytes, float64(live.Bytes), m.String())
		}
	}
}

func (o sender) reserved(s *snapshot.Snapshot) {
	if s.Cache == nil {
		o.gauge(o.reservedBytes, float64(s.Reserved), "allocated")
		return
	}
	o.gauge(o.reservedBytes, float64(s.Cache.Allocated.Bytes.Current), "allocated")
	o.gauge(o.reservedBytes, float64(s.Cache.Inactive.Bytes.Current), "inactive")
	if s.Cache.Pending.Bytes.Total > 0 { // a program with several streams
		o.gauge(o.reservedBytes, float64(s.Cache.Pending.Bytes.Current), "pending")
	}
	o.gauge(o.largestInactive, float64(s.Cache.LargestInactive))
	o.counter(o.cacheRetries, float64(s.Cache.Retries))
	o.counter(o.cacheOOMs, float64(s.Cache.OOMs))
}

// whole sends nothing if the driver does not say what it has.
func (o sender) whole(s *snapshot.Snapshot) {
	if s.DriverUsed < 0 || s.DriverTotal < 0 {
		return
	}
	o.gauge(o.deviceBytes, float64(s.Reserved), "reserved")
	o.gauge(o.deviceBytes, float64(s.Registered), "registered")
	if untracked := s.Untracked(); untracked >= 0 {
		o.gauge(o.deviceBytes, float64(untracked), "untracked")
	}
	o.gauge(o.deviceBytes, float64(s.DriverTotal-s.DriverUsed), "free")
}

func (o sender) sites(s *snapshot.Snapshot, top int) {
	sums, names := make(map[string]alloc.Bytes), linesOf(s)
	for site := range s.CallSites() {
		if site.Live.Bytes == 0 || site.Memory.OnHost() {
			continue
		}
		sums[label(names.Of(site.CallSite))] += site.Live.Bytes
	}
	var other alloc.Bytes
	for i, name := range largestFirst(sums) {
		if i < top {
			o.gauge(o.siteBytes, float64(sums[name]), name)
		} else {
			other += sums[name]
		}
	}
	o.gauge(o.siteBytes, float64(other), "other")
}

func (o sender) suspects(s *snapshot.Snapshot) {
	sums, names := make(map[string]mem.Tally), linesOf(s) // a name may stand for several functions
	for _, suspect := range leaks.Suspects(s) {
		site := label(names.Of(suspect.CallSite))
		sums[site] = sums[site].Add(suspect.Tally)
	}
	for site, sum := range sums {
		o.gauge(o.suspectBytes, float64(sum.Bytes), site)
		o.gauge(o.suspectBuffers, float64(sum.Count), site)
	}
}

// linesOf names the lines of code, those of one name with their folders.
func linesOf(s *snapshot.Snapshot) *lines.Names {
	return lines.NewNames(func(yield func(mem.Frame) bool) {
		for site := range s.CallSites() {
			if !yield(site.CallSite) {
				return
			}
		}
	})
}

func largestFirst(sums map[string]alloc.Bytes) []string {
	return slices.SortedFunc(maps.Keys(sums), func(x, y string) int {
		return cmp.Or(cmp.Compare(sums[y], sums[x]), cmp.Compare(x, y))
	})
}
