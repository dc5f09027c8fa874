package watch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/nvml/chart"
)

// Rehearse finds out what would make a recording fail, before the command starts, which may run for
// days. Afterwards cfg names the devices, so that the driver need not list them again.
func Rehearse(cfg *nvml.Config, charts []string) error {
	for _, path := range slices.Concat(charts, cfg.Files) {
		if strings.HasSuffix(path, "/") { // a folder
			path = filepath.Join(path, fmt.Sprintf(".gpumemtrack-%d", os.Getpid()))
		}
		if err := cli.CanCreate(path, cfg.Overwrite); err != nil {
			return err
		}
	}
	try := *cfg
	try.Files = nil
	r, err := nvml.NewRecorder(try)
	if err != nil {
		return err
	}
	known := knownDevices{cfg.Source, r.Recording().Devices}
	cfg.Source, cfg.Devices = known, nil
	for _, d := range known.devices {
		cfg.Devices = append(cfg.Devices, d.UUID)
	}
	return r.Stop()
}

// knownDevices is a source whose devices are already known.
type knownDevices struct {
	nvml.Source
	devices []nvml.Device
}

func (k knownDevices) Devices() ([]nvml.Device, error) { return k.devices, nil }

// recordUntil records until ctx is done, time is over, or the process is gone.
func recordUntil(a *cli.App, ctx context.Context, cfg nvml.Config, charts []string, o recordOptions) error {
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
		showLive(a, ctx, rec, false, o)
		return nil
	})
	return errors.Join(err, finish(a, a.Stdout, rec, charts, o))
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
		showLive(a, ctx, rec, true, o)
		return nil
	})
	err = errors.Join(err, finish(a, a.Stderr, rec, charts, o))
	if child.ended.Err() == nil {
		fmt.Fprintf(a.Stderr, "recorded for %v; %s goes on\n", o.duration, o.command[0])
	}
	return cli.Exit(child.wait(), err) // the command's code, even if its recording or a chart failed
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
	WriteRecording(w, recording)
	for _, file := range rec.Files() {
		fmt.Fprintf(a.Stderr, "samples: %s\n", file)
	}
	return a.SaveCharts(recording, chart.Config{Title: strings.Join(o.command, " ")}, charts, o.force)
}
