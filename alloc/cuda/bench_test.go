//go:build linux

package cuda_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
)

// BenchmarkDriverCall is a call of the driver that does next to nothing. Package cucontext has
// the same through gorgonia.org/cu. Over the emulated driver both are the calls' own cost.
func BenchmarkDriverCall(b *testing.B) {
	version, err := cuda.Version()
	if err != nil {
		b.Skip(err)
	}
	b.ReportAllocs()
	for b.Loop() {
		if err := version(); err != nil {
			b.Fatal(err)
		}
	}
}

func BenchmarkDeviceAllocFree(b *testing.B) {
	dev, err := cuda.Open(0)
	if err != nil {
		b.Skip(err)
	}
	defer func() { require.NoError(b, dev.Close()) }()
	b.ReportAllocs()
	for b.Loop() {
		p, err := dev.Alloc(alloc.MiB)
		if err != nil {
			b.Fatal(err)
		}
		if err := dev.Free(p); err != nil {
			b.Fatal(err)
		}
	}
}
