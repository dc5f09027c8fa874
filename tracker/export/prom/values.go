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
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// Indices of families.
const (
	liveBytes = iota
	liveBuffers
	memoryBytes
	peakBytes
	reservedBytes
	deviceBytes
	allocations
	allocationBytes
	largestInactive
	cacheRetries
	cacheOOMs
	siteBytes
	suspectBytes
	suspectBuffers
)

// family is one metric: its meaning, and the label by which its series differ, "" if it has one series.
type family struct {
	name, help, label string
}

// valueType follows from the name: a metric that only grows ends in _total.
func (f family) valueType() prometheus.ValueType {
	if strings.HasSuffix(f.name, "_total") {
		return prometheus.CounterValue
	}
	return prometheus.GaugeValue
}

// labels returns the names of the variable labels, as prometheus.NewDesc takes them.
func (f family) labels() []string {
	if f.label == "" {
		return nil
	}
	return []string{f.label}
}

var families = [...]family{
	liveBytes:       {"gpumem_live_bytes", "Requested bytes of the live buffers, by what they are for.", "kind"},
	liveBuffers:     {"gpumem_live_buffers", "Number of live buffers, by what they are for.", "kind"},
	memoryBytes:     {"gpumem_memory_live_bytes", "Requested bytes of the live buffers, by the type of memory; pinned and mapped memory is the host's, and in no other metric.", "memory"},
	peakBytes:       {"gpumem_peak_live_bytes", "Highest sum of requested bytes of live buffers.", ""},
	reservedBytes:   {"gpumem_reserved_bytes", "Memory that the tracker's device holds from the driver: allocated, inactive, or freed while other streams may still use it.", "state"},
	deviceBytes:     {"gpumem_device_memory_bytes", "All memory of the device: reserved by the tracker, registered by other code, in use but untracked, free.", "state"},
	allocations:     {"gpumem_allocations_total", "Buffers ever allocated.", ""},
	allocationBytes: {"gpumem_allocation_bytes_total", "Requested bytes of all buffers ever allocated.", ""},
	largestInactive: {"gpumem_cache_largest_inactive_bytes", "Largest inactive block: the largest request that is served without the driver.", ""},
	cacheRetries:    {"gpumem_cache_retries_total", "Times that the driver was out of memory and was asked again after the cache was emptied.", ""},
	cacheOOMs:       {"gpumem_cache_oom_total", "Requests refused for lack of memory.", ""},
	siteBytes:       {"gpumem_call_site_live_bytes", "Requested bytes of live buffers, by the line of code that allocated them.", "call_site"},
	suspectBytes:    {"gpumem_suspect_bytes", "Requested bytes of live buffers that look forgotten, by the line of code that allocated them.", "call_site"},
	suspectBuffers:  {"gpumem_suspect_buffers", "Number of live buffers that look forgotten, by the line of code that allocated them.", "call_site"},
}

// deviceLabels returns the labels that all series of a device share.
func deviceLabels(s *snapshot.Snapshot) prometheus.Labels {
	return prometheus.Labels{"device": labelValue(s.Device), "ordinal": strconv.Itoa(s.Ordinal), "uuid": labelValue(s.UUID)}
}

// labelValue returns text from outside as valid UTF-8 that is harmless in a terminal. Prometheus refuses other bytes, and
// with them the whole scrape.
func labelValue(name string) string { return text.Line(strings.ToValidUTF8(name, "\uFFFD")) }

// values are the series of one source at one instant: by family, and by the value of its label.
type values [len(families)]map[string]float64

// valuesOf returns the values of a snapshot. A light snapshot has no suspects.
func valuesOf(s *snapshot.Snapshot, cfg Config) *values {
	v := new(values)
	v.kinds(s)
	v.memory(s)
	v.add(peakBytes, "", float64(s.Peak.Bytes))
	v.add(allocations, "", float64(s.Total.Count))
	v.add(allocationBytes, "", float64(s.Total.Bytes))
	v.reserved(s)
	v.device(s)
	if cfg.TopCallSites > 0 {
		v.sites(s, cfg.TopCallSites)
	}
	v.suspects(s)
	return v
}

// add adds to a series: two kinds or lines of code that have one name are one series.
func (v *values) add(family int, label string, value float64) {
	if v[family] == nil {
		v[family] = make(map[string]float64)
	}
	v[family][label] += value
}

// kinds sets the well-known kinds always, so that their series do not come and
// go, and others that have live buffers.
func (v *values) kinds(s *snapshot.Snapshot) {
	sums := make(map[mem.Kind]mem.Tally)
	for _, kind := range mem.Kinds() {
		sums[kind] = mem.Tally{}
	}
	for _, g := range s.Sub(nil) {
		if g.Memory.OnHost() {
			continue
		}
		sums[g.Kind] = sums[g.Kind].Add(g.Tally)
	}
	for kind, sum := range sums {
		v.add(liveBytes, kind.String(), float64(sum.Bytes))
		v.add(liveBuffers, kind.String(), float64(sum.Count))
	}
}

// memory sets plain device memory, and the other types that have live buffers. A source may not
// know types of memory.
func (v *values) memory(s *snapshot.Snapshot) {
	if len(s.Memory) == 0 && !s.Live.IsZero() {
		return
	}
	for _, m := range alloc.Memories() {
		if live := s.Memory[m]; m == alloc.DeviceMemory || !live.IsZero() {
			v.add(memoryBytes, m.String(), float64(live.Bytes))
		}
	}
}

func (v *values) reserved(s *snapshot.Snapshot) {
	if s.Cache == nil {
		v.add(reservedBytes, "allocated", float64(s.Reserved))
		return
	}
	v.add(reservedBytes, "allocated", float64(s.Cache.Allocated.Bytes.Current))
	v.add(reservedBytes, "inactive", float64(s.Cache.Inactive.Bytes.Current))
	if s.Cache.Pending.Bytes.Total > 0 { // a program with several streams
		v.add(reservedBytes, "pending", float64(s.Cache.Pending.Bytes.Current))
	}
	v.add(largestInactive, "", float64(s.Cache.LargestInactive))
	v.add(cacheRetries, "", float64(s.Cache.Retries))
	v.add(cacheOOMs, "", float64(s.Cache.OOMs))
}

// device sets nothing if the driver does not say what it has.
func (v *values) device(s *snapshot.Snapshot) {
	if s.DriverUsed < 0 || s.DriverTotal < 0 {
		return
	}
	v.add(deviceBytes, "reserved", float64(s.Reserved))
	v.add(deviceBytes, "registered", float64(s.Registered))
	if untracked := s.Untracked(); untracked >= 0 {
		v.add(deviceBytes, "untracked", float64(untracked))
	}
	v.add(deviceBytes, "free", float64(s.DriverTotal-s.DriverUsed))
}

func (v *values) sites(s *snapshot.Snapshot, top int) {
	live := make(map[mem.Frame]alloc.Bytes)
	t := tables.Of(&s.Tables)
	for i := range t.Sites {
		if e := &t.Sites[i]; e.Live != 0 && !e.Tensor.Memory.OnHost() {
			live[t.Stacks.Site(e.Stack)] += e.Tensor.Tally(e.Live).Bytes
		}
	}
	sums, names := make(map[string]alloc.Bytes), linesOf(s)
	for line, bytes := range live {
		if bytes != 0 {
			sums[labelValue(names.Of(line))] += bytes
		}
	}
	var other alloc.Bytes
	for i, name := range largestFirst(sums) {
		if i < top {
			v.add(siteBytes, name, float64(sums[name]))
		} else {
			other += sums[name]
		}
	}
	v.add(siteBytes, "other", float64(other))
}

func (v *values) suspects(s *snapshot.Snapshot) {
	found := leaks.Suspects(s)
	if len(found) == 0 {
		return
	}
	sums, names := make(map[string]mem.Tally), linesOf(s) // a name may stand for several functions
	for _, suspect := range found {
		site := labelValue(names.Of(suspect.CallSite))
		sums[site] = sums[site].Add(suspect.Tally)
	}
	for site, sum := range sums {
		v.add(suspectBytes, site, float64(sum.Bytes))
		v.add(suspectBuffers, site, float64(sum.Count))
	}
}

// linesOf names the lines of code. Lines with equal names get folders to tell them apart. The call sites come in the order of
// the tables: sorted, as those of Snapshot.CallSites, they would take most of the time of a scrape.
func linesOf(s *snapshot.Snapshot) *lines.Names {
	t := tables.Of(&s.Tables)
	return lines.NewNames(func(yield func(mem.Frame) bool) {
		for i := range t.Sites {
			if !yield(t.Stacks.Site(t.Sites[i].Stack)) {
				return
			}
		}
		for i := range t.Retired {
			if !yield(t.Stacks.Site(t.Retired[i].Stack)) {
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
