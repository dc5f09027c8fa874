package prom_test

import (
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/prom"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func trained(t *testing.T, cfg tracker.Config) *tracker.MemTracker {
	tr := exporttest.New(t, cfg)
	exporttest.Train(t, tr)
	return tr
}

func TestMetricsPassTheLint(t *testing.T) {
	for _, cfg := range []tracker.Config{{}, {NoCache: true}} {
		problems, err := testutil.CollectAndLint(prom.NewCollector(trained(t, cfg).LightSnapshot, prom.Config{TopCallSites: 3}))
		require.NoError(t, err)
		assert.Empty(t, problems)
	}
}

func TestMetricsHoldTheLevels(t *testing.T) {
	require.NoError(t, testutil.CollectAndCompare(prom.NewCollector(trained(t, tracker.Config{}).LightSnapshot, prom.Config{}), strings.NewReader(`
# HELP gpumem_allocations_total Buffers ever allocated.
# TYPE gpumem_allocations_total counter
gpumem_allocations_total{device="Simulated GPU",ordinal="0",uuid=""} 16
# HELP gpumem_live_buffers Number of live buffers, by what they are for.
# TYPE gpumem_live_buffers gauge
gpumem_live_buffers{device="Simulated GPU",kind="Activation",ordinal="0",uuid=""} 0
gpumem_live_buffers{device="Simulated GPU",kind="Gradient",ordinal="0",uuid=""} 0
gpumem_live_buffers{device="Simulated GPU",kind="Input",ordinal="0",uuid=""} 1
gpumem_live_buffers{device="Simulated GPU",kind="OptimizerState",ordinal="0",uuid=""} 0
gpumem_live_buffers{device="Simulated GPU",kind="Parameter",ordinal="0",uuid=""} 2
gpumem_live_buffers{device="Simulated GPU",kind="Temporary",ordinal="0",uuid=""} 0
gpumem_live_buffers{device="Simulated GPU",kind="Tensor",ordinal="0",uuid=""} 1
# HELP gpumem_cache_oom_total Requests refused for lack of memory.
# TYPE gpumem_cache_oom_total counter
gpumem_cache_oom_total{device="Simulated GPU",ordinal="0",uuid=""} 1
`), "gpumem_allocations_total", "gpumem_live_buffers", "gpumem_cache_oom_total"))
}

// sums gathers the collector's metrics and adds each up over its labels.
func sums(t *testing.T, c prometheus.Collector) map[string]float64 {
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(c))
	families, err := registry.Gather()
	require.NoError(t, err)
	out := make(map[string]float64)
	for _, f := range families {
		for _, m := range f.Metric {
			out[f.GetName()] += m.GetGauge().GetValue() + m.GetCounter().GetValue()
		}
	}
	return out
}

func TestSumsOverLabelsMakeSense(t *testing.T) {
	tr := trained(t, tracker.Config{})
	s := tr.Snapshot()
	got := sums(t, prom.NewCollector(tr.LightSnapshot, prom.Config{TopCallSites: 1}))
	assert.Equal(t, float64(s.Live.Bytes), got["gpumem_live_bytes"])
	assert.Equal(t, float64(s.Live.Bytes), got["gpumem_call_site_live_bytes"])
	assert.Equal(t, float64(s.Reserved), got["gpumem_reserved_bytes"])
	assert.Equal(t, float64(s.DriverTotal), got["gpumem_device_memory_bytes"])
}

// forgetful is a device whose driver knows of no use.
type forgetful struct{ alloc.Device }

func (forgetful) MemInfo() (alloc.MemInfo, error) {
	return alloc.MemInfo{Free: alloc.GiB, Total: alloc.GiB}, nil
}

func TestWhatIsUnknownIsNoSeries(t *testing.T) {
	device, err := sim.New(sim.Config{Memory: 2 * alloc.GiB})
	require.NoError(t, err)
	tr := trained(t, tracker.Config{Device: forgetful{device}})
	c := prom.NewCollector(tr.LightSnapshot, prom.Config{})
	assert.Equal(t, 3, testutil.CollectAndCount(c, "gpumem_device_memory_bytes"), "reserved, registered and free")
	s := tr.Snapshot()
	assert.Equal(t, float64(s.Reserved+s.Registered+alloc.GiB), sums(t, c)["gpumem_device_memory_bytes"])
}

func TestSeriesAreBounded(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	c := prom.NewCollector(tr.LightSnapshot, prom.Config{})
	before := testutil.CollectAndCount(c)
	exporttest.Train(t, tr)
	assert.Equal(t, before, testutil.CollectAndCount(c))
	assert.Equal(t, before+3, testutil.CollectAndCount(prom.NewCollector(tr.LightSnapshot, prom.Config{TopCallSites: 2})), "two lines of code and the others")
}

func TestSuspects(t *testing.T) {
	c := prom.NewCollector(exporttest.Leaky(t).Snapshot, prom.Config{})
	got := sums(t, c)
	assert.Equal(t, 44.0, got["gpumem_suspect_buffers"])
	assert.Equal(t, 44*1024.0, got["gpumem_suspect_bytes"])
	problems, err := testutil.CollectAndLint(c)
	require.NoError(t, err)
	assert.Empty(t, problems)
}

// TestSeveralSourcesInOneRegistry: their devices tell them apart.
func TestSeveralSourcesInOneRegistry(t *testing.T) {
	registry := prometheus.NewPedanticRegistry()
	var collectors []prometheus.Collector
	for ordinal := range 2 {
		device, err := sim.New(sim.Config{Ordinal: ordinal})
		require.NoError(t, err)
		collectors = append(collectors, prom.NewCollector(trained(t, tracker.Config{Device: device}).Snapshot, prom.Config{TopCallSites: 1}))
		require.NoError(t, registry.Register(collectors[ordinal]))
	}
	require.NoError(t, testutil.GatherAndCompare(registry, strings.NewReader(`
# HELP gpumem_allocations_total Buffers ever allocated.
# TYPE gpumem_allocations_total counter
gpumem_allocations_total{device="Simulated GPU",ordinal="0",uuid=""} 16
gpumem_allocations_total{device="Simulated GPU",ordinal="1",uuid=""} 16
`), "gpumem_allocations_total"))

	same := prom.NewCollector(trained(t, tracker.Config{}).LightSnapshot, prom.Config{})
	assert.Error(t, registry.Register(same), "two trackers of one device")
	require.NoError(t, prometheus.WrapRegistererWith(prometheus.Labels{"job": "second"}, prometheus.NewPedanticRegistry()).Register(same))
	assert.True(t, registry.Unregister(collectors[0]))
	n, err := testutil.GatherAndCount(registry, "gpumem_allocations_total")
	require.NoError(t, err)
	assert.Equal(t, 1, n)
}

func TestCollectorOfNoTracker(t *testing.T) {
	err := prometheus.NewRegistry().Register(prom.NewCollector(nil, prom.Config{}))
	require.ErrorContains(t, err, "prom.NewCollector: nothing takes a snapshot")
}

// TestTextFromOutsideIsUTF8: one bad byte does not cost the whole scrape.
func TestTextFromOutsideIsUTF8(t *testing.T) {
	device, err := sim.New(sim.Config{Name: "GPU \xff"})
	require.NoError(t, err)
	tr := trained(t, tracker.Config{Device: device})
	registry := prometheus.NewPedanticRegistry()
	require.NoError(t, registry.Register(prom.NewCollector(tr.Snapshot, prom.Config{TopCallSites: 3})))
	families, err := registry.Gather()
	require.NoError(t, err)
	assert.Equal(t, "GPU \uFFFD", families[0].Metric[0].Label[0].GetValue())
}

// TestLinesOfOneNameStayTwo has two lines of code of one name, in two folders.
func TestLinesOfOneNameStayTwo(t *testing.T) {
	s, err := snapshot.Read(strings.NewReader(`{"schema":"gpumemtrack.snapshot","version":1,"time":"2026-11-21T03:30:04Z","device":"GPU","ordinal":0,
"stacks":[[{"function":"main.load","file":"/src/a/load.go","line":7}],[{"function":"main.load","file":"/src/b/load.go","line":7}]],
"sites":[
 {"kind":"Parameter","dtype":"float32","shape":[8],"stack":0,"site":{"function":"main.load","file":"/src/a/load.go","line":7},"live_count":3,"peak_count":8,"total_count":8},
 {"kind":"Parameter","dtype":"float32","shape":[8],"stack":1,"site":{"function":"main.load","file":"/src/b/load.go","line":7},"live_count":2,"peak_count":8,"total_count":8}],
"allocations":[]}`))
	require.NoError(t, err)
	require.NoError(t, testutil.CollectAndCompare(prom.NewCollector(func() *snapshot.Snapshot { return s }, prom.Config{TopCallSites: 2}), strings.NewReader(`
# HELP gpumem_call_site_live_bytes Requested bytes of live buffers, by the line of code that allocated them.
# TYPE gpumem_call_site_live_bytes gauge
gpumem_call_site_live_bytes{call_site="a/load.go:7 main.load",device="GPU",ordinal="0",uuid=""} 96
gpumem_call_site_live_bytes{call_site="b/load.go:7 main.load",device="GPU",ordinal="0",uuid=""} 64
gpumem_call_site_live_bytes{call_site="other",device="GPU",ordinal="0",uuid=""} 0
`), "gpumem_call_site_live_bytes"))
}
