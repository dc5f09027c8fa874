package top

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"time"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/push"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

type sensorsOptions struct {
	source   string
	watch    bool
	json     bool
	all      bool
	interval time.Duration
	otlp     string
	push     *push.Devices // nil without --otlp
}

// Sensors is gpumemtrack sensors.
func Sensors(a *cli.App) *cobra.Command {
	var o sensorsOptions
	cmd := &cobra.Command{
		Use:   "sensors",
		Short: "Show memory, temperature, fan, clocks, power and utilization",
		Long: `Show the GPUs that CUDA_VISIBLE_DEVICES leaves, as a table or as JSON.

--json prints one object for each reading: "schema", "source", and "devices",
each with its "index", "uuid", "name", "bus_id" and every value under a key
with its unit, such as "memory_used_bytes" and "power_watts", or null if the
device has none. "memory_scope" says what the memory values count: "device",
"device+driver" (an older driver counts its own part as used) or "host" (the GPU
shares the host's memory). A MIG device has the "index" of its GPU, the GPU's
UUID as "parent", and its own number as "mig". "error" says why a device did not
answer.`,
		Example: `  gpumemtrack sensors
  gpumemtrack sensors -w                      # until a key is pressed
  gpumemtrack sensors --json | jq '.devices[].memory_used_bytes'`,
		Args: cli.NoArgs,
		RunE: func(*cobra.Command, []string) error { return runSensors(a, o) },
	}
	flags := cmd.Flags()
	flags.BoolVarP(&o.watch, "watch", "w", false, "update until a key or Ctrl+C is pressed")
	flags.DurationVar(&o.interval, "interval", time.Second, "with -w: `TIME` between updates")
	flags.BoolVar(&o.json, "json", false, "print JSON")
	flags.BoolVar(&o.all, "all", false, "show devices that CUDA_VISIBLE_DEVICES hides too")
	push.AddFlag(cmd, &o.otlp, "each reading")
	cli.AddSourceFlag(cmd, &o.source)
	return cmd
}

func runSensors(a *cli.App, o sensorsOptions) (err error) {
	if o.interval < cli.MinInterval {
		return cli.UsageError("--interval %v: the shortest is %v", o.interval, cli.MinInterval)
	}
	src, devices, err := open(o.source, o.all)
	if err != nil {
		return err
	}
	defer cli.CloseSoon(src)
	if o.otlp != "" {
		if o.push, err = push.NewDevices(a, o.otlp); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, o.push.Close()) }()
	}
	if !o.watch {
		return writeSensors(a, src, devices, o)
	}
	return watchSensors(a, o, func() error { return writeSensors(a, src, devices, o) })
}

// open opens a source, and returns its visible devices, or all that the driver lists. The caller closes the source, unless
// there is an error.
func open(name string, all bool) (src nvml.Source, devices []nvml.Device, err error) {
	if src, err = cli.OpenSource(name); err != nil {
		return nil, nil, err
	}
	if all {
		if devices, err = src.Devices(); err == nil && len(devices) == 0 {
			err = fmt.Errorf("%w: the driver lists no GPU", nvml.ErrNotAvailable)
		}
	} else if devices, err = nvml.VisibleDevices(src); errors.Is(err, nvml.ErrNoDevice) {
		err = fmt.Errorf("%w: --all shows them", err)
	}
	if err != nil {
		cli.CloseSoon(src)
	}
	return src, devices, err
}

// watchSensors shows the sensors again and again; on a terminal, always in the same place.
func watchSensors(a *cli.App, o sensorsOptions, show func() error) error {
	ctx, cancel := signal.NotifyContext(context.Background(), cli.StopSignals()...)
	defer cancel()
	_, onScreen := cli.Terminal(a.Stdout)
	if keys, ok := cli.Terminal(a.Stdin); ok && onScreen {
		restore, err := anyKey(keys, cancel)
		if err != nil {
			return err
		}
		defer restore()
	}
	ticker := time.NewTicker(o.interval)
	defer ticker.Stop()
	for {
		if onScreen && !o.json {
			fmt.Fprint(a.Stdout, cli.ClearScreen)
		}
		shown := make(chan error, 1)
		go func() { shown <- show() }() // so that a hanging driver does not block the key
		select {
		case <-ctx.Done():
			return nil
		case err := <-shown:
			if err != nil {
				return err
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-ticker.C:
		}
	}
}

// anyKey calls pressed at the next key. In this terminal mode Ctrl+C is a key too, and lines need
// carriage returns: see writeSensors.
func anyKey(keys *os.File, pressed func()) (restore func(), err error) {
	before, err := term.MakeRaw(int(keys.Fd()))
	if err != nil {
		return nil, fmt.Errorf("watching the keyboard: %w", err)
	}
	go func() {
		_, _ = keys.Read(make([]byte, 1)) // an error ends it too
		pressed()
	}()
	return func() { _ = term.Restore(int(keys.Fd()), before) }, nil
}

func writeSensors(a *cli.App, src nvml.Source, devices []nvml.Device, o sensorsOptions) error {
	list := nvml.ReadAll(src, devices)
	if o.push != nil {
		o.push.Readings(list)
	}
	screen := cli.ScreenOf(a.Stdout)
	if !o.watch {
		screen.Height = 0 // one can scroll back
	}
	text := sensorsTable(list, screen)
	if o.json {
		b, err := json.Marshal(sensorsJSON(src.Name(), list))
		if err != nil {
			return err
		}
		text = string(b) + "\n"
	}
	if _, ok := cli.Terminal(a.Stdout); ok {
		text = strings.ReplaceAll(text, "\n", "\r\n") // the keyboard's mode changes the screen's
	}
	_, err := io.WriteString(a.Stdout, text)
	return err
}

const sensorsSchema = "gpumemtrack.sensors/1"

func sensorsJSON(source string, list []nvml.Reading) any {
	devices := make([]map[string]any, len(list))
	for i, s := range list {
		devices[i] = sensorsOf(s)
	}
	return map[string]any{"schema": sensorsSchema, "source": source, "devices": devices}
}

// sensorsOf returns a device and its sensors for JSON, with null for each sensor that it lacks.
func sensorsOf(s nvml.Reading) map[string]any {
	d := map[string]any{"index": s.Index, "uuid": s.UUID, "name": s.Name, "bus_id": s.BusID, "memory_scope": cmp.Or(s.Scope, "device")}
	if s.Parent != "" {
		d["parent"], d["mig"] = s.Parent, s.MIG
	}
	for q := nvml.MemoryUsed; q <= nvml.ClockVideo; q++ {
		if q == nvml.ProcessMemory {
			continue // no quantity of a device itself
		}
		d[q.Key()] = nil
		if v, ok := s.Value(q); ok {
			d[q.Key()] = v
		}
	}
	if s.Err != nil {
		d["error"] = s.Err.Error()
	}
	return d
}

// sensorsTable has the columns of gpulink's table, and also names, power and utilization. A sensor
// that a card does not have is a dash. If the table is higher than the screen, each GPU gets one
// line, and what still does not fit is cut.
func sensorsTable(list []nvml.Reading, screen cli.Screen) string {
	text := sensorsGrid(list, screen.Width, clocksCell, true)
	if !screen.Holds(text) {
		text = sensorsGrid(list, screen.Width, smClockCell, false)
	}
	return screen.Cut(text)
}

func sensorsGrid(list []nvml.Reading, width int, clocks func(nvml.Reading) string, rules bool) string {
	t := cli.NewGrid(2, []string{"Name", "Fan [%]", "Power [W]", "Clock [MHz]", "Temp [°C]"},
		"GPU", "Name", "Memory", "Temp [°C]", "Fan [%]", "Clock [MHz]", "Power [W]", "Util. [%]")
	var warnings cli.Warnings
	for i, s := range list {
		if i > 0 && rules {
			t.AppendSeparator()
		}
		t.AppendRow(table.Row{
			gpuCell(s.Device), s.Name, memoryCell(s), cell(s, nvml.Temperature), cell(s, nvml.FanSpeed),
			clocks(s), cell(s, nvml.Power), cell(s, nvml.Utilization),
		})
		switch {
		case s.Err != nil:
			warnings.Add(s.Device, fmt.Sprintf(": %v", s.Err))
		case s.Scope.String() != "":
			warnings.Add(s.Device, fmt.Sprintf(": memory %v", s.Scope))
		}
	}
	var text strings.Builder
	text.WriteString(t.Fitted(width))
	for _, warning := range warnings.Lines() {
		text.WriteString(warning + "\n")
	}
	return text.String()
}

func gpuCell(d nvml.Device) string {
	if d.Parent != "" {
		return fmt.Sprintf("GPU[%d.%d]", d.Index, d.MIG)
	}
	return fmt.Sprintf("GPU[%d]", d.Index)
}

// memoryCell prints "450.0 MiB / 24.0 GiB (1.8 %)".
func memoryCell(r nvml.Reading) string {
	used, ok := r.Value(nvml.MemoryUsed)
	total, ok2 := r.Value(nvml.MemoryTotal)
	if !ok || !ok2 || total == 0 {
		return "-"
	}
	return fmt.Sprintf("%v / %v (%.1f %%)", alloc.Bytes(used), alloc.Bytes(total), 100*used/total)
}

func cell(r nvml.Reading, q nvml.Quantity) string {
	v, ok := r.Value(q)
	if !ok {
		return "-"
	}
	return strconv.FormatFloat(v, 'f', 0, 64)
}

func clocksCell(r nvml.Reading) string {
	clocks := []struct {
		name string
		q    nvml.Quantity
	}{{"Graph.", nvml.ClockGraphics}, {"Memory", nvml.ClockMemory}, {"SM", nvml.ClockSM}, {"Video", nvml.ClockVideo}}
	var lines []string
	for _, c := range clocks {
		if _, ok := r.Value(c.q); ok {
			lines = append(lines, fmt.Sprintf("%-7s %4s", c.name+":", cell(r, c.q)))
		}
	}
	if lines == nil {
		return "-"
	}
	return strings.Join(lines, "\n")
}

func smClockCell(r nvml.Reading) string {
	if _, ok := r.Value(nvml.ClockSM); !ok {
		return "-"
	}
	return "SM: " + cell(r, nvml.ClockSM)
}
