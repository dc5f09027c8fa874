package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/push"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/nvml/chart"
)

type recordOptions struct {
	outputs  []string
	gpus     []string
	pid      int
	interval time.Duration
	duration time.Duration
	with     string
	force    bool
	source   string
	noLive   bool
	otlp     string
	push     *push.Devices // nil without --otlp
	json     string        // a file; "-" is standard output, "" means a table
	command  []string
}

var recordable = []string{"memory", "utilization", "power", "temperature", "fan", "clocks", "all"}

// Record is gpumemtrack record.
func Record(a *cli.App) *cobra.Command {
	var o recordOptions
	cmd := &cobra.Command{
		Use:   "record [flags] [-- COMMAND ARG...]",
		Short: "Record the GPU memory of a program, a process or the devices",
		Long: `Record the GPU memory of a program, a process or the devices, until the program
or the process ends, --duration is over, or Ctrl+C is pressed. At the end it
prints a table, draws the charts, and keeps the samples in a file. Samples are
appended as they are taken, so they survive if the recorder is killed. The exit
code is the program's, and signals are passed to it. If --duration ends the
recording first, the table and the charts are made then, and record waits for
the program to end.

On a terminal the last row shows the memory, unless --no-live is given. While
the program has the terminal in raw mode, as an editor does, that row belongs to
the program.

The devices are sampled at every --interval. The memory of the process and its
children is read once a second at most. A program that runs for less than a
second is sampled once.

A driver that hangs delays nothing: samples without an answer are gaps.

--json prints one object instead of the table. Beside a command, which prints
what it likes, --json=FILE writes it to a file. It has "schema", "source",
"start", "interval_seconds", "duration_seconds", "failures", "samples" (the
files), "charts", and "series", each with its "device", "quantity" (a key with
its unit, such as "memory_used_bytes"), "pid" if it is a process's, "scope",
"minimum", "maximum" and "mean" (null where there is no sample),
"duration_seconds", "samples", "gaps", "note", and "ended" if the device was
lost.`,
		Example: `  gpumemtrack record -o memory.png -- ./train --epochs 3
  gpumemtrack record -o run.html -o run.csv --gpu 0 --pid 4711
  gpumemtrack record --duration 1m --interval 50ms --with utilization,power`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 && len(args) > 0 {
				return cli.UsageError("record: write -- before the command to run: gpumemtrack record -- %s", strings.Join(args, " "))
			}
			o.command = args
			return runRecord(a, o)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&o.outputs, "output", "o", nil, "a `FILE` for a chart (.png, .svg, .html) or for the samples (.jsonl, .csv); may be repeated (default: samples only, in a file named by date, process and GPU)")
	flags.StringSliceVar(&o.gpus, "gpu", nil, "a `GPU` by its number in nvidia-smi, or its UUID; may be repeated (default: those that CUDA_VISIBLE_DEVICES leaves)")
	flags.IntVar(&o.pid, "pid", 0, "record the memory of process `PID`, and of its children, too")
	flags.DurationVar(&o.interval, "interval", 200*time.Millisecond, "`TIME` between samples, 10ms at least")
	flags.DurationVar(&o.duration, "duration", 0, "stop after this `TIME` (default: no limit)")
	flags.StringVar(&o.with, "with", "memory", "`WHAT` to record: "+strings.Join(recordable, ", ")+"; memory always is")
	flags.BoolVarP(&o.force, "force", "f", false, "overwrite files")
	push.AddFlag(cmd, &o.otlp, "the latest values every 15 s")
	flags.BoolVar(&o.noLive, "no-live", false, "show no line on the terminal while recording")
	addJSONFlag(flags, &o.json, "print JSON instead of the table; with a command, into this `FILE`")
	cli.Complete(cmd, "with", recordable...)
	cli.AddSourceFlag(cmd, &o.source)
	return cmd
}

// runRecord checks all it can before it starts the command, and then records.
func runRecord(a *cli.App, o recordOptions) error {
	charts, cfg, err := o.config()
	if err != nil {
		return err
	}
	path, err := findCommand(a, "record", o.command)
	if err != nil {
		return err
	}
	src, err := cli.OpenSource(o.source)
	if err != nil {
		return err
	}
	defer cli.CloseSoon(src)
	cfg.Source = src
	if err := CheckRecording(&cfg, charts); err != nil {
		return err
	}
	if o.otlp != "" {
		if o.push, err = push.NewDevices(a, o.otlp); err != nil {
			return err
		}
		defer func() {
			if err := o.push.Close(); err != nil {
				fmt.Fprintf(a.Stderr, "%s: %v\n", cli.ProgramName, err)
			}
		}()
	}
	if len(o.command) > 0 {
		return recordCommand(a, cfg, charts, o, path)
	}
	ctx, cancel := signal.NotifyContext(context.Background(), cli.StopSignals()...)
	defer cancel()
	return recordUntil(ctx, a, cfg, charts, o)
}

var clocks = []nvml.Quantity{nvml.ClockGraphics, nvml.ClockMemory, nvml.ClockSM, nvml.ClockVideo}

// quantityWords maps the values of --with to quantities.
var quantityWords = map[string][]nvml.Quantity{
	"memory": {nvml.MemoryUsed}, "utilization": {nvml.Utilization}, "power": {nvml.Power},
	"temperature": {nvml.Temperature}, "fan": {nvml.FanSpeed}, "clocks": clocks,
	"all": append([]nvml.Quantity{nvml.MemoryUsed, nvml.Utilization, nvml.Power, nvml.Temperature, nvml.FanSpeed}, clocks...),
}

// parseQuantities reads a list separated by commas. The error names an unknown quantity.
func parseQuantities(list string) (all []nvml.Quantity, err error) {
	for word := range strings.SplitSeq(list, ",") {
		quantities, ok := quantityWords[strings.TrimSpace(word)]
		if !ok {
			return nil, fmt.Errorf("nvml: no quantity %q: want memory, utilization, power, temperature, fan, clocks or all", word)
		}
		all = append(all, quantities...)
	}
	return all, nil
}

// config divides the outputs into charts and files of samples.
func (o recordOptions) config() (charts []string, cfg nvml.Config, err error) {
	quantities, err := parseQuantities(o.with)
	if err != nil {
		return nil, cfg, cli.UsageError("record: --with: %w", err)
	}
	switch {
	case o.interval < cli.MinInterval:
		return nil, cfg, cli.UsageError("record: --interval %v: the shortest is %v", o.interval, cli.MinInterval)
	case o.duration < 0 || o.pid < 0:
		return nil, cfg, cli.UsageError("record: --duration and --pid cannot be negative")
	case o.pid != 0 && len(o.command) > 0:
		return nil, cfg, cli.UsageError("record: either --pid, or a command: not both")
	}
	if err := checkJSON("record", o.json, o.command, o.force); err != nil {
		return nil, cfg, err
	}
	cfg = nvml.Config{Interval: o.interval, Devices: o.gpus, Quantities: quantities, Overwrite: o.force}
	if o.pid != 0 {
		cfg.Target = nvml.Target{PID: o.pid, Children: true}
	}
	for i, path := range o.outputs {
		if slices.ContainsFunc(o.outputs[:i], func(before string) bool { return filepath.Clean(before) == filepath.Clean(path) }) {
			return nil, cfg, cli.UsageError("record: -o %s is there twice", path)
		}
		switch ext := strings.ToLower(filepath.Ext(path)); {
		case cli.IsChart(path):
			charts = append(charts, path)
		case ext == ".csv" || ext == ".jsonl":
			cfg.Files = append(cfg.Files, path)
		default:
			return nil, cfg, cli.UsageError("record: -o %s: a chart ends in .png, .svg or .html, samples in .jsonl or .csv", path)
		}
	}
	if cfg.Files == nil { // the samples are then kept beside the first chart
		folder := "."
		if len(charts) > 0 {
			folder = filepath.Dir(charts[0])
		}
		cfg.Files = []string{folder + "/"}
	}
	return charts, cfg, nil
}

// CheckRecording reports what would make a recording fail, before the command starts, which may run for
// days: settings, devices, and files that cannot be written. It asks the driver for the devices; the
// recorder then does not.
func CheckRecording(cfg *nvml.Config, charts []string) error {
	for _, path := range slices.Concat(charts, cfg.Files) {
		if strings.HasSuffix(path, "/") { // a folder
			path = filepath.Join(path, fmt.Sprintf(".gpumemtrack-%d", os.Getpid()))
		}
		if err := cli.CanCreate(path, cfg.Overwrite); err != nil {
			return err
		}
	}
	return cfg.Validate()
}

// recordUntil records until ctx is done, time is over, or the process is gone.
func recordUntil(ctx context.Context, a *cli.App, cfg nvml.Config, charts []string, o recordOptions) error {
	rec, err := nvml.NewRecorder(cfg)
	if err != nil {
		return err
	}
	if o.duration > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, o.duration)
		defer cancel()
	}
	if o.pid != 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithCancel(ctx)
		defer cancel()
		go func() {
			waitGone(ctx, o.pid)
			cancel()
		}()
	}
	err = rec.Record(ctx, func(ctx context.Context) error {
		defer o.pushing(rec)()
		showLive(ctx, a, rec, false, o)
		return nil
	})
	return errors.Join(err, finish(a, a.Stdout, rec, charts, o))
}

// pushing pushes what is recorded until stop is called.
func (o recordOptions) pushing(rec *nvml.Recorder) (stop func()) {
	if o.push == nil {
		return func() {}
	}
	now := func() { o.push.Recording(rec.Recording()) }
	stop = o.push.Every(now)
	return func() {
		stop()
		now()
	}
}

// recordCommand runs the command and records it. Standard output belongs to the command; ours goes
// to stderr.
func recordCommand(a *cli.App, cfg nvml.Config, charts []string, o recordOptions, path string) error {
	child, err := startChild(a, path, o.command, (*exec.Cmd).Start)
	if err != nil {
		return err
	}
	cfg.Target, cfg.Fresh = nvml.Target{PID: child.pid(), Children: true}, true
	rec, err := nvml.NewRecorder(cfg)
	child.watch()
	if err != nil {
		return cli.ExitAs(child.wait(), err)
	}
	err = rec.Record(child.ended, func(ctx context.Context) error {
		if o.duration > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, o.duration)
			defer cancel()
		}
		defer o.pushing(rec)()
		showLive(ctx, a, rec, true, o)
		return nil
	})
	err = errors.Join(err, finish(a, a.Stderr, rec, charts, o))
	if child.ended.Err() == nil {
		fmt.Fprintf(a.Stderr, "recorded for %v; %s goes on\n", o.duration, o.command[0])
	}
	return cli.ExitAs(child.wait(), err)
}

// finish draws the charts, prints the table, and says where the samples are.
func finish(a *cli.App, w io.Writer, rec *nvml.Recorder, charts []string, o recordOptions) error {
	recording := rec.Recording()
	if o.json != "" {
		err := a.SaveCharts(recording, chart.Config{Title: strings.Join(o.command, " ")}, charts, o.force)
		write := func(w io.Writer) error { return cli.WriteJSON(w, recordedJSON(recording, rec.Files(), charts)) }
		if o.json == "-" {
			return errors.Join(err, write(w))
		}
		return errors.Join(err, cli.WriteNew(o.json, o.force, write))
	}
	cli.WriteRecording(w, recording)
	for _, file := range rec.Files() {
		fmt.Fprintf(a.Stderr, "samples: %s\n", file)
	}
	return a.SaveCharts(recording, chart.Config{Title: strings.Join(o.command, " ")}, charts, o.force)
}

const recordSchema = "gpumemtrack.record/1"

// recordOutput is what record --json prints.
type recordOutput struct {
	Schema   string         `json:"schema"`
	Source   string         `json:"source"`
	Start    time.Time      `json:"start"`
	Interval float64        `json:"interval_seconds"`
	Duration float64        `json:"duration_seconds"`
	Failures int            `json:"failures"`
	Samples  []string       `json:"samples"`
	Charts   []string       `json:"charts"`
	Series   []recordSeries `json:"series"`
}

type recordSeries struct {
	Device   nvml.Device   `json:"device"`
	Quantity nvml.Quantity `json:"quantity"`
	PID      int           `json:"pid,omitempty"`
	Scope    nvml.Scope    `json:"scope"`
	Minimum  *float64      `json:"minimum"`
	Maximum  *float64      `json:"maximum"`
	Mean     *float64      `json:"mean"`
	Duration float64       `json:"duration_seconds"`
	Samples  int           `json:"samples"`
	Gaps     int           `json:"gaps"`
	Note     string        `json:"note,omitempty"`
	Ended    bool          `json:"ended,omitempty"`
}

func recordedJSON(rec nvml.Recording, samples, charts []string) recordOutput {
	out := recordOutput{
		Schema: recordSchema, Source: rec.Source, Start: rec.Start,
		Interval: rec.Interval.Seconds(), Duration: rec.Duration().Seconds(), Failures: rec.Failures,
		Samples: append([]string{}, samples...), Charts: append([]string{}, charts...), Series: []recordSeries{},
	}
	for _, s := range rec.Series {
		one := recordSeries{
			Device: s.Device, Quantity: s.Quantity, PID: s.Target.PID, Scope: s.Scope,
			Duration: s.Duration().Seconds(), Samples: s.Len(), Gaps: s.Gaps(), Note: s.Note, Ended: s.Ended,
		}
		if s.Known() {
			one.Minimum, one.Maximum, one.Mean = finite(s.Min()), finite(s.Max()), finite(s.Mean())
		}
		out.Series = append(out.Series, one)
	}
	return out
}

// finite returns a number, or nil, which JSON prints as null, if JSON has no such number.
func finite(v float64) *float64 {
	if math.IsNaN(v) || math.IsInf(v, 0) {
		return nil
	}
	return &v
}
