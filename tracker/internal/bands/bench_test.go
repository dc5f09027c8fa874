package bands_test

import (
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/bands"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// benchLives is the number of allocations of the history that the benchmarks draw. As in a training run, 10,000 live on
// average, most are small, and there are 5,000 call stacks.
const benchLives = 1_000_000

var benchDump = sync.OnceValue(func() *snapshot.Dump {
	const live = 10_000
	r := rand.New(rand.NewPCG(1, 1))
	stacks := new(tables.StackTable)
	for line := range 5000 {
		site := mem.Frame{Function: "main.step", File: "/src/main.go", Line: line}
		stacks.Add(mem.Stack{site, {Function: "main.main", File: "/src/main.go", Line: 1}}, site)
	}
	var tensors []*tables.Tensor
	for range 300 {
		tensors = append(tensors, &tables.Tensor{Memory: alloc.DeviceMemory, Each: alloc.Bytes(512 << r.IntN(16))})
	}
	past := tables.HistoryTables{Start: epoch, Stacks: stacks, Sections: []string{""}}
	var free, used []tables.EventEntry
	next := alloc.Ptr(1 << 32)
	begun := 0
	for now := time.Duration(0); begun < benchLives || len(used) > 0; now += 20 * time.Microsecond {
		if begun < benchLives && (len(used) < live || r.IntN(2) == 0) {
			e := tables.EventEntry{Action: mem.Allocated, Since: now, Tensor: tensors[r.IntN(len(tensors))], Stack: tables.StackID(1 + r.IntN(5000))}
			if n := len(free); n > 0 {
				e.Ptr, free = free[n-1].Ptr, free[:n-1]
			} else {
				e.Ptr = next
				next += 1 << 24
			}
			e.Allocated = e.Tensor.Each
			past.Events = append(past.Events, e)
			used = append(used, e)
			begun++
			continue
		}
		at := len(used) - 1 - min(len(used)-1, int(r.ExpFloat64()*live/10))
		e := used[at]
		used = append(used[:at], used[at+1:]...)
		free = append(free, e)
		e.Action, e.Since = mem.Freed, now
		past.Events = append(past.Events, e)
	}
	end := past.Events[len(past.Events)-1].Since
	return &snapshot.Dump{
		Snapshot: &snapshot.Snapshot{Time: epoch.Add(end), Events: uint64(len(past.Events)), Tables: tables.Wrap(tables.Tables{Stacks: stacks, Sections: []string{""}})},
		History:  tables.WrapHistory(past),
	}
})

// BenchmarkIndex makes the index of a million allocations: two million events.
func BenchmarkIndex(b *testing.B) {
	d := benchDump()
	b.ReportAllocs()
	for b.Loop() {
		_, err := bands.New(b.Context(), d, bands.NewNames(), false)
		require.NoError(b, err)
	}
}

// BenchmarkTile draws tiles of a million allocations, from the whole history to a millionth of it.
func BenchmarkTile(b *testing.B) {
	x, err := bands.New(b.Context(), benchDump(), bands.NewNames(), false)
	require.NoError(b, err)
	for _, zoom := range []float64{1, 4, 16, 64, 256, 4096, 65536} {
		for _, height := range []int64{1, 16, 256} {
			b.Run(fmt.Sprintf("zoom=%v/height=%d", zoom, height), func(b *testing.B) {
				r := rand.New(rand.NewPCG(2, 2))
				items := 0
				n := 0
				for b.Loop() {
					width := float64(x.Moments()) / zoom
					x0 := r.Float64() * (float64(x.Moments()) - width)
					top := x.All.Level(x.All.Peak())
					y0 := r.Int64N(top - top/height + 1)
					t, err := x.All.Tile(b.Context(), bands.View{Columns: x.Columns(bands.ByEvent, x0, x0+width, 512), Y0: y0, Y1: y0 + top/height, Rows: 512})
					require.NoError(b, err)
					items += len(t.Items)
					n++
				}
				b.ReportMetric(float64(items)/float64(n), "items")
			})
		}
	}
}

// BenchmarkFilter makes the layer of a filter.
func BenchmarkFilter(b *testing.B) {
	x, err := bands.New(b.Context(), benchDump(), bands.NewNames(), false)
	require.NoError(b, err)
	for name, f := range map[string]bands.Filter{"bytes": {MinBytes: 1 << 20}, "text": {Text: "main.go:12"}} {
		b.Run(name, func(b *testing.B) {
			for b.Loop() {
				_, err := bands.NewLayer(b.Context(), x, f)
				require.NoError(b, err)
			}
		})
	}
}
