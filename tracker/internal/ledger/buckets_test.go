package ledger

import (
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
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

// TestShapesThatNeverRepeatTakeLittle: a bucket goes when no buffer, no mark and no peak needs it, so their number
// stays near the least, and what they counted stays in the total of their place.
func TestShapesThatNeverRepeatTakeLittle(t *testing.T) {
	l := NewLedger("owner")
	for i := range 100_000 {
		x := tables.Tensor{Kind: "Activation", DType: alloc.Uint8, Shape: alloc.Shape{i}, Each: alloc.Bytes(i)}
		id, r := l.Records.Get()
		l.Insert(r, l.Buckets.GetOrMake(Place{Place: tables.Place{Stack: 1}}, 1, &x, l.Epoch), 0)
		l.Remove(id, r)
		l.Buckets.Mark()
		var changes [4]Change
		l.Buckets.TakeChanges(changes[:])
		// A sweep begins at minBuckets and checks sweepBatch of them for each that is made meanwhile.
		require.LessOrEqual(t, l.Buckets.Len(), minBuckets+minBuckets/sweepBatch+2)
	}
	assert.Equal(t, 1, l.Buckets.Retired.Len(), "one entry for each place")
	assert.Equal(t, l.Buckets.Len(), l.Buckets.groups.Len())
	assert.EqualValues(t, 100_000, l.Buckets.Retired.At(1).Total.Count+int64(l.Buckets.Len()))
}

// TestASweepEndsWhenAsManyMayBeAddedAsRemain: buckets that are needed are checked again only when their number has
// doubled.
func TestASweepEndsWhenAsManyMayBeAddedAsRemain(t *testing.T) {
	l := NewLedger("owner")
	sweeping := 0
	var first, last []int // the number of buckets at the beginning and the end of each sweep
	for i := range 10_000 {
		x := tables.Tensor{DType: alloc.Uint8, Shape: alloc.Shape{i}, Each: 1}
		before := l.Buckets.swept
		_, r := l.Records.Get()
		l.Insert(r, l.Buckets.GetOrMake(Place{Place: tables.Place{Stack: 1}}, 1, &x, l.Epoch), 1)
		if l.Buckets.swept != 0 {
			if sweeping++; before == 0 {
				first = append(first, l.Buckets.Len()-1)
			}
			require.LessOrEqual(t, l.Buckets.swept-before, slab.ID(sweepBatch)+1, "a new bucket pays for a few")
		} else if before != 0 {
			last = append(last, l.Buckets.Len()-1)
		}
	}
	require.Equal(t, 10_000, l.Buckets.Len(), "all are live")
	require.Len(t, last, 5)
	assert.Equal(t, minBuckets, first[0])
	for i, n := range first[1:] {
		assert.Equal(t, 2*last[i], n)
	}
	for i, n := range last[1:] {
		assert.InDelta(t, 2*last[i], n, float64(n)/10, "%v", last)
	}
	assert.Less(t, sweeping, 2*10_000/sweepBatch)
}

// TestTheCacheOfBucketsGrows: it has at least slotsPerBucket slots for each bucket up to its limit, so that most are
// found at once.
func TestTheCacheOfBucketsGrows(t *testing.T) {
	l := NewLedger("owner")
	for i := range 2 * mostRecent / slotsPerBucket {
		x := tables.Tensor{DType: alloc.Uint8, Shape: alloc.Shape{i}, Each: 1}
		_, r := l.Records.Get()
		l.Insert(r, l.Buckets.GetOrMake(Place{Place: tables.Place{Stack: tables.StackID(i)}}, 1, &x, l.Epoch), 1)
		slots := len(l.Buckets.recent.slots)
		require.GreaterOrEqual(t, slots, min(mostRecent, slotsPerBucket*l.Buckets.Len()))
		require.LessOrEqual(t, slots, max(fewestRecent, min(mostRecent, 2*slotsPerBucket*l.Buckets.Len()-1)), "it grows no earlier than it must")
	}
	found := 0
	n := 0
	for id := slab.ID(1); id < l.Buckets.Bound(); id++ {
		b := l.Buckets.At(id)
		if b.Group == nil {
			continue
		}
		n++
		got := l.Buckets.Recent(b.Place, &b.Group.Tensor)
		if got == id {
			found++
		} else {
			require.Zero(t, got, "another bucket, in the same slot")
		}
	}
	assert.Greater(t, found, n/2, "a larger cache begins empty")
	assert.Len(t, newRecentBuckets(fewestRecent).slots, fewestRecent)
}

// TestRecentComparesAll: buckets with the same slot differ in stack, section, stream, kind, type or shape.
func TestRecentComparesAll(t *testing.T) {
	l := NewLedger("owner")
	p := Place{Place: tables.Place{Stack: 1, Section: 2}, Stream: 3}
	x := tables.Tensor{Kind: "Input", DType: alloc.Float32, Memory: alloc.DeviceMemory, Shape: alloc.Shape{2, 3}, Each: 24}
	id := l.Buckets.GetOrMake(p, 1, &x, l.Epoch)
	assert.Equal(t, id, l.Buckets.Recent(p, &x))
	unmeasured := x
	unmeasured.Each = 0
	assert.Equal(t, id, l.Buckets.Recent(p, &unmeasured))
	other := p
	other.Stream = 4
	assert.Zero(t, l.Buckets.Recent(other, &x))
	for _, change := range []func(*tables.Tensor){
		func(y *tables.Tensor) { y.Kind = "Output" },
		func(y *tables.Tensor) { y.DType = alloc.Int32 },
		func(y *tables.Tensor) { y.Memory = alloc.PinnedMemory },
	} {
		y := x
		change(&y)
		assert.Zero(t, l.Buckets.Recent(p, &y))
		assert.NotEqual(t, id, l.Buckets.GetOrMake(p, 1, &y, l.Epoch))
	}
}

// TestABufferThatComesBackFindsItsCount: memory that was unregistered may be live again, after its bucket was dropped.
func TestABufferThatComesBackFindsItsCount(t *testing.T) {
	for _, dropped := range []bool{false, true} {
		l := NewLedger("owner")
		id, r := addOne(&l, 1, 64, alloc.DeviceMemory)
		l.Label(id, r, "arena")
		w := l.Withdraw(id, r)
		l.ResetPeak()
		if dropped {
			for i := range 2 * minBuckets {
				id, r := addOne(&l, 2, alloc.Bytes(i), alloc.DeviceMemory)
				l.removeAddress(r)
				l.Remove(id, r)
				l.ResetPeak()
			}
			require.Equal(t, mem.Tally{Count: 1, Bytes: 64}, retiredAt(&l, 1))
		}
		again := l.Reinsert(&w)
		b := l.Buckets.At(again.Bucket)
		assert.Equal(t, []int64{1, 1}, []int64{b.Live, b.Total})
		assert.Zero(t, retiredAt(&l, 1))
		assert.Equal(t, "arena", l.LabelOf(again))
		assert.Equal(t, mem.Tally{Count: 1, Bytes: 64}, l.Current)
	}
}

// TestAViewBesideABufferThatComesBack counts it once: in the retired total, or in its bucket, which others may have made
// again.
func TestAViewBesideABufferThatComesBack(t *testing.T) {
	for _, others := range []int{0, 2} {
		l := NewLedger("owner")
		id, r := addOne(&l, 1, 64, alloc.DeviceMemory)
		w := l.Withdraw(id, r)
		l.ResetPeak()
		for i := range 2 * minBuckets {
			id, r := addOne(&l, 2, alloc.Bytes(i), alloc.DeviceMemory)
			l.removeAddress(r)
			l.Remove(id, r)
			l.ResetPeak()
		}
		for i := range others {
			x := tables.Tensor{Kind: "Input", DType: alloc.Uint8, Shape: alloc.Shape{64}, Each: 64, Memory: alloc.DeviceMemory}
			_, r := l.Records.Get()
			r.Ptr = alloc.Ptr(100 + i)
			l.Insert(r, l.Buckets.GetOrMake(Place{Place: tables.Place{Stack: 1}}, 1, &x, l.Epoch), 64)
		}
		buckets, retired := l.Buckets.View(), l.Buckets.Retired.View()
		l.Reinsert(&w)
		var lock sync.Mutex
		count := int64(0)
		buckets.Read(&lock, func(_ slab.ID, all []Bucket[string]) {
			for i := range all {
				if all[i].Group != nil && all[i].Stack == 1 {
					count += all[i].Total
				}
			}
		})
		retired.Read(&lock, func(_ slab.ID, all []tables.RetiredEntry) {
			for _, e := range all {
				if e.Stack == 1 {
					count += e.Total.Count
				}
			}
		})
		assert.EqualValues(t, 1+others, count)
	}
}

// retiredAt is the total of the buckets of a stack that were dropped.
func retiredAt(l *Ledger[string], stack tables.StackID) (sum mem.Tally) {
	for id := slab.ID(1); id < l.Buckets.Retired.Bound(); id++ {
		if e := l.Buckets.Retired.At(id); e.Stack == stack {
			sum = sum.Add(e.Total)
		}
	}
	return sum
}
