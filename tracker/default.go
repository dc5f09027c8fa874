package tracker

import (
	"cmp"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Default returns the tracker that the package's functions use: the one from SetDefault, or else
// one that the first call makes. That one uses the device that New opens for an empty Config, or
// the simulated GPU if opening fails. The report's first line names the device. If the current
// directory cannot be written, there is no report. Each of these fallbacks is logged once. Any
// goroutine may call Default.
func Default() *MemTracker {
	if t := chosen.Load(); t != nil {
		return t
	}
	d := defaultTracker()
	if d.logged.CompareAndSwap(false, true) {
		d.log()
	}
	return d.MemTracker
}

// SetDefault makes t the tracker that the package's functions use. The caller still closes it.
// A nil t brings back the tracker that Default makes. Any goroutine may call it.
func SetDefault(t *MemTracker) { chosen.Store(t) }

var chosen atomic.Pointer[MemTracker]

// fallback is the default tracker, and what it had to do without.
type fallback struct {
	*MemTracker
	noGPU, noReport error
	logged          atomic.Bool
}

// log logs what the tracker has to do without. That is not a part of making the tracker, because the handler's code is
// not ours: it may ask for the default tracker.
func (d *fallback) log() {
	logFallback(slog.Default(), d.noGPU)
	if d.noReport != nil {
		slog.Warn("gpumemtrack: there will be no memory report", "err", d.noReport)
	}
}

var defaultTracker = sync.OnceValue(func() *fallback {
	device, noGPU := defaultDevice()
	t, noReport := New(Config{Device: device})
	if noReport != nil {
		var err error
		if t, err = New(Config{Device: device, Report: io.Discard}); err != nil {
			panic(err) // without a report nothing is left that can fail
		}
	}
	return &fallback{MemTracker: t, noGPU: noGPU, noReport: noReport}
})

// Track calls Track of the Default tracker.
func Track() *snapshot.Mark {
	t := Default()
	return track(t, tables.StackID(t.stacks.Table.Capture(1)))
}

// ClearCache calls ClearCache of the Default tracker. The errors are the same.
func ClearCache() (alloc.Bytes, error) { return Default().ClearCache() }

// Alloc calls Alloc of the Default tracker. The errors are the same.
func Alloc(shape alloc.Shape, dtype alloc.DType, kind Kind) (*Buffer, error) {
	t := Default()
	return t.alloc(tables.StackID(t.stacks.Table.Capture(1)), 0, shape, dtype, kind)
}

// SnapshotAll returns a light snapshot of each tracker, of several devices in one process; of all open trackers
// of the process, in the order of their devices, if none are given. It prints as one report:
//
//	fmt.Print(tracker.SnapshotAll())
func SnapshotAll(trackers ...*MemTracker) snapshot.Devices {
	var all snapshot.Devices
	for _, t := range orOpen(trackers) {
		all = append(all, t.LightSnapshot())
	}
	return all
}

// DumpAll returns the Dump of the first tracker, with the dumps of the other trackers as its
// Others. Without arguments it takes all open trackers of the process; it returns nil if there are
// none. Formats that know several devices show all of them.
func DumpAll(trackers ...*MemTracker) *snapshot.Dump {
	var all []*snapshot.Dump
	for _, t := range orOpen(trackers) {
		all = append(all, t.Dump())
	}
	if len(all) == 0 {
		return nil
	}
	all[0].Others = append(all[0].Others, all[1:]...)
	return all[0]
}

// orOpen returns the given trackers or, if there are none, all open ones in the order of their devices.
func orOpen(given []*MemTracker) []*MemTracker {
	if len(given) > 0 {
		return given
	}
	open := openTrackers.except(nil)
	slices.SortStableFunc(open, func(x, y *MemTracker) int { return cmp.Compare(x.device.Ordinal(), y.device.Ordinal()) })
	return open
}
