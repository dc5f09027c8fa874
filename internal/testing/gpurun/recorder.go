package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// recorder takes memory while a Recorder looks on. What it saw must have risen by as much.
func recorder(w io.Writer, v *view) (err error) {
	const size = 512 * alloc.MiB
	if v == nil {
		return nvml.ErrNotAvailable
	}
	dev, err := cuda.Open(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	rec, err := nvml.NewRecorder(nvml.Config{
		Source: v.source, Devices: []string{v.device.UUID}, Interval: 20 * time.Millisecond, Target: nvml.Target{PID: os.Getpid()},
	})
	if err != nil {
		return err
	}
	if err := rec.Start(); err != nil {
		return err
	}
	waitForLooks(rec)
	p, err := dev.Alloc(size)
	if err != nil {
		return errors.Join(err, rec.Stop())
	}
	waitForLooks(rec)
	if err := errors.Join(dev.Free(p), rec.Stop()); err != nil {
		return err
	}
	fmt.Fprintf(w, "%s taken meanwhile\tlowest\thighest\trise\tsamples\n", mebibytes(size))
	for _, s := range rec.Recording().Series {
		if !s.Known() {
			fmt.Fprintf(w, "%s\tunknown: %s\n", s.Label(), s.Note)
			continue
		}
		low, high := alloc.Bytes(s.Min()), alloc.Bytes(s.Max())
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%d\n", s.Label(), mebibytes(low), mebibytes(high), mebibytes(high-low), s.Len())
	}
	return nil
}

// waitForLooks waits until each series has two samples more, so that the second was begun
// after the call; or for five seconds, where a value cannot be had.
func waitForLooks(rec *nvml.Recorder) {
	before := rec.Recording().Series
	for begin := time.Now(); time.Since(begin) < 5*time.Second; time.Sleep(20 * time.Millisecond) {
		waiting := false
		for i, s := range rec.Recording().Series {
			waiting = waiting || s.Note == "" && s.Len() < before[i].Len()+2
		}
		if !waiting {
			return
		}
	}
}
