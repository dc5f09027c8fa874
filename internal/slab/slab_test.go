package slab_test

import (
	"maps"
	"math/rand/v2"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

func TestRecordsAreReused(t *testing.T) {
	var s slab.Slab[int]
	seen := make(map[slab.ID]bool)
	for range 3 * slab.ChunkLen {
		id, r := s.Get()
		require.NotZero(t, id)
		require.False(t, seen[id])
		require.Less(t, id, s.Bound())
		*r, seen[id] = 7, true
	}
	bound := s.Bound()
	for id := range seen {
		s.Put(id)
	}
	require.Zero(t, s.Len())
	for range 3 * slab.ChunkLen {
		id, r := s.Get()
		require.True(t, seen[id])
		require.Zero(t, *r)
	}
	require.Equal(t, bound, s.Bound())
	require.Equal(t, 3*slab.ChunkLen, s.Len())
}

// TestViews reads views while records change: each is the slab of its instant.
func TestViews(t *testing.T) {
	var s slab.Slab[int]
	rng := rand.New(rand.NewPCG(1, 2))
	live := make(map[slab.ID]int)
	change := func() {
		switch n := rng.IntN(10); {
		case n < 5 || len(live) == 0:
			id, r := s.Get()
			*r = rng.Int() | 1
			live[id] = *r
		default:
			for id := range live { // any one
				if n < 8 {
					s.Put(id)
					delete(live, id)
				} else {
					s.Touch(id)
					*s.At(id) = rng.Int() | 1
					live[id] = *s.At(id)
				}
				break
			}
		}
	}
	for range 5 * slab.ChunkLen {
		change()
	}
	for range 30 {
		type cut struct {
			view *slab.View[int]
			want map[slab.ID]int
		}
		var cuts []cut
		for range 3 {
			cuts = append(cuts, cut{s.View(), maps.Clone(live)})
			for range rng.IntN(2000) {
				change()
			}
		}
		for _, c := range cuts {
			got := make(map[slab.ID]int)
			c.view.Read(new(sync.Mutex), func(first slab.ID, records []int) {
				for i, v := range records {
					if v != 0 {
						got[first+slab.ID(i)] = v
					}
				}
				for range 50 { // between the chunks of one view
					change()
				}
			})
			require.Equal(t, c.want, got)
		}
	}
}

// TestViewBesideWriters: the sum of all records is the same at any instant.
func TestViewBesideWriters(t *testing.T) {
	const records = 4 * slab.ChunkLen
	var (
		s    slab.Slab[int]
		lock sync.Mutex
		stop = make(chan struct{})
		wg   sync.WaitGroup
	)
	ids := make([]slab.ID, records)
	for i := range ids {
		id, r := s.Get()
		*r, ids[i] = 100, id
	}
	for w := range 2 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(3, uint64(w)))
			for {
				select {
				case <-stop:
					return
				default:
				}
				from, to := ids[rng.IntN(records)], ids[rng.IntN(records)]
				lock.Lock()
				s.Touch(from)
				*s.At(from)--
				s.Touch(to)
				*s.At(to)++
				lock.Unlock()
			}
		})
	}
	for range 100 {
		lock.Lock()
		view := s.View()
		lock.Unlock()
		sum := 0
		view.Read(&lock, func(_ slab.ID, records []int) {
			for _, v := range records {
				sum += v
			}
		})
		assert.Equal(t, 100*records, sum)
	}
	close(stop)
	wg.Wait()
}

// TestChangesCostCopiesOnlyBeforeTheyAreRead: what a view has read it need not be
// notified any more, and a view that was read is forgotten.
func TestChangesCostCopiesOnlyBeforeTheyAreRead(t *testing.T) {
	var s slab.Slab[int]
	id, _ := s.Get()
	view := s.View()
	view.Read(new(sync.Mutex), func(slab.ID, []int) {})
	assert.Zero(t, testing.AllocsPerRun(10, func() {
		s.Touch(id)
		*s.At(id)++
	}))
}

// TestViewOfASlabThatWasReset: a snapshot goes on while its tracker is closed.
func TestViewOfASlabThatWasReset(t *testing.T) {
	var s slab.Slab[int]
	for i := range 3 * slab.ChunkLen {
		_, r := s.Get()
		*r = i + 1
	}
	v, sum := s.View(), 0
	var lock sync.Mutex
	v.Read(&lock, func(first slab.ID, records []int) {
		if first == 0 {
			s.Reset()
			_, r := s.Get()
			*r = -1
		}
		for _, n := range records {
			sum += n
		}
	})
	n := 3 * slab.ChunkLen
	assert.Equal(t, n*(n+1)/2, sum)
	assert.Equal(t, 1, s.Len())
}

// counted is a lock that counts how often it was taken.
type counted struct {
	held  bool
	holds int
}

func (c *counted) Lock()   { c.held, c.holds = true, c.holds+1 }
func (c *counted) Unlock() { c.held = false }

// TestReadHoldsTheLockForOneChunk: it takes the lock anew for each ChunkLen records, and
// does not hold it while its caller looks at them.
func TestReadHoldsTheLockForOneChunk(t *testing.T) {
	for _, records := range []int{0, 1, slab.ChunkLen - 1, slab.ChunkLen, 10*slab.ChunkLen + 5} {
		var s slab.Slab[int]
		for i := range records {
			_, r := s.Get()
			*r = i + 1
		}
		var lock counted
		reads, sum := 0, 0
		s.View().Read(&lock, func(_ slab.ID, part []int) {
			reads++
			assert.False(t, lock.held, "the lock is free")
			assert.Equal(t, reads, lock.holds, "one hold for each part")
			assert.LessOrEqual(t, len(part), slab.ChunkLen)
			for _, n := range part {
				sum += n
			}
		})
		assert.Equal(t, records*(records+1)/2, sum)
		assert.Equal(t, reads+1, lock.holds, "the last to forget the view")
	}
}

// TestAChangeIsCopiedOnceForAllViews: a change costs one copy of a chunk, however many read.
func TestAChangeIsCopiedOnceForAllViews(t *testing.T) {
	var s slab.Slab[[64]int]
	id, _ := s.Get()
	for range slab.ChunkLen {
		s.Get()
	}
	copied := func(views int) uint64 {
		for range views {
			defer s.View().Read(new(sync.Mutex), func(slab.ID, [][64]int) {})
		}
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		s.Touch(id)
		runtime.ReadMemStats(&after)
		return after.TotalAlloc - before.TotalAlloc
	}
	const chunk = slab.ChunkLen * 64 * 8
	assert.Zero(t, copied(0))
	assert.Less(t, copied(1), uint64(2*chunk))
	assert.Less(t, copied(50), uint64(2*chunk))
}

// TestNewRecordsCostNoCopies: what is new since a view is not in it.
func TestNewRecordsCostNoCopies(t *testing.T) {
	var s slab.Slab[int]
	for range 10 {
		s.Get()
	}
	view := s.View()
	for range slab.ChunkLen {
		_, r := s.Get()
		*r = 1
	}
	assert.EqualValues(t, 11, view.Bound())
	view.Read(new(sync.Mutex), func(_ slab.ID, records []int) { assert.Equal(t, make([]int, 11), records) })
}
