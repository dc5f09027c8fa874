package snapshot_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// randomProgram uses all that a dump has: streams, sections, labels, kinds, memory of others on both sides, marks, a history that
// may begin late, and errors.
func randomProgram(t *testing.T, seed uint64) *snapshot.Dump {
	random := rand.New(rand.NewPCG(seed, 9))
	tr := exporttest.New(t, tracker.Config{MaxEvents: []int{0, 100}[seed%2]})
	var live []*tracker.Buffer
	registered := make(map[alloc.Ptr]bool)
	kinds := []tracker.Kind{tracker.Parameter, tracker.Activation, tracker.Unspecified, "KV <cache>"}
	var open []*tracker.Section
	for range 150 {
		i := 0
		if len(live) > 0 {
			i = random.IntN(len(live))
		}
		switch n := random.IntN(16); {
		case n < 6 || len(live) == 0:
			b, err := tr.AllocOn(alloc.Stream(random.IntN(3)*7), alloc.Shape{1 + random.IntN(9), random.IntN(1 << (4 + random.IntN(14)))}, []alloc.DType{alloc.Float32, alloc.Int4, alloc.Bool}[random.IntN(3)], kinds[random.IntN(4)])
			require.NoError(t, err)
			live = append(live, b)
		case n < 9:
			require.NoError(t, live[i].Free())
			live = slices.Delete(live, i, i+1)
		case n == 9:
			live[i].SetLabel([]string{"", "layer.0", "\u2028 <b>\"quoted\"\\", "Größe 大"}[random.IntN(4)])
		case n == 10:
			require.NoError(t, live[i].SetKind(kinds[random.IntN(4)]))
		case n == 11:
			p := alloc.Ptr(1<<45) + alloc.Ptr(random.IntN(20))*4096
			if registered[p] {
				_, err := tr.Unregister(p)
				require.NoError(t, err)
			} else {
				memory := []alloc.Memory{alloc.DeviceMemory, alloc.PinnedMemory, alloc.ManagedMemory}[random.IntN(3)]
				require.NoError(t, tr.Register(p, memory, alloc.Shape{random.IntN(500)}, alloc.Float16, kinds[random.IntN(4)]))
			}
			registered[p] = !registered[p]
		case n == 12:
			tr.Track()
		case n == 13 && len(open) < 4:
			open = append(open, tr.Section(fmt.Sprint("part", random.IntN(3))))
		case n == 13 || n == 14 && len(open) > 0:
			open[len(open)-1].End()
			open = open[:len(open)-1]
		case random.IntN(3) == 0:
			_, err := tr.ClearCache()
			require.NoError(t, err)
		case random.IntN(3) == 0:
			_, err := tr.Alloc(alloc.Shape{1 << 30, 64}, alloc.Float32, tracker.Temporary)
			require.ErrorIs(t, err, alloc.ErrOutOfMemory)
		default:
			tr.ResetPeak()
		}
	}
	for len(open) > 0 {
		open[len(open)-1].End()
		open = open[:len(open)-1]
	}
	return tr.Dump()
}

// TestRandomDumpsReadAsWritten: what is read is what was written, value by value, and not only what is written again.
func TestRandomDumpsReadAsWritten(t *testing.T) {
	for seed := range uint64(30) {
		d := randomProgram(t, seed)
		var text bytes.Buffer
		require.NoError(t, d.WriteJSON(&text))
		got, err := snapshot.ReadDump(bytes.NewReader(text.Bytes()))
		require.NoError(t, err)
		var again bytes.Buffer
		require.NoError(t, got.WriteJSON(&again))
		require.Equal(t, text.String(), again.String())

		s, r := d.Snapshot, got.Snapshot
		assert.Equal(t, s.Levels, r.Levels, "seed %d", seed)
		assert.Equal(t, s.Events, r.Events)
		assert.Equal(t, s.Segments, r.Segments)
		assert.Equal(t, slices.Collect(s.Allocations()), slices.Collect(r.Allocations()), "seed %d", seed)
		assert.Equal(t, slices.Collect(s.CallSites()), slices.Collect(r.CallSites()), "seed %d", seed)
		events := slices.Collect(d.Events())
		require.NotEmpty(t, events)
		assert.Equal(t, events, slices.Collect(got.Events()), "seed %d", seed)
		require.Len(t, got.Marks, len(d.Marks))
		for i, m := range d.Marks {
			assert.Equal(t, m.Levels, got.Marks[i].Levels)
			assert.Equal(t, []any{m.Seq, m.CallSite, m.Delta}, []any{got.Marks[i].Seq, got.Marks[i].CallSite, got.Marks[i].Delta})
		}
		assert.Equal(t, s.Sub(nil), r.Sub(nil))
	}
}
