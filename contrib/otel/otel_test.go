package otel_test

import (
	"bufio"
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/contrib/otel"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func newTracker(t *testing.T, cfg tracker.Config) *tracker.MemTracker {
	t.Helper()
	if cfg.Device == nil {
		device, err := sim.New(sim.Config{Memory: 4 * alloc.GiB})
		require.NoError(t, err)
		cfg.Device = device
	}
	cfg.Report = io.Discard
	tr, err := tracker.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { tr.Close() })
	return tr
}

// collect observes a source once. Values are by name and attributes, except the device's.
func collect(t *testing.T, source otel.Source, more ...attribute.KeyValue) (values map[string]int64, metrics []metricdata.Metrics) {
	t.Helper()
	reader := sdk.NewManualReader()
	registration, err := otel.Observe(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"), source, more...)
	require.NoError(t, err)
	defer func() { require.NoError(t, registration.Unregister()) }()
	var found metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &found))
	require.Len(t, found.ScopeMetrics, 1)
	values = make(map[string]int64)
	for _, m := range found.ScopeMetrics[0].Metrics {
		for _, p := range points(t, m) {
			id, _ := p.Attributes.Value("hw.id")
			name, _ := p.Attributes.Value("hw.name")
			assert.Equal(t, "0 Simulated GPU", id.AsString()+" "+name.AsString())
			key := m.Name
			for _, a := range p.Attributes.ToSlice() {
				if !strings.HasPrefix(string(a.Key), "hw.") {
					key += " " + a.Value.AsString()
				}
			}
			values[key] = p.Value
		}
	}
	return values, found.ScopeMetrics[0].Metrics
}

func points(t *testing.T, m metricdata.Metrics) []metricdata.DataPoint[int64] {
	switch data := m.Data.(type) {
	case metricdata.Sum[int64]:
		assert.Equal(t, metricdata.CumulativeTemporality, data.Temporality)
		return data.DataPoints
	case metricdata.Gauge[int64]:
		return data.DataPoints
	}
	t.Fatalf("%s is %T", m.Name, m.Data)
	return nil
}

func TestMetricsHoldTheLevels(t *testing.T) {
	tr := newTracker(t, tracker.Config{})
	_, err := tr.AllocBytes(3*alloc.MiB, tracker.Parameter)
	require.NoError(t, err)
	b, err := tr.AllocBytes(alloc.MiB, tracker.Activation)
	require.NoError(t, err)
	require.NoError(t, b.Free())
	_, err = tr.AllocBytes(alloc.TiB, tracker.Temporary)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	require.NoError(t, tr.Register(0x7000000, alloc.DeviceMemory, alloc.Shape{1 << 20}, alloc.Uint8, tracker.Unspecified))

	s := tr.LightSnapshot()
	got, _ := collect(t, tr)
	assert.Equal(t, map[string]int64{
		"hw.gpu.memory.limit": int64(4 * alloc.GiB), "hw.gpu.memory.usage": int64(s.DriverUsed),
		"gpumem.memory.live Parameter": 3 << 20, "gpumem.memory.live Tensor": 1 << 20, "gpumem.memory.live Activation": 0,
		"gpumem.memory.live Gradient": 0, "gpumem.memory.live Input": 0, "gpumem.memory.live OptimizerState": 0, "gpumem.memory.live Temporary": 0,
		"gpumem.buffer.count Parameter": 1, "gpumem.buffer.count Tensor": 1, "gpumem.buffer.count Activation": 0,
		"gpumem.buffer.count Gradient": 0, "gpumem.buffer.count Input": 0, "gpumem.buffer.count OptimizerState": 0, "gpumem.buffer.count Temporary": 0,
		"gpumem.memory.live.peak":          int64(s.Peak.Bytes),
		"gpumem.memory.reserved allocated": int64(s.Cache.Allocated.Bytes.Current), "gpumem.memory.reserved inactive": int64(s.Cache.Inactive.Bytes.Current),
		"gpumem.memory.registered": 1 << 20, "gpumem.memory.untracked": int64(s.Untracked()),
		"gpumem.memory.allocated": 5 << 20, "gpumem.memory.allocations": 3,
		"gpumem.cache.block.largest": int64(s.Cache.LargestInactive), "gpumem.cache.retries": int64(s.Cache.Retries), "gpumem.cache.refusals": 1,
	}, got)
}

// blind is a device whose driver tells nothing.
type blind struct{ alloc.Device }

func (blind) MemInfo() (alloc.MemInfo, error) { return alloc.MemInfo{}, errors.ErrUnsupported }

func TestWhatIsUnknownIsNotObserved(t *testing.T) {
	device, err := sim.New(sim.Config{})
	require.NoError(t, err)
	got, _ := collect(t, newTracker(t, tracker.Config{Device: blind{device}, NoCache: true}))
	for _, name := range []string{"hw.gpu.memory.limit", "hw.gpu.memory.usage", "gpumem.memory.untracked", "gpumem.cache.retries", "gpumem.memory.reserved inactive"} {
		assert.NotContains(t, got, name)
	}
	assert.Contains(t, got, "gpumem.memory.reserved allocated")
}

func TestAttributesOfTheProgramAreAdded(t *testing.T) {
	got, _ := collect(t, newTracker(t, tracker.Config{}), attribute.String("rank", "3"))
	assert.Contains(t, got, "gpumem.memory.live.peak 3")
}

// TestDocumentationListsTheMetrics compares the package comment with what is observed: names,
// units and types.
func TestDocumentationListsTheMetrics(t *testing.T) {
	file, err := os.Open("doc.go")
	require.NoError(t, err)
	defer file.Close()
	documented := make(map[string]string)
	row := regexp.MustCompile(`^//\t((?:hw|gpumem)\.\S+) +(counter|up-down counter|gauge) +(.*)$`)
	unit := regexp.MustCompile(`{\w+}`)
	for lines := bufio.NewScanner(file); lines.Scan(); {
		if m := row.FindStringSubmatch(lines.Text()); m != nil {
			documented[m[1]] = m[2] + " " + strings.Join(append(unit.FindAllString(m[3], -1), "By")[:1], "")
		}
	}
	tr := newTracker(t, tracker.Config{})
	require.NoError(t, tr.Register(0x7000000, alloc.PinnedMemory, alloc.Shape{1}, alloc.Uint8, tracker.Input))
	got, metrics := collect(t, tr)
	assert.EqualValues(t, 1, got["gpumem.host.live pinned"])
	assert.Zero(t, got["gpumem.memory.live Input"], "host memory counts in nothing else")
	observed := make(map[string]string)
	for _, m := range metrics {
		kind := "gauge"
		if sum, ok := m.Data.(metricdata.Sum[int64]); ok {
			kind = map[bool]string{true: "counter", false: "up-down counter"}[sum.IsMonotonic]
		}
		observed[m.Name] = kind + " " + m.Unit
		assert.NotEmpty(t, m.Description)
	}
	assert.Equal(t, documented, observed)
}

func TestNothingIsObservedOnceUnregistered(t *testing.T) {
	reader := sdk.NewManualReader()
	registration, err := otel.Observe(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"), newTracker(t, tracker.Config{}))
	require.NoError(t, err)
	require.NoError(t, registration.Unregister())
	var found metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &found))
	assert.Empty(t, found.ScopeMetrics)
}

// refuser is a meter that makes no counters.
type refuser struct{ noop.Meter }

var errRefused = errors.New("refused")

func (refuser) Int64ObservableCounter(string, ...metric.Int64ObservableCounterOption) (metric.Int64ObservableCounter, error) {
	return nil, errRefused
}

func TestErrorsOfTheMeterAreReturned(t *testing.T) {
	_, err := otel.Observe(refuser{}, newTracker(t, tracker.Config{}))
	require.ErrorIs(t, err, errRefused)
	_, err = otel.Observe(nil, nil)
	require.EqualError(t, err, "otel.Observe: the meter or the source is nil")
}

// named is a source of one snapshot.
type named struct{ s *snapshot.Snapshot }

func (n named) LightSnapshot() *snapshot.Snapshot { return n.s }

func TestTextFromOutsideIsUTF8(t *testing.T) {
	reader := sdk.NewManualReader()
	_, err := otel.Observe(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"), named{&snapshot.Snapshot{Device: "GPU \xff"}})
	require.NoError(t, err)
	var found metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &found))
	name, _ := points(t, found.ScopeMetrics[0].Metrics[0])[0].Attributes.Value("hw.name")
	assert.Equal(t, "GPU \uFFFD", name.AsString())
}

// TestDeviceIsIdentified: a UUID tells a device apart from those of other processes of the host, an ordinal only within one.
func TestDeviceIsIdentified(t *testing.T) {
	const uuid = "GPU-e3a10000-0000-4000-8000-000000000000"
	for of, want := range map[*snapshot.Snapshot]map[string]string{
		{Device: "NVIDIA L4", UUID: uuid}:                      {"hw.id": uuid, "hw.type": "gpu", "hw.name": "NVIDIA L4", "hw.model": "NVIDIA L4", "hw.vendor": "NVIDIA"},
		{Device: "Simulated GPU", Ordinal: 1}:                  {"hw.id": "1", "hw.type": "gpu", "hw.name": "Simulated GPU", "hw.model": "Simulated GPU"},
		{Device: "another vendor's", UUID: "GPU-67f6e1c2b5a8"}: {"hw.id": "GPU-67f6e1c2b5a8", "hw.type": "gpu", "hw.name": "another vendor's", "hw.model": "another vendor's"},
	} {
		reader := sdk.NewManualReader()
		_, err := otel.Observe(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"), named{of})
		require.NoError(t, err)
		var found metricdata.ResourceMetrics
		require.NoError(t, reader.Collect(t.Context(), &found))
		for _, m := range found.ScopeMetrics[0].Metrics {
			for _, p := range points(t, m) {
				got := map[string]string{}
				for _, a := range p.Attributes.ToSlice() {
					if strings.HasPrefix(string(a.Key), "hw.") {
						got[string(a.Key)] = a.Value.AsString()
					}
				}
				assert.Equal(t, want, got, m.Name)
			}
		}
	}
}

// TestReservedAddsUp: the states together are what is held, pending memory too.
func TestReservedAddsUp(t *testing.T) {
	cache := new(alloc.Stats)
	cache.Allocated.Bytes.Current, cache.Inactive.Bytes.Current = 3, 20
	source := named{&snapshot.Snapshot{Device: "Simulated GPU", Cache: cache}}
	got, _ := collect(t, source)
	assert.NotContains(t, got, "gpumem.memory.reserved pending", "a program with one stream has none")
	cache.Pending.Bytes = alloc.Gauge[alloc.Bytes]{Current: 100, Total: 500}
	got, _ = collect(t, source)
	assert.EqualValues(t, 123, got["gpumem.memory.reserved allocated"]+got["gpumem.memory.reserved inactive"]+got["gpumem.memory.reserved pending"])
}
