package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/nvml/chart"
)

// rehearse finds out before the command starts, and perhaps runs for days, what
// would make its recording fail. From then on cfg names the devices, so that the
// driver is not asked for them again.
func rehearse(cfg *nvml.Config, charts []string) error {
	paths := slices.Concat(charts, cfg.Files)
	if cfg.Dir != "" {
		paths = append(paths, filepath.Join(cfg.Dir, fmt.Sprintf(".gpumemtrack-%d", os.Getpid())))
	}
	for _, path := range paths {
		if err := canCreate(path, cfg.Overwrite); err != nil {
			return err
		}
	}
	try := *cfg
	try.Files, try.Dir = nil, ""
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

// knownDevices is a source that is not asked for its devices again.
type knownDevices struct {
	nvml.Source
	devices []nvml.Device
}

func (k knownDevices) Devices() ([]nvml.Device, error) { return k.devices, nil }

// closeSoon closes a source, but does not wait for a driver that hangs.
func closeSoon(src nvml.Source) {
	closed := make(chan struct{})
	go func() {
		src.Close()
		close(closed)
	}()
	select {
	case <-closed:
	case <-time.After(100 * time.Millisecond):
	}
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
		a.showLive(ctx, rec, false, o)
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
		a.showLive(ctx, rec, true, o)
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

// finish draws the charts, prints the table, and says where the samples are.
func (a *app) finish(w io.Writer, rec *nvml.Recorder, charts []string, o recordOptions) error {
	recording := rec.Recording()
	if o.json {
		err := a.saveCharts(recording, chart.Config{Title: strings.Join(o.command, " ")}, charts, o.force)
		return errors.Join(err, writeJSON(w, recordedJSON(recording, rec.Files(), charts)))
	}
	writeRecording(w, recording)
	for _, file := range rec.Files() {
		fmt.Fprintf(a.stderr, "samples: %s\n", file)
	}
	return a.saveCharts(recording, chart.Config{Title: strings.Join(o.command, " ")}, charts, o.force)
}
