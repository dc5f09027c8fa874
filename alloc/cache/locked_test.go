package cache_test

import (
	"errors"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

func TestLockedKnowsOwners(t *testing.T) {
	c, dev := newCache(t, sim.Config{})
	lock, locked := c.Locked().Mutex(), c.Locked()
	owner := func(p alloc.Ptr) cachelock.Owner {
		lock.Lock()
		defer lock.Unlock()
		return locked.Owner(p)
	}

	lock.Lock()
	_, _, _, ok := locked.Alloc(1000, 0, 1)
	lock.Unlock()
	assert.False(t, ok, "the driver must be asked")
	assert.Zero(t, dev.Calls("Alloc"))

	var first alloc.Ptr
	var block cachelock.Block
	require.NoError(t, c.Locked().AllocSlow(1000, 0, func(b cachelock.Block, p alloc.Ptr, allocated alloc.Bytes) (cachelock.Owner, error) {
		assert.EqualValues(t, 1024, allocated)
		block, first = b, p
		return 1, nil
	}))
	lock.Lock()
	_, second, _, ok := locked.Alloc(1000, 0, 2)
	lock.Unlock()
	require.True(t, ok)
	assert.EqualValues(t, 1, owner(first))
	assert.EqualValues(t, 2, owner(second))
	assert.Zero(t, owner(first+512))
	assert.Zero(t, owner(mustAlloc(t, c, 100)))

	require.ErrorIs(t, c.Free(first), cachelock.ErrOwned)
	lock.Lock()
	_, err := locked.Free(block, first, 2)
	require.ErrorIs(t, err, cachelock.ErrOwned)
	_, err = locked.Free(block, second, 2)
	require.ErrorIs(t, err, cachelock.ErrOwned, "the number is another block's")
	_, err = locked.Free(block, first, 1)
	require.NoError(t, err)
	_, err = locked.Free(block, first, 1)
	require.ErrorIs(t, err, alloc.ErrDoubleFree)
	lock.Unlock()
	assert.Zero(t, owner(first))
	cachetest.Invariants(t, c)
}

func TestAllocSlowThatIsRefusedChangesNothing(t *testing.T) {
	c, _ := newCache(t, sim.Config{})
	mustAlloc(t, c, 100)
	before := c.Stats().Allocated.Bytes.Current
	refusal := errors.New("refused")
	for _, size := range []alloc.Bytes{100, 30 * alloc.MiB} {
		err := c.Locked().AllocSlow(size, 0, func(cachelock.Block, alloc.Ptr, alloc.Bytes) (cachelock.Owner, error) { return 0, refusal })
		require.ErrorIs(t, err, refusal)
		assert.Equal(t, before, c.Stats().Allocated.Bytes.Current)
		cachetest.Invariants(t, c)
	}
	require.ErrorIs(t, c.Locked().AllocSlow(-1, 0, nil), alloc.ErrSize)
}

// TestLockedAllocOfNoBytes: no bytes are a valid request, on both paths.
func TestLockedAllocOfNoBytes(t *testing.T) {
	c, _ := newCache(t, sim.Config{})
	locked := c.Locked()
	require.NoError(t, locked.AllocSlow(0, 0, func(_ cachelock.Block, p alloc.Ptr, allocated alloc.Bytes) (cachelock.Owner, error) {
		assert.NotZero(t, p)
		assert.Equal(t, alloc.Bytes(512), allocated)
		return 1, nil
	}))
	locked.PollAndLock()
	defer locked.Mutex().Unlock()
	_, _, allocated, ok := locked.Alloc(0, 0, 2)
	require.True(t, ok)
	assert.Equal(t, alloc.Bytes(512), allocated)
	_, _, _, ok = locked.Alloc(-1, 0, 3)
	assert.False(t, ok)
}

// TestPollAndLock: before it takes the lock, it makes the pending blocks available whose work is done.
func TestPollAndLock(t *testing.T) {
	c, dev, p := used(t, sim.Config{})
	locked := c.Locked()
	reuse := func() (got alloc.Ptr) {
		locked.PollAndLock()
		defer locked.Mutex().Unlock()
		_, got, _, ok := locked.Alloc(3*alloc.MiB, 1, 7)
		require.True(t, ok)
		return got
	}
	assert.NotEqual(t, p, reuse(), "it is in use")
	require.NoError(t, c.Free(p))
	assert.NotEqual(t, p, reuse(), "work on another stream uses it")
	dev.Advance(time.Second)
	assert.Equal(t, p, reuse())
	cachetest.Invariants(t, c)
}

func TestReclaimableIsWhatTrimGivesBack(t *testing.T) {
	c, _ := newCache(t, sim.Config{})
	rng := rand.New(rand.NewPCG(4, 5))
	var live []alloc.Ptr
	for range 2000 {
		if n := len(live); n > 0 && rng.IntN(2) == 0 {
			i := rng.IntN(n)
			require.NoError(t, c.Free(live[i]))
			live[i] = live[n-1]
			live = live[:n-1]
		} else {
			live = append(live, mustAlloc(t, c, alloc.Bytes(1<<rng.IntN(25))))
		}
		if rng.IntN(20) == 0 {
			want := c.Stats().Reclaimable
			given, err := c.Trim()
			require.NoError(t, err)
			require.Equal(t, want, given)
			require.Zero(t, c.Stats().Reclaimable)
		}
	}
}

// TestSegmentsAreOfOneInstant: while blocks come and go, the blocks of a copy
// tile their segments, and every block that stays all the time is in it.
func TestSegmentsAreOfOneInstant(t *testing.T) {
	c, _ := newCache(t, sim.Config{Memory: alloc.TiB})
	stay := make(map[alloc.Ptr]bool)
	for range 3000 {
		stay[mustAlloc(t, c, 2000)] = true
	}
	stop := make(chan struct{})
	var wg sync.WaitGroup
	defer wg.Wait()
	defer close(stop)
	for w := range 2 {
		wg.Go(func() {
			rng := rand.New(rand.NewPCG(6, uint64(w)))
			for {
				select {
				case <-stop:
					return
				default:
				}
				p, err := c.Alloc(alloc.Bytes(1 + rng.IntN(100_000)))
				if assert.NoError(t, err) {
					assert.NoError(t, c.Free(p))
				}
			}
		})
	}
	copies := 50
	if testing.Short() {
		copies = 5
	}
	for range copies {
		found, other := 0, 0
		for s := range c.Segments() {
			end := s.Ptr
			for _, b := range s.Blocks {
				require.Equal(t, end, b.Ptr)
				end += alloc.Ptr(b.Size)
				switch {
				case stay[b.Ptr]:
					require.Equal(t, alloc.Allocated, b.State)
					found++
				case b.State == alloc.Allocated:
					other++
				}
			}
			require.Equal(t, s.Ptr+alloc.Ptr(s.Size), end)
		}
		require.Len(t, stay, found)
		require.LessOrEqual(t, other, 2, "each goroutine holds one block at most")
	}
}
