package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

type sensorsOptions struct {
	source   string
	watch    bool
	json     bool
	all      bool
	interval time.Duration
}

func sensorsCommand(a *app) *cobra.Command {
	var o sensorsOptions
	cmd := &cobra.Command{
		Use:   "sensors",
		Short: "Show memory, temperature, fan, clocks, power and utilization",
		Long: `Show the GPUs that CUDA_VISIBLE_DEVICES leaves, as a table or as JSON.

--json prints one object for each reading: "schema", "source", and "devices",
each with its "index", "uuid", "name", "bus_id" and every figure under a key
with its unit, such as "memory_used_bytes" and "power_watts", or null if the
device has none. "memory_scope" says what the memory figures count: "device",
"device+driver" (an older driver counts its own part as used) or "host" (the GPU
shares the host's memory). A MIG device has the "index" of its GPU, the GPU's
UUID as "parent", and its own number as "mig". "error" says why a device did not
answer.`,
		Example: `  gpumemtrack sensors
  gpumemtrack sensors -w                      # until a key is pressed
  gpumemtrack sensors --json | jq '.devices[].memory_used_bytes'`,
		Args: none,
		RunE: func(*cobra.Command, []string) error { return a.sensors(o) },
	}
	flags := cmd.Flags()
	flags.BoolVarP(&o.watch, "watch", "w", false, "update until a key or Ctrl+C is pressed")
	flags.DurationVar(&o.interval, "interval", time.Second, "with -w: `TIME` between updates")
	flags.BoolVar(&o.json, "json", false, "print JSON")
	flags.BoolVar(&o.all, "all", false, "show devices that CUDA_VISIBLE_DEVICES hides too")
	addSourceFlag(cmd, &o.source)
	return cmd
}

func (a *app) sensors(o sensorsOptions) error {
	if o.interval < nvml.MinInterval {
		return usageError("--interval %v: the shortest is %v", o.interval, nvml.MinInterval)
	}
	src, err := openSource(o.source)
	if err != nil {
		return err
	}
	defer closeSoon(src)
	devices, err := devicesOf(src, o.all)
	if err != nil {
		return err
	}
	if !o.watch {
		return a.writeSensors(src, devices, o)
	}
	return a.watch(o, func() error { return a.writeSensors(src, devices, o) })
}

// devicesOf returns the visible devices, or all that the driver lists.
func devicesOf(src nvml.Source, all bool) ([]nvml.Device, error) {
	if all {
		devices, err := src.Devices()
		if err == nil && len(devices) == 0 {
			err = fmt.Errorf("%w: the driver lists no GPU", nvml.ErrNotAvailable)
		}
		return devices, err
	}
	devices, err := nvml.VisibleDevices(src)
	if errors.Is(err, nvml.ErrNoDevice) {
		err = fmt.Errorf("%w: --all shows them", err)
	}
	return devices, err
}

// watch shows again and again, on a terminal in one place.
func (a *app) watch(o sensorsOptions, show func() error) error {
	ctx, cancel := signal.NotifyContext(context.Background(), stopSignals()...)
	defer cancel()
	_, onScreen := terminal(a.stdout)
	if keys, ok := terminal(a.stdin); ok && onScreen {
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
			fmt.Fprint(a.stdout, clearScreen)
		}
		shown := make(chan error, 1)
		go func() { shown <- show() }() // a driver that hangs does not keep the key from us
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

// anyKey calls pressed at the next key. In this mode of the terminal Ctrl+C is
// a key too. What is printed meanwhile needs its own carriage returns: see crlf.
func anyKey(keys *os.File, pressed func()) (restore func(), err error) {
	before, err := term.MakeRaw(int(keys.Fd()))
	if err != nil {
		return nil, fmt.Errorf("watching the keyboard: %w", err)
	}
	go func() {
		keys.Read(make([]byte, 1))
		pressed()
	}()
	return func() { term.Restore(int(keys.Fd()), before) }, nil
}

func (a *app) writeSensors(src nvml.Source, devices []nvml.Device, o sensorsOptions) error {
	list := nvml.StatusOf(src, devices)
	screen := sizeOf(a.stdout)
	if !o.watch {
		screen.height = 0 // one can scroll back
	}
	text := sensorsTable(list, screen)
	if o.json {
		b, err := json.Marshal(sensorsJSON(src.Name(), list))
		if err != nil {
			return err
		}
		text = string(b) + "\n"
	}
	if _, ok := terminal(a.stdout); ok {
		text = strings.ReplaceAll(text, "\n", "\r\n") // the keyboard's mode changes the screen's
	}
	_, err := io.WriteString(a.stdout, text)
	return err
}

const sensorsSchema = "gpumemtrack.sensors/1"

func sensorsJSON(source string, list []nvml.Status) any {
	devices := make([]map[string]any, len(list))
	for i, s := range list {
		devices[i] = sensorsOf(s)
	}
	return map[string]any{"schema": sensorsSchema, "source": source, "devices": devices}
}

// sensorsOf is a device and its sensors, with a null for each that it lacks.
func sensorsOf(s nvml.Status) map[string]any {
	d := map[string]any{"index": s.Index, "uuid": s.UUID, "name": s.Name, "bus_id": s.BusID, "memory_scope": s.Scope}
	if s.Parent != "" {
		d["parent"], d["mig"] = s.Parent, s.MIG
	}
	for _, q := range nvml.AllQuantities.List() {
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
