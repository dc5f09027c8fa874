//go:build cuda && cgo && linux

package cucontext_test

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/cucontext"
)

// BenchmarkDriverCall is package cuda's, through gorgonia.org/cu.
func BenchmarkDriverCall(b *testing.B) {
	b.ReportAllocs()
	for b.Loop() {
		if cu.Version() < 0 {
			b.Fatal("no version")
		}
	}
}

// BenchmarkAllocFree is an allocation and its free through a context, as it is and tracked.
func BenchmarkAllocFree(b *testing.B) {
	dev, err := cuda.Open(0)
	require.NoError(b, err)
	defer func() { require.NoError(b, dev.Close()) }()
	tr, err := tracker.New(tracker.Config{Device: dev, Report: io.Discard})
	require.NoError(b, err)
	ctx := cu.NewContext(0, cu.SchedAuto)
	for name, ctx := range map[string]cu.Context{"plain": ctx, "tracked": cucontext.Track(ctx, tr)} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				p, err := ctx.MemAlloc(1 << 20)
				if err != nil {
					b.Fatal(err)
				}
				ctx.MemFree(p)
			}
		})
	}
	require.NoError(b, ctx.Close())
	require.NoError(b, tr.Close())
}
