// Package push has what the commands share that push by OTLP: the flag, and the metrics of devices. What attach sees is pushed
// by package tracker/export/otlp.
package push

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/internal/otlp"
	"github.com/gpumemtrack/gpumemtrack/nvml"

	commonpb "go.opentelemetry.io/proto/slim/otlp/common/v1"
)

// AddFlag adds --otlp. What says what is pushed.
func AddFlag(cmd *cobra.Command, to *string, what string) {
	cmd.Flags().StringVar(to, "otlp", "", "push "+what+" to the OpenTelemetry Collector at this `URL`, such as http://localhost:4318 or grpc://localhost:4317")
}

// Warn returns a function that prints why pushes fail.
func Warn(a *cli.App) func(error) {
	return func(err error) { fmt.Fprintf(a.Stderr, "%s: --otlp: %v\n", cli.ProgramName, err) }
}

// Last bounds the time of the push at the end.
const Last = 5 * time.Second

// The metrics of a device. Those that begin with hw. are of OpenTelemetry's conventions for hardware.
var (
	usage       = &otlp.Metric{Name: "hw.gpu.memory.usage", Unit: "By", Description: "Device memory in use by all processes.", Kind: otlp.Level}
	limit       = &otlp.Metric{Name: "hw.gpu.memory.limit", Unit: "By", Description: "Size of the device's memory.", Kind: otlp.Level}
	ratio       = &otlp.Metric{Name: "hw.gpu.memory.utilization", Unit: "1", Description: "Fraction of the device's memory in use."}
	utilization = &otlp.Metric{Name: "hw.gpu.utilization", Unit: "1", Description: "Fraction of time in which the device was busy."}
	power       = &otlp.Metric{Name: "hw.power", Unit: "W", Description: "Instantaneous power consumed by the device."}
	temperature = &otlp.Metric{Name: "hw.temperature", Unit: "Cel", Description: "Temperature of the device."}
	fan         = &otlp.Metric{Name: "hw.fan.speed_ratio", Unit: "1", Description: "Fan speed as a fraction of its maximum."}
	driver      = &otlp.Metric{Name: "gpumem.driver.reserved", Unit: "By", Description: "Device memory that the driver and the firmware keep for themselves.", Kind: otlp.Level}
	process     = &otlp.Metric{Name: "gpumem.process.usage", Unit: "By", Description: "Device memory of a process and its children, as the driver says.", Kind: otlp.Level}
	clock       = &otlp.Metric{Name: "gpumem.clock.frequency", Unit: "Hz", Description: "Frequency of a clock of the device."}
)

// clocks are the values of the attribute gpumem.clock.
var clocks = map[nvml.Quantity]string{nvml.ClockGraphics: "graphics", nvml.ClockMemory: "memory", nvml.ClockSM: "sm", nvml.ClockVideo: "video"}

// Devices pushes metrics of devices. Its methods may be called from any goroutine.
type Devices struct {
	client   *otlp.Client
	queue    *otlp.Queue
	resource map[string]any
	// Interval is that of OTEL_METRIC_EXPORT_INTERVAL.
	Interval time.Duration
}

// NewDevices returns a pusher to an endpoint. The error says what is wrong with the settings.
func NewDevices(a *cli.App, endpoint string) (*Devices, error) {
	d := new(Devices)
	var errs [3]error
	d.Interval, errs[0] = otlp.Interval(os.Getenv)
	d.resource, errs[1] = otlp.ResourceAttributes(os.Getenv)
	d.client, errs[2] = otlp.NewClient(otlp.Config{Endpoint: endpoint, Warn: Warn(a)}, otlp.Metrics)
	if err := errors.Join(errs[:]...); err != nil {
		return nil, cli.UsageError("--otlp: %w", err)
	}
	if host, err := os.Hostname(); err == nil && d.resource["host.name"] == nil {
		d.resource["host.name"] = host
	}
	d.resource["service.name"] = cmp.Or(d.resource["service.name"], any(cli.ProgramName))
	d.queue = otlp.NewQueue(d.client)
	return d, nil
}

// Readings pushes what devices reported.
func (d *Devices) Readings(list []nvml.Reading) {
	m := otlp.Measured{Resource: otlp.Resource(d.resource), Time: time.Now()}
	for _, r := range list {
		device := attributes(r.Device)
		for q := nvml.MemoryUsed; q <= nvml.ClockVideo; q++ {
			if v, ok := r.Value(q); ok {
				m.Points = append(m.Points, point(q, v, device)...)
			}
		}
		used, ok := r.Value(nvml.MemoryUsed)
		if total, known := r.Value(nvml.MemoryTotal); ok && known && total > 0 {
			m.Points = append(m.Points, otlp.Point{Metric: ratio, Attributes: device, Value: used / total})
		}
	}
	otlp.EncodeMetrics([]otlp.Measured{m}, otlp.MaxRequestBytes/4, d.queue.Add)
}

// Recording pushes the latest values of a recording.
func (d *Devices) Recording(rec nvml.Recording) {
	m := otlp.Measured{Resource: otlp.Resource(d.resource), Time: time.Now()}
	for _, s := range rec.Series {
		if s.Ended || !s.Known() {
			continue
		}
		device := attributes(s.Device)
		if s.Quantity == nvml.ProcessMemory && s.Target.PID != 0 {
			device = append(device, otlp.Int("process.pid", int64(s.Target.PID)))
		}
		for _, v := range s.Last(1).Points() {
			if !math.IsNaN(v) {
				m.Points = append(m.Points, point(s.Quantity, v, device)...)
			}
		}
		if s.Quantity == nvml.MemoryUsed && s.Capacity > 0 {
			m.Points = append(m.Points, point(nvml.MemoryTotal, float64(s.Capacity), device)...)
		}
	}
	otlp.EncodeMetrics([]otlp.Measured{m}, otlp.MaxRequestBytes/4, d.queue.Add)
}

// attributes are those of the conventions for hardware.
func attributes(d nvml.Device) []*commonpb.KeyValue {
	all := []*commonpb.KeyValue{otlp.String("hw.id", cmp.Or(d.UUID, d.BusID, d.Label())), otlp.String("hw.type", "gpu"), otlp.String("hw.name", d.Label()), otlp.String("hw.model", d.Name)}
	if strings.HasPrefix(d.UUID, "GPU-") || strings.HasPrefix(d.UUID, "MIG-") {
		all = append(all, otlp.String("hw.vendor", "NVIDIA"))
	}
	if d.Parent != "" {
		all = append(all, otlp.String("hw.parent", d.Parent))
	}
	return all
}

// point returns a value in the unit of the conventions; nothing of a quantity that has no metric.
func point(q nvml.Quantity, v float64, device []*commonpb.KeyValue) []otlp.Point {
	one := func(metric *otlp.Metric, value any) []otlp.Point {
		return []otlp.Point{{Metric: metric, Attributes: slices.Clip(device), Value: value}}
	}
	switch q {
	case nvml.MemoryUsed:
		return one(usage, int64(v))
	case nvml.MemoryTotal:
		return one(limit, int64(v))
	case nvml.DriverReserved:
		return one(driver, int64(v))
	case nvml.ProcessMemory:
		return one(process, int64(v))
	case nvml.Utilization:
		return one(utilization, v/100)
	case nvml.FanSpeed:
		return one(fan, v/100)
	case nvml.Power:
		return one(power, v)
	case nvml.Temperature:
		return one(temperature, v)
	case nvml.ClockGraphics, nvml.ClockMemory, nvml.ClockSM, nvml.ClockVideo:
		device = append(slices.Clip(device), otlp.String("gpumem.clock", clocks[q]))
		return one(clock, int64(v*1e6))
	}
	return nil // free memory is limit less usage
}

// Every calls push at each interval until stop is called.
func (d *Devices) Every(push func()) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	var running sync.WaitGroup
	running.Go(func() {
		ticker := time.NewTicker(d.Interval)
		defer ticker.Stop()
		for {
			select {
			case <-ctx.Done():
				return
			case <-ticker.C:
				push()
			}
		}
	})
	return func() {
		cancel()
		running.Wait()
	}
}

// Close delivers what waits, in a few seconds at most. The error says how much was dropped since the start.
func (d *Devices) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), Last)
	defer cancel()
	stats := d.queue.Close(ctx)
	d.client.Close()
	if stats.Dropped == 0 {
		return nil
	}
	return fmt.Errorf("--otlp: %d of %d data points were dropped: %w", stats.Dropped, stats.Delivered+stats.Dropped, stats.LastError)
}
