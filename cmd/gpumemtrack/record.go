package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

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
	command  []string
}

var recordable = []string{"memory", "utilization", "power", "temperature", "fan", "clocks", "all"}

func recordCommand(a *app) *cobra.Command {
	var o recordOptions
	cmd := &cobra.Command{
		Use:   "record [flags] [-- COMMAND ARG...]",
		Short: "Record the GPU memory of a program, a process or the devices",
		Long: `Record the GPU memory of a program, a process or the devices, until the program
or the process ends, --duration is over, or Ctrl+C. At the end there are a table,
the charts asked for, and the samples in a file: they are appended as they come,
so that even a recorder that is killed leaves them. The program's own exit code is
passed on, and signals are passed in. When --duration ends the recording first, the
table and the charts are made then; the program goes on, and its end is waited for.

Memory of a process is what the driver says of it and of all that it started, once
a second at most; the devices are asked at every --interval. Of a program that runs
for less than a second one look is all there is.`,
		Example: `  gpumemtrack record -o memory.png -- ./train --epochs 3
  gpumemtrack record -o run.html -o run.csv --gpu 0 --pid 4711
  gpumemtrack record --duration 1m --interval 50ms --with utilization,power`,
		Args: cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if cmd.ArgsLenAtDash() != 0 && len(args) > 0 {
				return usageError("record: write -- before the command to run: gpumemtrack record -- %s", strings.Join(args, " "))
			}
			o.command = args
			return a.record(o)
		},
	}
	flags := cmd.Flags()
	flags.StringArrayVarP(&o.outputs, "output", "o", nil, "a `FILE` for a chart (.png, .svg, .html) or for the samples (.jsonl, .csv); may be repeated (default: samples only, in a file named by date, process and GPU)")
	flags.StringSliceVar(&o.gpus, "gpu", nil, "a `GPU` by its number in nvidia-smi, or its UUID; may be repeated (default: those that CUDA_VISIBLE_DEVICES leaves)")
	flags.IntVar(&o.pid, "pid", 0, "record the memory of process `PID`, and of its children, too")
	flags.DurationVar(&o.interval, "interval", nvml.DefaultInterval, "`TIME` between samples, 10ms at least")
	flags.DurationVar(&o.duration, "duration", 0, "stop after this `TIME` (default: no limit)")
	flags.StringVar(&o.with, "with", "memory", "`WHAT` to record: "+strings.Join(recordable, ", ")+"; memory always is")
	flags.BoolVarP(&o.force, "force", "f", false, "overwrite files")
	complete(cmd, "with", recordable...)
	addSourceFlag(cmd, &o.source)
	return cmd
}

// record checks all it can before it starts the command, then records.
func (a *app) record(o recordOptions) error {
	charts, cfg, err := o.config()
	if err != nil {
		return err
	}
	path, err := lookCommand(o.command)
	if err != nil {
		return err
	}
	src, err := openSource(o.source)
	if err != nil {
		return err
	}
	defer src.Close()
	cfg.Source = src
	if err := rehearse(cfg, charts); err != nil {
		return err
	}
	ctx, cancel := signal.NotifyContext(context.Background(), stopSignals...)
	defer cancel()
	if len(o.command) == 0 {
		return a.recordUntil(ctx, cfg, charts, o)
	}
	cancel() // the command's signals are passed to it
	return a.recordCommand(cfg, charts, o, path)
}

// config sorts the outputs into charts and files.
func (o recordOptions) config() (charts []string, cfg nvml.Config, err error) {
	quantities, err := nvml.ParseQuantities(o.with)
	if err != nil {
		return nil, cfg, usageError("record: --with: %w", err)
	}
	switch {
	case o.interval < nvml.MinInterval:
		return nil, cfg, usageError("record: --interval %v: the shortest is %v", o.interval, nvml.MinInterval)
	case o.duration < 0 || o.pid < 0:
		return nil, cfg, usageError("record: --duration and --pid cannot be negative")
	case o.pid != 0 && len(o.command) > 0:
		return nil, cfg, usageError("record: either --pid, or a command: not both")
	}
	cfg = nvml.Config{Interval: o.interval, Devices: o.gpus, Quantities: quantities, Overwrite: o.force}
	if o.pid != 0 {
		cfg.Target = nvml.Target{PID: o.pid, Children: true}
	}
	for i, path := range o.outputs {
		if slices.ContainsFunc(o.outputs[:i], func(before string) bool { return filepath.Clean(before) == filepath.Clean(path) }) {
			return nil, cfg, usageError("record: -o %s is there twice", path)
		}
		switch ext := strings.ToLower(filepath.Ext(path)); {
		case isChart(path):
			charts = append(charts, path)
		case ext == ".csv" || ext == ".jsonl":
			cfg.Files = append(cfg.Files, path)
		default:
			return nil, cfg, usageError("record: -o %s: a chart ends in .png, .svg or .html, samples in .jsonl or .csv", path)
		}
	}
	if cfg.Files == nil { // the samples go beside the first chart
		cfg.Dir = "."
		if len(charts) > 0 {
			cfg.Dir = filepath.Dir(charts[0])
		}
	}
	return charts, cfg, nil
}

// rehearse finds out before the command starts, and perhaps runs for days, what
// would make its recording fail.
func rehearse(cfg nvml.Config, charts []string) error {
	paths := slices.Concat(charts, cfg.Files)
	if cfg.Dir != "" {
		paths = append(paths, filepath.Join(cfg.Dir, fmt.Sprintf(".gpumemtrack-%d", os.Getpid())))
	}
	for _, path := range paths {
		if err := canCreate(path, cfg.Overwrite); err != nil {
			return err
		}
	}
	cfg.Files, cfg.Dir = nil, ""
	r, err := nvml.NewRecorder(cfg)
	if err != nil {
		return err
	}
	return r.Stop()
}

// recordUntil records until ctx is done, time is over, or the process is gone.
func (a *app) recordUntil(ctx context.Context, cfg nvml.Config, charts []string, o recordOptions) error {
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
		a.showLive(ctx, rec, false)
		return nil
	})
	return errors.Join(err, a.finish(a.stdout, rec, charts, o))
}

// waitGone returns when the process has ended, or ctx is done.
func waitGone(ctx context.Context, pid int) {
	ticker := time.NewTicker(100 * time.Millisecond)
	defer ticker.Stop()
	for alive(pid) {
		select {
		case <-ctx.Done():
			return
		case <-ticker.C:
		}
	}
}

// recordCommand runs the command and records meanwhile. Its output is its own;
// ours goes to stderr.
func (a *app) recordCommand(cfg nvml.Config, charts []string, o recordOptions, path string) error {
	child, err := a.startChild(path, o.command, nil)
	if err != nil {
		return err
	}
	cfg.Target, cfg.Fresh = nvml.Target{PID: child.pid(), Children: true}, true
	rec, err := nvml.NewRecorder(cfg)
	if err != nil {
		child.kill()
		return err
	}
	child.watch()
	err = rec.Record(child.ended, func(ctx context.Context) error {
		if o.duration > 0 {
			var cancel context.CancelFunc
			ctx, cancel = context.WithTimeout(ctx, o.duration)
			defer cancel()
		}
		a.showLive(ctx, rec, true)
		return nil
	})
	err = errors.Join(err, a.finish(a.stderr, rec, charts, o))
	if child.ended.Err() == nil {
		fmt.Fprintf(a.stderr, "recorded for %v; %s goes on\n", o.duration, o.command[0])
	}
	if code := child.wait(); code != 0 {
		return &codedError{code, err}
	}
	return err
}

// finish prints the table, draws the charts, and says where the samples are.
func (a *app) finish(w io.Writer, rec *nvml.Recorder, charts []string, o recordOptions) error {
	recording := rec.Recording()
	writeRecording(w, recording)
	for _, file := range rec.Files() {
		fmt.Fprintf(a.stderr, "samples: %s\n", file)
	}
	return a.saveCharts(recording, chart.Config{Title: strings.Join(o.command, " ")}, charts, o.force)
}
