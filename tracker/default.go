package tracker

import (
	"context"
	"io"
	"log/slog"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Default returns the tracker that the package's functions use. The first call
// opens the first CUDA device, if the program was built for CUDA and a device
// answers, and the simulated GPU otherwise; the report's first line says which.
// If no report can be made in the current directory, there is none. What it fell
// back to is logged once.
func Default() *MemTracker { return defaultTracker() }

var defaultTracker = sync.OnceValue(func() *MemTracker {
	device := defaultDevice()
	t, err := New(Config{Device: device})
	if err != nil {
		slog.Warn("gpumemtrack: there will be no memory report", "err", err)
		t, err = New(Config{Device: device, Report: io.Discard})
	}
	if err != nil {
		panic(err) // without a report nothing is left that can fail
	}
	return t
})

// Track calls Track of the Default tracker.
func Track() *Mark {
	t := Default()
	return t.track(t.stacks.table.Capture(1))
}

// ClearCache calls ClearCache of the Default tracker.
func ClearCache() (alloc.Bytes, error) { return Default().ClearCache() }

// Do calls Do of the Default tracker.
func Do(name string, f func()) *Section {
	t := Default()
	return t.beginSection(t.stacks.table.Capture(1), nil, name).run(f)
}

// Run calls Run of the Default tracker.
func Run(name string, f func() error) error {
	t := Default()
	return t.beginSection(t.stacks.table.Capture(1), nil, name).try(f)
}

// SectionContext calls SectionContext of the Default tracker.
func SectionContext(ctx context.Context, name string) (context.Context, *Section) {
	t := Default()
	return t.sectionContext(ctx, t.stacks.table.Capture(1), name)
}

// Alloc calls Alloc of the Default tracker.
func Alloc(shape alloc.Shape, dtype alloc.DType, kind Kind) (*Buffer, error) {
	t := Default()
	return t.alloc(t.stacks.table.Capture(1), shape, dtype, kind)
}
