package main

import (
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// events compares the device's clock with the host's: over a copy, and over a time in which the device has
// nothing to do.
func events(w io.Writer, _ *view) (err error) {
	dev, err := cuda.Open(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	host := make([]byte, 256*alloc.MiB)
	p, err := dev.Alloc(alloc.Bytes(len(host)))
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Free(p)) }()
	if err := dev.CopyToDevice(p, host); err != nil { // the first makes both sides' pages
		return err
	}
	fmt.Fprintln(w, "\thost\tevents")
	for _, work := range []struct {
		name string
		do   func() error
	}{
		{"256 MiB to the device", func() error { return dev.CopyToDevice(p, host) }},
		{"256 MiB to the host", func() error { return dev.CopyToHost(host, p) }},
		{"100 ms of nothing", func() error { time.Sleep(100 * time.Millisecond); return nil }},
	} {
		interval, err := dev.(capability.Timer).StartInterval()
		if err != nil {
			return err
		}
		begin := time.Now()
		if err := errors.Join(work.do(), interval.Stop()); err != nil {
			return err
		}
		onHost := time.Since(begin)
		onDevice, err := interval.Elapsed()
		if err != nil {
			return err
		}
		fmt.Fprintf(w, "%s\t%v\t%v\n", work.name, onHost.Round(time.Microsecond), onDevice.Round(time.Microsecond))
	}
	return nil
}
