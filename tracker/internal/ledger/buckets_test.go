package ledger

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

// TestAMarkIsOfOneInstant: what a mark tells is what changed up to its cut, however
// little of it is told at a time, and whatever changes meanwhile.
func TestAMarkIsOfOneInstant(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	l := NewLedger("owner")
	held := make([][]Record, 3*minBuckets) // by line
	live, marked := make([]int64, len(held)), make([]int64, len(held))
	change := func() {
		i := rng.IntN(len(held))
		if n := len(held[i]); n > 0 && rng.IntN(2) == 0 {
			l.uncount(&held[i][n-1])
			held[i] = held[i][:n-1]
			live[i]--
			return
		}
		x := tables.Tensor{Kind: "Activation", DType: alloc.Float32, Shape: alloc.Shape{i}, Each: alloc.Bytes(4 * i)}
		var r Record
		l.Insert(&r, l.Buckets.GetOrMake(Place{Place: tables.Place{Stack: tables.StackID(i + 1)}}, LineID(i), &x, l.Epoch), 512)
		held[i] = append(held[i], r)
		live[i]++
	}
	for range 200 {
		for range rng.IntN(2 * len(held)) {
			change()
		}
		if rng.IntN(10) == 0 {
			l.ResetPeak() // then buckets can go that are empty
		}
		l.Buckets.Mark()
		want := make(map[LineID]int64)
		for i := range live {
			if live[i] != marked[i] {
				want[LineID(i)] = live[i] - marked[i]
			}
			marked[i] = live[i]
		}
		got := make(map[LineID]int64)
		some := make([]Change, 1+rng.IntN(20))
		for more := true; more; {
			var n int
			n, more = l.Buckets.TakeChanges(some)
			for _, c := range some[:n] {
				if c.Count != 0 {
					assert.Equal(t, int(c.Line), c.Group.Shape[0])
					got[c.Line] += c.Count
				}
			}
			for range rng.IntN(10) {
				change()
			}
		}
		require.Equal(t, want, got)
	}
}

// TestAMarkTakesFewBucketsAtOnce: the lock is held for as many as there is room for, however
// many have changed.
func TestAMarkTakesFewBucketsAtOnce(t *testing.T) {
	const changes = 10_000
	l := NewLedger("owner")
	for i := range changes {
		x := tables.Tensor{Kind: "Activation", DType: alloc.Float32, Shape: alloc.Shape{i}, Each: alloc.Bytes(4 * i)}
		var r Record
		l.Insert(&r, l.Buckets.GetOrMake(Place{Place: tables.Place{Stack: 1}}, 0, &x, l.Epoch), 512)
	}
	due := func() (n int) {
		for id := l.Buckets.previous; id != 0; id = l.Buckets.At(id).older {
			n++
		}
		return n
	}
	l.Buckets.Mark()
	require.Equal(t, changes, due(), "the mark itself looks at none")
	var some [256]Change
	for left := changes; left > 0; {
		n, more := l.Buckets.TakeChanges(some[:])
		left -= n
		require.Equal(t, left, due())
		require.Equal(t, left > 0, more)
		require.Equal(t, min(256, left+n), n)
	}
}
