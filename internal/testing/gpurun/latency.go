package main

import (
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// latency compares the driver with the cache over it, and with the tracker over both.
func latency(w io.Writer, _ *view) (err error) {
	dev, err := cuda.Open(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, dev.Close()) }()
	cache, err := cache.New(dev, cache.Config{})
	if err != nil {
		return err
	}
	tr, err := tracker.New(tracker.Config{Device: cache, Report: io.Discard})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tr.Close(), cache.Close()) }()

	fmt.Fprintln(w, "size\tcuMemAlloc + cuMemFree\tthrough the cache\tdriver / cache\ttracked\ttracking's own share")
	for _, n := range []alloc.Bytes{4 * alloc.KiB, alloc.MiB, 32 * alloc.MiB, alloc.GiB} {
		if err := latencyOf(w, fmt.Sprint(n), n, dev, cache, tr); err != nil {
			return fmt.Errorf("%v: %w", n, err)
		}
	}
	// A driver keeps the page of a small allocation while another is in it.
	neighbour, err := dev.Alloc(4 * alloc.KiB)
	if err != nil {
		return err
	}
	err = latencyOf(w, "4.0 KiB beside a live one", 4*alloc.KiB, dev, cache, tr)
	return errors.Join(err, dev.Free(neighbour))
}

func latencyOf(w io.Writer, name string, n alloc.Bytes, dev alloc.Device, cache *cache.Cache, tr *tracker.MemTracker) error {
	driver, err := median(func() error { return pair(dev, n) })
	if errors.Is(err, alloc.ErrOutOfMemory) {
		fmt.Fprintf(w, "%s\tthe device has not so much free\n", name)
		return nil
	}
	cached, err2 := median(func() error { return pair(cache, n) })
	tracked, err3 := median(func() error {
		buf, err := tr.AllocBytes(n, tracker.Temporary)
		if err != nil {
			return err
		}
		return buf.Free()
	})
	if err := errors.Join(err, err2, err3); err != nil {
		return err
	}
	fmt.Fprintf(w, "%s\t%v\t%v\t%.0f\t%v\t%v\n", name, driver, cached, float64(driver)/float64(cached), tracked, tracked-cached)
	_, err = cache.Trim()
	return err
}

func pair(dev alloc.Device, n alloc.Bytes) error {
	p, err := dev.Alloc(n)
	if err != nil {
		return err
	}
	return dev.Free(p)
}

const (
	warmUp  = 100 * time.Millisecond
	samples = 101
	atLeast = 100 * time.Microsecond // a sample
)

// median times an operation, in as many runs a sample as take atLeast. What it does
// while it warms up, and fills the tracker's history, is not counted.
func median(operation func() error) (time.Duration, error) {
	for begin := time.Now(); time.Since(begin) < warmUp; {
		if err := operation(); err != nil {
			return 0, err
		}
	}
	runs := 1
	for {
		took, err := timed(runs, operation)
		if err != nil {
			return 0, err
		}
		if took >= atLeast {
			break
		}
		runs *= 2
	}
	all := make([]time.Duration, samples)
	for i := range all {
		took, err := timed(runs, operation)
		if err != nil {
			return 0, err
		}
		all[i] = took / time.Duration(runs)
	}
	slices.Sort(all)
	return all[samples/2], nil
}

func timed(runs int, operation func() error) (time.Duration, error) {
	begin := time.Now()
	for range runs {
		if err := operation(); err != nil {
			return 0, err
		}
	}
	return time.Since(begin), nil
}
