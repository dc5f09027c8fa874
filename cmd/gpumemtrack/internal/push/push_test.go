package push

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	metricspb "go.opentelemetry.io/proto/slim/otlp/metrics/v1"
	"google.golang.org/protobuf/proto"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// received is a server that keeps the latest metrics, as lines of name, unit, attributes and value.
func received(t *testing.T) (url string, lines func() []string) {
	var mu sync.Mutex
	var all []string
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		unpacked, err := gzip.NewReader(r.Body)
		if !assert.NoError(t, err) {
			return
		}
		text, err := io.ReadAll(unpacked)
		data := new(metricspb.MetricsData)
		if !assert.NoError(t, err) || !assert.NoError(t, proto.Unmarshal(text, data)) {
			return
		}
		mu.Lock()
		defer mu.Unlock()
		all = nil
		for _, resource := range data.ResourceMetrics {
			for _, a := range resource.Resource.Attributes {
				if a.Key != "host.name" {
					all = append(all, a.Key+" "+a.Value.GetStringValue())
				}
			}
			for _, m := range resource.ScopeMetrics[0].Metrics {
				for _, p := range append(m.GetSum().GetDataPoints(), m.GetGauge().GetDataPoints()...) {
					all = append(all, line(m, p))
				}
			}
		}
	}))
	t.Cleanup(server.Close)
	return server.URL, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return all
	}
}

func line(m *metricspb.Metric, p *metricspb.NumberDataPoint) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s %s", m.Name, m.Unit)
	for _, a := range p.Attributes {
		if a.Key == "process.pid" {
			fmt.Fprintf(&b, " %s=%d", a.Key, a.Value.GetIntValue())
		} else {
			fmt.Fprintf(&b, " %s=%s", a.Key, a.Value.GetStringValue())
		}
	}
	switch v := p.Value.(type) {
	case *metricspb.NumberDataPoint_AsInt:
		fmt.Fprintf(&b, ": %d", v.AsInt)
	case *metricspb.NumberDataPoint_AsDouble:
		fmt.Fprintf(&b, ": %g", v.AsDouble)
	}
	return b.String()
}

// TestReadingsAreHardwareMetrics: names and units are those of OpenTelemetry's conventions for hardware.
func TestReadingsAreHardwareMetrics(t *testing.T) {
	t.Setenv("OTEL_RESOURCE_ATTRIBUTES", "k8s.node.name=n")
	url, lines := received(t)
	d, err := NewDevices(&cli.App{Stderr: io.Discard}, url)
	require.NoError(t, err)
	assert.Equal(t, 15*time.Second, d.Interval)
	var r nvml.Reading
	r.Device = nvml.Device{Index: 1, UUID: "MIG-a", Name: "H200", Parent: "GPU-b", MIG: 2}
	for q, v := range map[nvml.Quantity]float64{
		nvml.MemoryUsed: 1 << 30, nvml.MemoryTotal: 1 << 32, nvml.MemoryFree: 3 << 30, nvml.DriverReserved: 5, nvml.Utilization: 50, nvml.Power: 71.5,
		nvml.Temperature: 40, nvml.FanSpeed: 30, nvml.ClockSM: 1980,
	} {
		r.Set(q, v)
	}
	d.Readings([]nvml.Reading{r, {Device: nvml.Device{UUID: "mute"}, Err: nvml.ErrLost}})
	require.NoError(t, d.Close())
	const device = "hw.id=MIG-a hw.type=gpu hw.name=GPU 1 MIG 2 hw.model=H200 hw.vendor=NVIDIA hw.parent=GPU-b"
	assert.ElementsMatch(t, []string{
		"k8s.node.name n", "service.name gpumemtrack",
		"hw.gpu.memory.usage By " + device + ": 1073741824", "hw.gpu.memory.limit By " + device + ": 4294967296", "hw.gpu.memory.utilization 1 " + device + ": 0.25",
		"hw.gpu.utilization 1 " + device + ": 0.5", "hw.power W " + device + ": 71.5", "hw.temperature Cel " + device + ": 40", "hw.fan.speed_ratio 1 " + device + ": 0.3",
		"gpumem.driver.reserved By " + device + ": 5", "gpumem.clock.frequency Hz " + device + " gpumem.clock=sm: 1980000000",
	}, lines())
}

func TestLatestOfARecording(t *testing.T) {
	url, lines := received(t)
	d, err := NewDevices(&cli.App{Stderr: io.Discard}, url)
	require.NoError(t, err)
	var b nvml.Builder
	for i, used := range []float64{7, 9} {
		var r nvml.Reading
		r.Device = nvml.Device{UUID: "AMD-1", Name: "MI300X"}
		r.Set(nvml.MemoryUsed, used)
		r.Set(nvml.MemoryTotal, 100)
		require.NoError(t, b.Add(time.Duration(i)*time.Second, &r, nvml.Target{}, nvml.MemoryUsed))
		var of nvml.Reading
		of.Device = r.Device
		of.Set(nvml.ProcessMemory, used-5)
		require.NoError(t, b.Add(time.Duration(i)*time.Second, &of, nvml.Target{PID: 4711}, nvml.ProcessMemory))
	}
	d.Recording(b.Recording("test", time.Now()))
	require.NoError(t, d.Close())
	const device = "hw.id=AMD-1 hw.type=gpu hw.name=GPU 0 hw.model=MI300X"
	assert.Contains(t, lines(), "hw.gpu.memory.usage By "+device+": 9")
	assert.Contains(t, lines(), "gpumem.process.usage By "+device+" process.pid=4711: 4")
}

func TestSettingsThatAreWrong(t *testing.T) {
	_, err := NewDevices(&cli.App{}, "collector:4318")
	require.ErrorContains(t, err, `--otlp: "collector:4318" is not an endpoint`)
	t.Setenv("OTEL_METRIC_EXPORT_INTERVAL", "10s")
	_, err = NewDevices(&cli.App{}, "http://collector:4318")
	require.ErrorContains(t, err, "OTEL_METRIC_EXPORT_INTERVAL=10s")
}

// TestWhatDoesNotArriveIsSaid has a server that refuses all.
func TestWhatDoesNotArriveIsSaid(t *testing.T) {
	server := httptest.NewServer(http.NotFoundHandler())
	defer server.Close()
	var stderr bytes.Buffer
	d, err := NewDevices(&cli.App{Stderr: &stderr}, server.URL)
	require.NoError(t, err)
	var r nvml.Reading
	r.Set(nvml.MemoryUsed, 1)
	d.Readings([]nvml.Reading{r})
	err = d.Close()
	require.ErrorContains(t, err, "--otlp: 1 of 1 data points were dropped: refused: 404 Not Found")
	assert.Regexp(t, "^gpumemtrack: --otlp: refused: 404 Not Found from http://\\S+/v1/metrics", stderr.String())
}
