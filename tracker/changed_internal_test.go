package tracker

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// TestAMarkIsOfOneInstant: what a mark tells is what changed up to its cut, however
// little of it is told at a time, and whatever changes meanwhile.
func TestAMarkIsOfOneInstant(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	l := newLedger()
	held := make([][]record, 3*minCells) // by line
	live, marked := make([]int64, len(held)), make([]int64, len(held))
	change := func() {
		i := rng.IntN(len(held))
		if n := len(held[i]); n > 0 && rng.IntN(2) == 0 {
			l.leave(&held[i][n-1])
			held[i] = held[i][:n-1]
			live[i]--
			return
		}
		x := snapshot.Tensor{Kind: Activation, DType: alloc.Float32, Shape: alloc.Shape{i}, Each: alloc.Bytes(4 * i)}
		var r record
		l.add(&r, l.cells.at(placeOf(snapshot.StackID(i+1), nil, 0), lineID(i), &x, l.epoch), 512)
		held[i] = append(held[i], r)
		live[i]++
	}
	for range 200 {
		for range rng.IntN(2 * len(held)) {
			change()
		}
		if rng.IntN(10) == 0 {
			l.resetPeak() // then cells can go that are empty
		}
		l.cells.cut()
		want := make(map[lineID]int64)
		for i := range live {
			if live[i] != marked[i] {
				want[lineID(i)] = live[i] - marked[i]
			}
			marked[i] = live[i]
		}
		got := make(map[lineID]int64)
		some := make([]cellChange, 1+rng.IntN(20))
		for more := true; more; {
			var n int
			n, more = l.cells.tell(some)
			for _, c := range some[:n] {
				if c.count != 0 {
					assert.Equal(t, int(c.line), c.group.Shape[0])
					got[c.line] += c.count
				}
			}
			for range rng.IntN(10) {
				change()
			}
		}
		require.Equal(t, want, got)
	}
}

// TestAMarkTakesFewCellsAtOnce: the lock is held for as many as there is room for, however
// many have changed.
func TestAMarkTakesFewCellsAtOnce(t *testing.T) {
	const changes = 10_000
	l := newLedger()
	for i := range changes {
		x := snapshot.Tensor{Kind: Activation, DType: alloc.Float32, Shape: alloc.Shape{i}, Each: alloc.Bytes(4 * i)}
		var r record
		l.add(&r, l.cells.at(placeOf(1, nil, 0), 0, &x, l.epoch), 512)
	}
	due := func() (n int) {
		for id := l.cells.due; id != 0; id = l.cells.At(id).older {
			n++
		}
		return n
	}
	l.cells.cut()
	require.Equal(t, changes, due(), "the cut itself looks at none")
	var some [changesAtOnce]cellChange
	for left := changes; left > 0; {
		n, more := l.cells.tell(some[:])
		left -= n
		require.Equal(t, left, due())
		require.Equal(t, left > 0, more)
		require.Equal(t, min(changesAtOnce, left+n), n)
	}
}
