package otlp

import (
	"cmp"
	"maps"
	"slices"

	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	wire "github.com/gpumemtrack/gpumemtrack/internal/otlp"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

const (
	byteUnit = "By"
	signal   = "gpumem.signal"
	state    = "gpumem.state"
	kindKey  = "gpumem.kind"
)

// The metrics, which are those of module contrib/otel, and the pusher's own.
var (
	limit       = &wire.Metric{Name: "hw.gpu.memory.limit", Unit: byteUnit, Description: "Size of the device's memory.", Kind: wire.Level}
	usage       = &wire.Metric{Name: "hw.gpu.memory.usage", Unit: byteUnit, Description: "Device memory in use by all processes.", Kind: wire.Level}
	live        = &wire.Metric{Name: "gpumem.memory.live", Unit: byteUnit, Description: "Requested bytes of the live buffers, by what they are for.", Kind: wire.Level}
	peak        = &wire.Metric{Name: "gpumem.memory.live.peak", Unit: byteUnit, Description: "Highest sum of requested bytes of live buffers."}
	host        = &wire.Metric{Name: "gpumem.host.live", Unit: byteUnit, Description: "Requested bytes of the live buffers in pinned and mapped host memory, which no other instrument counts.", Kind: wire.Level}
	reserved    = &wire.Metric{Name: "gpumem.memory.reserved", Unit: byteUnit, Description: "Memory that the tracker's device holds from the driver.", Kind: wire.Level}
	registered  = &wire.Metric{Name: "gpumem.memory.registered", Unit: byteUnit, Description: "Memory of other code that is registered with the tracker.", Kind: wire.Level}
	untracked   = &wire.Metric{Name: "gpumem.memory.untracked", Unit: byteUnit, Description: "Device memory in use that is neither reserved nor registered.", Kind: wire.Level}
	allocated   = &wire.Metric{Name: "gpumem.memory.allocated", Unit: byteUnit, Description: "Requested bytes of all buffers ever allocated.", Kind: wire.Counter}
	allocations = &wire.Metric{Name: "gpumem.memory.allocations", Unit: "{allocation}", Description: "Buffers ever allocated.", Kind: wire.Counter}
	buffers     = &wire.Metric{Name: "gpumem.buffer.count", Unit: "{buffer}", Description: "Number of live buffers, by what they are for.", Kind: wire.Level}
	largest     = &wire.Metric{Name: "gpumem.cache.block.largest", Unit: byteUnit, Description: "Largest inactive block."}
	retries     = &wire.Metric{Name: "gpumem.cache.retries", Unit: "{retry}", Description: "Times that the cache was emptied to serve a request.", Kind: wire.Counter}
	refusals    = &wire.Metric{Name: "gpumem.cache.refusals", Unit: "{request}", Description: "Requests refused for lack of memory.", Kind: wire.Counter}

	exported = &wire.Metric{Name: "gpumem.otlp.exported", Unit: "{item}", Description: "Profiles and data points that the server has taken.", Kind: wire.Counter}
	dropped  = &wire.Metric{Name: "gpumem.otlp.dropped", Unit: "{item}", Description: "Profiles and data points that the server has refused, or that were not sent.", Kind: wire.Counter}
	again    = &wire.Metric{Name: "gpumem.otlp.retries", Unit: "{retry}", Description: "Times that a request was sent again.", Kind: wire.Counter}
)

// measured are the metrics of a snapshot.
func measured(configured map[string]any, s *snapshot.Snapshot) wire.Measured {
	m := points{device: deviceOf(s)}
	m.kinds(s)
	for _, memory := range alloc.Memories() {
		if tally := s.Memory[memory]; memory.OnHost() && !tally.IsZero() {
			m.add(host, int64(tally.Bytes), wire.String("gpumem.memory", memory.String()))
		}
	}
	m.add(peak, int64(s.Peak.Bytes))
	m.add(allocated, int64(s.Total.Bytes))
	m.add(allocations, s.Total.Count)
	m.add(registered, int64(s.Registered))
	m.cache(s)
	for metric, value := range map[*wire.Metric]alloc.Bytes{limit: s.DriverTotal, usage: s.DriverUsed, untracked: s.Untracked()} {
		if value >= 0 {
			m.add(metric, int64(value))
		}
	}
	return wire.Measured{Resource: resourceOf(configured, s.Origin), Start: tables.Of(&s.Tables).Epoch, Time: s.Time, Points: m.all}
}

// points are the values of one device.
type points struct {
	device []*commonpb.KeyValue
	all    []wire.Point
}

func (m *points) add(metric *wire.Metric, value int64, more ...*commonpb.KeyValue) {
	m.all = append(m.all, wire.Point{Metric: metric, Attributes: append(slices.Clip(m.device), more...), Value: value})
}

// kinds adds the well-known kinds always, and others that have live buffers.
func (m *points) kinds(s *snapshot.Snapshot) {
	sums := make(map[mem.Kind]mem.Tally)
	for _, kind := range mem.Kinds() {
		sums[kind] = mem.Tally{}
	}
	for _, g := range s.Sub(nil) {
		if !g.Memory.OnHost() {
			sums[g.Kind] = sums[g.Kind].Add(g.Tally)
		}
	}
	for _, kind := range slices.SortedFunc(maps.Keys(sums), func(x, y mem.Kind) int { return cmp.Compare(x, y) }) {
		name := wire.String(kindKey, kind.String())
		m.add(live, int64(sums[kind].Bytes), name)
		m.add(buffers, sums[kind].Count, name)
	}
}

func (m *points) cache(s *snapshot.Snapshot) {
	if s.Cache == nil {
		m.add(reserved, int64(s.Reserved), wire.String(state, "allocated"))
		return
	}
	m.add(reserved, int64(s.Cache.Allocated.Bytes.Current), wire.String(state, "allocated"))
	m.add(reserved, int64(s.Cache.Inactive.Bytes.Current), wire.String(state, "inactive"))
	if s.Cache.Pending.Bytes.Total > 0 { // a program with several streams
		m.add(reserved, int64(s.Cache.Pending.Bytes.Current), wire.String(state, "pending"))
	}
	m.add(largest, int64(s.Cache.LargestInactive))
	m.add(retries, int64(s.Cache.Retries))
	m.add(refusals, int64(s.Cache.OOMs))
}
