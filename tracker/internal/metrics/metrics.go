// Package metrics has the metrics of a tracker as plain values, and writes them as text that
// Prometheus scrapes. It does not use Prometheus's client, which would add 3 MB to a program.
package metrics

import (
	"cmp"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// Config says what there is in addition to the levels.
type Config struct {
	TopCallSites int // lines of code that have a series of their own
	Suspects     bool
}

// Family is one metric: its meaning, and the label by which its series differ, "" if it has one
// series.
type Family struct {
	Name, Help, Label string
}

// Counter reports whether the metric only grows; another is a level.
func (f Family) Counter() bool { return strings.HasSuffix(f.Name, "_total") }

// Indices of the metrics in families.
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

var families = [...]Family{
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

// Families yields the metrics that there are with a Config.
func Families(cfg Config) iter.Seq[Family] {
	return func(yield func(Family) bool) {
		for i, f := range families {
			left := i == siteBytes && cfg.TopCallSites <= 0 || i >= suspectBytes && !cfg.Suspects
			if !left && !yield(f) {
				return
			}
		}
	}
}

// Labels are names and values.
type Labels map[string]string

// DeviceLabels returns the labels that all series of a device share.
func DeviceLabels(s *snapshot.Snapshot) Labels {
	return Labels{"device": Text(s.Device), "ordinal": strconv.Itoa(s.Ordinal), "uuid": Text(s.UUID)}
}

// Text returns a text from outside as Prometheus and a terminal take it.
func Text(name string) string { return text.Line(strings.ToValidUTF8(name, "\uFFFD")) }

// Values are the series of one source at one instant: by family, and by the value of its label.
type Values [len(families)]map[string]float64

// Of returns the values of a snapshot. A light one has no suspects.
func Of(s *snapshot.Snapshot, cfg Config) *Values {
	v := new(Values)
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
	if cfg.Suspects {
		v.suspects(s)
	}
	return v
}

// All yields every series.
func (v *Values) All() iter.Seq2[Family, iter.Seq2[string, float64]] {
	return func(yield func(Family, iter.Seq2[string, float64]) bool) {
		for i, series := range v {
			if !yield(families[i], maps.All(series)) {
				return
			}
		}
	}
}

// add adds to a series: two kinds or lines of code that have one name are one series.
func (v *Values) add(family int, label string, value float64) {
	if v[family] == nil {
		v[family] = make(map[string]float64)
	}
	v[family][label] += value
}

// kinds sets the well-known kinds always, so that their series do not come and
// go, and others that have live buffers.
func (v *Values) kinds(s *snapshot.Snapshot) {
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
// tell types of memory.
func (v *Values) memory(s *snapshot.Snapshot) {
	if len(s.Memory) == 0 && !s.Live.IsZero() {
		return
	}
	for _, m := range alloc.Memories() {
		if live := s.Memory[m]; m == alloc.DeviceMemory || !live.IsZero() {
			v.add(memoryBytes, m.String(), float64(live.Bytes))
		}
	}
}

func (v *Values) reserved(s *snapshot.Snapshot) {
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
func (v *Values) device(s *snapshot.Snapshot) {
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

func (v *Values) sites(s *snapshot.Snapshot, top int) {
	sums, names := make(map[string]alloc.Bytes), linesOf(s)
	for site := range s.CallSites() {
		if site.Live.Bytes == 0 || site.Memory.OnHost() {
			continue
		}
		sums[Text(names.Of(site.CallSite))] += site.Live.Bytes
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

func (v *Values) suspects(s *snapshot.Snapshot) {
	sums, names := make(map[string]mem.Tally), linesOf(s) // a name may stand for several functions
	for _, suspect := range leaks.Suspects(s) {
		site := Text(names.Of(suspect.CallSite))
		sums[site] = sums[site].Add(suspect.Tally)
	}
	for site, sum := range sums {
		v.add(suspectBytes, site, float64(sum.Bytes))
		v.add(suspectBuffers, site, float64(sum.Count))
	}
}

// linesOf names the lines of code. Lines with equal names get folders to tell them apart.
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
