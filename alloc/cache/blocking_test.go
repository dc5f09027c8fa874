package cache_test

import (
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

// blockedCache is a cache over a device that can be stopped inside a call. None of its tests has a clock: a call that waits
// for the device would not return.
type blockedCache struct {
	*cache.Cache
	dev   *hooked
	calls atomic.Int64 // of the device
}

func newBlockedCache(t *testing.T, settings string) *blockedCache {
	cfg, err := cache.ParseConfig(settings)
	require.NoError(t, err)
	b := &blockedCache{dev: &hooked{Device: open(t, sim.Config{Memory: alloc.GiB})}}
	b.dev.before = func() { b.calls.Add(1) }
	b.Cache = cachetest.NewCache(t, b.dev, cfg)
	return b
}

// during calls inside while the device is in a call that work makes, and then lets work end.
func (b *blockedCache) during(t *testing.T, work, inside func()) {
	entered, leave, done := make(chan bool), make(chan bool), make(chan bool)
	var first atomic.Bool
	b.dev.before = func() {
		if b.calls.Add(1); first.CompareAndSwap(false, true) {
			entered <- true
			<-leave
		}
	}
	go func() {
		defer close(done)
		work()
	}()
	<-entered
	before := b.calls.Load()
	inside()
	assert.Equal(t, before, b.calls.Load(), "the device is asked although it is in a call")
	close(leave)
	<-done
}

// TestADeviceThatBlocks holds up only those who need it, whichever call it is in.
func TestADeviceThatBlocks(t *testing.T) {
	for _, settings := range settingsOfCaches {
		t.Run(settings, func(t *testing.T) {
			b := newBlockedCache(t, settings)
			grow := func() {
				_, err := b.Alloc(200 * alloc.MiB)
				assert.NoError(t, err)
			}
			trim := func() {
				_, err := b.Trim()
				assert.NoError(t, err)
			}
			for _, work := range []func(){grow, trim} {
				keep := mustAlloc(t, b.Cache, 30*alloc.MiB) // so that its segment stays
				for range 2 {
					require.NoError(t, b.Free(mustAlloc(t, b.Cache, 60*alloc.MiB))) // which trim gives back
				}
				small := []alloc.Ptr{mustAlloc(t, b.Cache, 1000), mustAlloc(t, b.Cache, 1000)}
				require.NoError(t, b.Free(small[0]))
				b.during(t, work, func() {
					p, err := b.Alloc(900)
					require.NoError(t, err)
					assert.Equal(t, small[0], p)
					require.NoError(t, b.Free(p))
					locked := b.Locked()
					locked.PollAndLock()
					block, p, _, ok := locked.Alloc(800, 0, 7)
					require.True(t, ok)
					_, err = locked.Free(block, p, 7)
					require.NoError(t, err)
					locked.Mutex().Unlock()
					b.Stats()
					for range b.Segments() {
					}
				})
				require.NoError(t, b.Free(small[1]))
				require.NoError(t, b.Free(keep))
				cachetest.Invariants(t, b.Cache)
			}
		})
	}
}

// TestWhoWaitsForTheDriverIsServedByAFree: the request needed the driver when it came, and needs it no more.
func TestWhoWaitsForTheDriverIsServedByAFree(t *testing.T) {
	for _, settings := range settingsOfCaches {
		t.Run(settings, func(t *testing.T) {
			b := newBlockedCache(t, settings)
			const size = 30 * alloc.MiB
			p := mustAlloc(t, b.Cache, size)
			grow := func() {
				_, err := b.Alloc(200 * alloc.MiB)
				assert.NoError(t, err)
			}
			b.during(t, grow, func() {
				served := make(chan alloc.Ptr)
				for range 3 {
					go func() {
						p, err := b.Alloc(size)
						assert.NoError(t, err)
						served <- p
					}()
				}
				for i := range 3 {
					for b.Waiting() < 3-i {
						runtime.Gosched()
					}
					require.NoError(t, b.Free(p))
					require.Equal(t, p, <-served)
				}
			})
			cachetest.Invariants(t, b.Cache)
		})
	}
}

// TestEventsWaitForTheDriver: while the device is in a call, events are neither recorded nor asked, and both is done later.
func TestEventsWaitForTheDriver(t *testing.T) {
	b := newBlockedCache(t, "")
	const size = 3 * alloc.MiB
	p, _, err := b.AllocOn(size, 1)
	require.NoError(t, err)
	require.NoError(t, b.dev.Queue(2, p, size, time.Second))
	require.NoError(t, b.RecordStream(p, 2))
	var needed alloc.Ptr
	b.during(t, func() {
		var err error
		needed, _, err = b.AllocOn(200*alloc.MiB, 1)
		assert.NoError(t, err)
	}, func() {
		require.NoError(t, b.Free(p))
		other, _, err := b.AllocOn(size, 1)
		require.NoError(t, err)
		assert.NotEqual(t, p, other, "work on another stream uses it")
		require.NoError(t, b.Free(other))
	})
	require.NoError(t, b.Free(needed))
	again := func() alloc.Ptr {
		got, _, err := b.AllocOn(size, 1)
		require.NoError(t, err)
		require.NoError(t, b.Free(got))
		return got
	}
	assert.NotEqual(t, p, again(), "its event is recorded now")
	b.dev.Advance(2 * time.Second)
	assert.Equal(t, p, again())
	cachetest.Invariants(t, b.Cache)
}
