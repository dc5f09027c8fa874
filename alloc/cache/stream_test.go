package cache_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/counting"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

func allocOn(t require.TestingT, c *cache.Cache, n alloc.Bytes, s alloc.Stream) alloc.Ptr {
	p, _, err := c.AllocOn(n, s)
	require.NoError(t, err)
	return p
}

// block returns the state of the block at an address, and its segment.
func block(t *testing.T, c *cache.Cache, p alloc.Ptr) (alloc.Block, alloc.Segment) {
	for s := range c.Segments() {
		for _, b := range s.Blocks {
			if b.Ptr == p {
				return b, s
			}
		}
	}
	require.Fail(t, "no block", "at %v", p)
	return alloc.Block{}, alloc.Segment{}
}

func TestBlocksStayOnTheirStream(t *testing.T) {
	for _, settings := range []string{"", "expandable_segments:True"} {
		cfg, err := cache.ParseConfig(settings)
		require.NoError(t, err)
		var events []cachelock.Event
		c := cachetest.NewCache(t, open(t, sim.Config{}), cfg)
		c.Locked().Notify(func(e cachelock.Event) { events = append(events, e) }, nil)
		p, q := allocOn(t, c, 512, 7), allocOn(t, c, 3*alloc.MiB, 7)
		require.NoError(t, c.Free(p))
		require.NoError(t, c.Free(q))
		for _, s := range []alloc.Stream{0, 8} {
			assert.NotEqual(t, p, allocOn(t, c, 512, s))
			assert.NotEqual(t, q, allocOn(t, c, 3*alloc.MiB, s))
		}
		assert.Equal(t, p, allocOn(t, c, 512, 7))
		assert.Equal(t, q, allocOn(t, c, 3*alloc.MiB, 7))
		_, segment := block(t, c, p)
		assert.Equal(t, alloc.Stream(7), segment.Stream)
		assert.Equal(t, alloc.Stream(7), events[0].Stream)
		cachetest.Invariants(t, c)
	}
}

// TestStreamsComeAndGo uses a stream after the other, as a program does that makes them.
func TestStreamsComeAndGo(t *testing.T) {
	c, dev := newCache(t, sim.Config{})
	for s := range alloc.Stream(1000) {
		p := allocOn(t, c, 512, s)
		_, segment := block(t, c, p)
		require.Equal(t, s, segment.Stream)
		require.NoError(t, c.Free(p))
		if s%3 == 0 {
			dev.Inject(sim.Fault{Call: "Free"})
			_, err := c.Trim()
			require.Error(t, err)
			_, segment = block(t, c, p)
			require.Equal(t, s, segment.Stream, "it stays what it was")
		}
		_, err := c.Trim()
		require.NoError(t, err)
	}
}

// used returns a cache with a block of stream 1 that work on stream 2 uses for a second.
func used(t *testing.T, cfg sim.Config) (*cache.Cache, cachetest.Device, alloc.Ptr) {
	cfg.CheckReuse = true
	c, dev := newCache(t, cfg)
	p := allocOn(t, c, 3*alloc.MiB, 1)
	require.NoError(t, dev.Queue(2, p, 3*alloc.MiB, time.Second))
	require.NoError(t, c.RecordStream(p, 2))
	return c, dev, p
}

func TestRecordStream(t *testing.T) {
	c, dev, p := used(t, sim.Config{})
	require.NoError(t, c.RecordStream(p, 1), "its own")
	require.NoError(t, c.RecordStream(p, 2), "again")
	require.NoError(t, c.Free(p))
	b, _ := block(t, c, p)
	assert.Equal(t, alloc.Block{Ptr: p, Size: 3 * alloc.MiB, Requested: 3 * alloc.MiB, State: alloc.Pending}, b)
	stats := c.Stats()
	assert.Zero(t, stats.Allocated.Bytes.Current)
	assert.Zero(t, stats.Requested.Bytes.Current)
	assert.Equal(t, 3*alloc.MiB, stats.Pending.Bytes.Current)
	cachetest.Invariants(t, c)
	assert.ErrorIs(t, c.Free(p), alloc.ErrDoubleFree)
	assert.ErrorIs(t, c.RecordStream(p, 3), alloc.ErrDoubleFree)
	assert.ErrorIs(t, c.RecordStream(1, 3), alloc.ErrUnknownPtr)

	// Work that is queued after Free does not count.
	require.NoError(t, dev.Queue(2, 0, 0, time.Hour))
	dev.Advance(time.Second - 1)
	q := allocOn(t, c, 3*alloc.MiB, 1)
	assert.NotEqual(t, p, q)
	dev.Advance(1)
	assert.Equal(t, p, allocOn(t, c, 3*alloc.MiB, 1))
	assert.Zero(t, c.Stats().Pending.Bytes.Current)
	assert.Equal(t, 3*alloc.MiB, c.Stats().Pending.Bytes.Peak)
	c.ResetPeak()
	assert.Zero(t, c.Stats().Pending.Bytes.Peak)

	// The next owner of the block has nothing to do with its streams.
	require.NoError(t, c.Free(p))
	assert.Equal(t, p, allocOn(t, c, 3*alloc.MiB, 1))
	assert.NoError(t, dev.Err())
}

func TestPendingUntilTheLastStreamIsDone(t *testing.T) {
	c, dev, p := used(t, sim.Config{})
	require.NoError(t, dev.Queue(3, p, 512, 2*time.Second))
	require.NoError(t, c.RecordStream(p, 3))
	require.NoError(t, c.Free(p))
	for _, done := range []bool{false, false, true} {
		c.Locked().Poll()
		assert.Equal(t, done, c.Stats().Pending.Count.Current == 0)
		dev.Advance(time.Second)
	}
}

func TestOutOfMemoryWaitsForPending(t *testing.T) {
	for _, n := range []alloc.Bytes{3 * alloc.MiB, 12 * alloc.MiB} { // a part of the segment, and all of it
		c, dev := newCache(t, sim.Config{Memory: 30 * alloc.MiB, Overhead: -1})
		p, q := allocOn(t, c, 5*alloc.MiB, 1), allocOn(t, c, 3*alloc.MiB, 1)
		rest := allocOn(t, c, 10*alloc.MiB, 1)
		require.NoError(t, dev.Queue(2, 0, 0, time.Second))
		for _, p := range []alloc.Ptr{p, q, rest} {
			require.NoError(t, c.RecordStream(p, 2))
		}
		free := []alloc.Ptr{p}
		if n > 3*alloc.MiB {
			free = []alloc.Ptr{p, q, rest}
		}
		for _, p := range free {
			require.NoError(t, c.Free(p))
		}
		_, _, err := c.AllocOn(13*alloc.MiB, 1)
		if n == 3*alloc.MiB {
			require.ErrorIs(t, err, alloc.ErrOutOfMemory)
			assert.Equal(t, p, allocOn(t, c, 5*alloc.MiB, 1))
		} else {
			require.NoError(t, err)
		}
		assert.Equal(t, time.Second, dev.Advance(0), "it waited")
		assert.Equal(t, int64(1), c.Stats().Retries)
		assert.Zero(t, c.Stats().Pending.Bytes.Current)
		cachetest.Invariants(t, c)
	}
}

// TestPendingServesWhenNothingIsGivenBack has a pending block in a segment that is in use: the
// driver is out of memory before and after, and the block is what there is.
func TestPendingServesWhenNothingIsGivenBack(t *testing.T) {
	c, dev := newCache(t, sim.Config{Memory: 20 * alloc.MiB, Overhead: -1})
	p := allocOn(t, c, 8*alloc.MiB, 1)
	allocOn(t, c, 8*alloc.MiB, 1)
	require.NoError(t, dev.Queue(2, p, 512, time.Second))
	require.NoError(t, c.RecordStream(p, 2))
	require.NoError(t, c.Free(p))
	assert.Equal(t, p, allocOn(t, c, 6*alloc.MiB, 1))
	assert.Equal(t, time.Second, dev.Advance(0))
	assert.Zero(t, c.Stats().OOMs)
}

// TestPendingBlocksAreNotReused has addresses without memory before a pending block: the two cannot serve
// a request, which goes behind the block.
func TestPendingBlocksAreNotReused(t *testing.T) {
	dev := open(t, sim.Config{Memory: 200 * alloc.MiB, Overhead: -1})
	c := cachetest.NewCache(t, dev, cache.Config{ExpandableSegments: true})
	p, q := allocOn(t, c, 20*alloc.MiB, 1), allocOn(t, c, 20*alloc.MiB, 1)
	require.NoError(t, c.Free(p))
	_, err := c.Trim()
	require.NoError(t, err)
	require.NoError(t, dev.Queue(2, q, 512, time.Second))
	require.NoError(t, c.RecordStream(q, 2))
	require.NoError(t, c.Free(q))
	assert.Equal(t, q+alloc.Ptr(20*alloc.MiB), allocOn(t, c, 40*alloc.MiB, 1))
	_, mapped := dev.Live()
	assert.Equal(t, 60*alloc.MiB, mapped, "nothing was mapped before the block")
	cachetest.Invariants(t, c)
}

func TestTrimAndCloseWaitForPending(t *testing.T) {
	c, dev, p := used(t, sim.Config{})
	require.NoError(t, c.Free(p))
	given, err := c.Trim()
	require.NoError(t, err)
	assert.Equal(t, 20*alloc.MiB, given)
	assert.Equal(t, time.Second, dev.Advance(0))

	c, dev, p = used(t, sim.Config{})
	require.NoError(t, c.Free(p))
	require.NoError(t, c.Close())
	assert.Equal(t, time.Second, dev.Advance(0))
	assert.Zero(t, c.Stats().Reserved.Bytes.Current)
	assert.ErrorIs(t, c.RecordStream(p, 2), alloc.ErrClosed)
	c.Locked().Poll()
}

// TestEventsThatFail has blocks stay pending while the driver does not tell of their streams.
func TestEventsThatFail(t *testing.T) {
	c, dev, p := used(t, sim.Config{})
	dev.Inject(sim.Fault{Call: "Event", Times: -1})
	require.NoError(t, c.Free(p), "the block is free, whatever the event")
	dev.Advance(time.Hour)
	assert.NotEqual(t, p, allocOn(t, c, 3*alloc.MiB, 1), "no event has shown that the work is done")
	given, err := c.Trim()
	assert.ErrorIs(t, err, sim.ErrInjected)
	assert.Zero(t, given)
	cachetest.Invariants(t, c)

	dev.Inject()
	c.Locked().Poll()
	assert.Zero(t, c.Stats().Pending.Bytes.Current)

	c, dev, p = used(t, sim.Config{})
	require.NoError(t, c.Free(p))
	dev.Inject(sim.Fault{Call: "Event"})
	dev.Advance(time.Hour)
	c.Locked().Poll()
	assert.NotZero(t, c.Stats().Pending.Bytes.Current)
	c.Locked().Poll()
	assert.Zero(t, c.Stats().Pending.Bytes.Current)
}

// TestPendingUntilEveryEventIsRecorded: of two streams that use a block, one has no event, as the driver refused it. The
// event of the other says nothing about it.
func TestPendingUntilEveryEventIsRecorded(t *testing.T) {
	c, dev, p := used(t, sim.Config{})
	require.NoError(t, dev.Queue(3, p, 512, time.Second))
	require.NoError(t, c.RecordStream(p, 3))
	dev.Inject(sim.Fault{Call: "Event", Nth: 2, Times: 2}) // both times for stream 3
	require.NoError(t, c.Free(p))
	dev.Advance(time.Second)
	c.Locked().Poll()
	assert.EqualValues(t, 1, c.Stats().Pending.Count.Current)
	c.Locked().Poll()
	assert.Zero(t, c.Stats().Pending.Count.Current)
	cachetest.Invariants(t, c)
}

func TestDeviceWithoutEvents(t *testing.T) {
	c := cachetest.NewCache(t, counting.New(0), cache.Config{})
	p := allocOn(t, c, 512, 1)
	require.NoError(t, c.RecordStream(p, 1))
	err := c.RecordStream(p, 2)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	assert.ErrorContains(t, err, "wait for the stream before Free")
	require.NoError(t, c.Free(p))
	assert.Equal(t, p, allocOn(t, c, 512, 1), "at once")
}

// TestLockedPending frees and allocates for a ledger, which cannot ask the driver.
func TestLockedPending(t *testing.T) {
	c, dev := newCache(t, sim.Config{})
	var p alloc.Ptr
	var block cachelock.Block
	enter := func(b cachelock.Block, at alloc.Ptr, _ alloc.Bytes) (cachelock.Owner, error) {
		block, p = b, at
		return 5, nil
	}
	locked := func(do func(l cachelock.Cache)) {
		c.Locked().Mutex().Lock()
		defer c.Locked().Mutex().Unlock()
		do(c.Locked())
	}
	pending := func() int64 { return c.Stats().Pending.Count.Current }
	require.NoError(t, c.Locked().AllocSlow(512, 1, enter))
	first := p
	require.NoError(t, c.RecordStream(p, 1), "by its address too")
	require.NoError(t, dev.Queue(2, p, 512, time.Second))
	var reusable []cachelock.Event
	locked(func(l cachelock.Cache) {
		l.Notify(nil, func(p alloc.Ptr, n alloc.Bytes, s alloc.Stream) {
			reusable = append(reusable, cachelock.Event{Ptr: p, Size: n, Stream: s})
		})
		require.NoError(t, l.RecordStream(block, 2))
		assert.Zero(t, l.Stats().Pending.Count.Current)
		needsPoll, err := l.Free(block, p, 5)
		require.NoError(t, err)
		assert.EqualValues(t, 1, l.Stats().Pending.Count.Current)
		assert.True(t, needsPoll, "the driver cannot be asked yet")
	})
	c.Locked().Poll()
	require.NoError(t, dev.Queue(2, 0, 0, time.Hour))
	dev.Advance(time.Second)
	assert.Empty(t, reusable)
	c.Locked().Poll()
	assert.Zero(t, pending())
	assert.Equal(t, []cachelock.Event{{Ptr: p, Size: 512, Stream: 1}}, reusable)
	require.NoError(t, c.Locked().AllocSlow(512, 1, enter))
	assert.Equal(t, first, p)
	locked(func(l cachelock.Cache) {
		assert.Equal(t, cachelock.Owner(5), l.Owner(p))
		_, _, _, ok := l.Alloc(512, 1, 6)
		assert.True(t, ok)
	})
}

// TestStreamPrograms runs random programs that use streams as they should, against a model that
// knows which work uses which memory: nothing is handed out before its time, and at last everything is.
func TestStreamPrograms(t *testing.T) {
	for _, settings := range []string{"", "expandable_segments:True", "max_split_size_mb:20",
		"garbage_collection_threshold:0.5,per_process_memory_fraction:0.7"} {
		t.Run(settings, func(t *testing.T) { testStreamPrograms(t, settings) })
	}
}

func testStreamPrograms(t *testing.T, settings string) {
	cfg, err := cache.ParseConfig(settings)
	require.NoError(t, err)
	rapid.Check(t, func(t *rapid.T) {
		dev, err := cachetest.NewDevice(sim.Config{Memory: 96 * alloc.MiB, Overhead: -1, CheckReuse: true})
		require.NoError(t, err)
		c, uses := cachetest.NewCache(t, dev, cfg), cachetest.NewUses(cachetest.Simulated{Device: dev})
		type own struct {
			ptr    alloc.Ptr
			size   alloc.Bytes
			stream alloc.Stream
		}
		var live []own
		streams := rapid.SampledFrom([]alloc.Stream{0, 1, 2, 0x7f0000001000})
		pick := func(t *rapid.T) int {
			if len(live) == 0 {
				t.Skip("nothing is live")
			}
			return rapid.IntRange(0, len(live)-1).Draw(t, "block")
		}
		allocate := func(t *rapid.T) {
			on := streams.Draw(t, "stream")
			size := alloc.Bytes(rapid.OneOf(rapid.IntRange(1, 2000), rapid.IntRange(1, 30<<20)).Draw(t, "size"))
			p, allocated, err := c.AllocOn(size, on)
			if err != nil {
				require.ErrorIs(t, err, alloc.ErrOutOfMemory)
				return
			}
			uses.HandedOut(t, on, p, allocated)
			live = append(live, own{p, size, on})
		}
		work := func(t *rapid.T) {
			b, on := live[pick(t)], streams.Draw(t, "stream")
			uses.Queue(t, on, b.ptr, b.size, time.Duration(rapid.IntRange(0, 50).Draw(t, "takes")))
			require.NoError(t, c.RecordStream(b.ptr, on))
		}
		free := func(t *rapid.T) {
			i := pick(t)
			require.NoError(t, c.Free(live[i].ptr))
			live = slices.Delete(live, i, i+1)
		}
		t.Repeat(map[string]func(*rapid.T){
			"alloc": allocate, "alloc again": allocate, "work": work, "work again": work, "free": free, "free again": free,
			"time passes": func(t *rapid.T) { dev.Advance(time.Duration(rapid.IntRange(0, 60).Draw(t, "by"))) },
			"empty": func(t *rapid.T) {
				_, err := c.Trim()
				require.NoError(t, err)
				require.Zero(t, c.Stats().Pending.Bytes.Current)
			},
			"": func(t *rapid.T) {
				cachetest.Invariants(t, c)
				require.NoError(t, dev.Err())
			},
		})
		for _, b := range live {
			require.NoError(t, c.Free(b.ptr))
		}
		dev.Advance(max(0, uses.Last()-dev.Advance(0)))
		c.Locked().Poll()
		require.Zero(t, c.Stats().Pending.Bytes.Current, "no block is kept for work that is done")
		require.Equal(t, c.Stats().Reserved.Bytes.Current, c.Stats().Inactive.Bytes.Current)
		_, err = c.Trim()
		require.NoError(t, err)
		require.Zero(t, c.Stats().Reserved.Bytes.Current)
	})
}

// TestStreamsConcurrently has goroutines share a cache, each with a stream, and the blocks of
// the others.
func TestStreamsConcurrently(t *testing.T) {
	c, dev := newCache(t, sim.Config{Memory: 96 * alloc.MiB, Overhead: -1, CheckReuse: true})
	var group sync.WaitGroup
	for on := range alloc.Stream(4) {
		group.Go(func() {
			random := rand.New(rand.NewPCG(uint64(on), 9))
			for range 400 {
				p, n, err := c.AllocOn(alloc.Bytes(random.IntN(3<<20)), on)
				if !assert.NoError(t, err) {
					return
				}
				other := alloc.Stream(random.IntN(4))
				assert.NoError(t, dev.Queue(other, p, n, time.Duration(random.IntN(20))))
				assert.NoError(t, c.RecordStream(p, other))
				dev.Advance(time.Duration(random.IntN(10)))
				assert.NoError(t, c.Free(p))
				if random.IntN(50) == 0 {
					_, err := c.Trim()
					assert.NoError(t, err)
				}
			}
		})
	}
	group.Wait()
	require.NoError(t, dev.Err())
	_, err := c.Trim()
	require.NoError(t, err)
	assert.Zero(t, c.Stats().Reserved.Bytes.Current)
	cachetest.Invariants(t, c)
}

func ExampleCache_RecordStream() {
	dev, _ := cachetest.NewDevice(sim.Config{})
	c, _ := cache.New(dev, cache.Config{})
	const compute, transfer alloc.Stream = 1, 2

	p, _, _ := c.AllocOn(alloc.MiB, compute)
	_ = dev.Queue(transfer, p, alloc.MiB, time.Millisecond)
	_ = c.RecordStream(p, transfer)
	_ = c.Free(p)
	fmt.Println("pending:", c.Stats().Pending.Bytes.Current)

	dev.Advance(time.Millisecond)
	c.Locked().Poll()
	fmt.Println("pending:", c.Stats().Pending.Bytes.Current)
	// Output:
	// pending: 1.0 MiB
	// pending: 0 B
}
