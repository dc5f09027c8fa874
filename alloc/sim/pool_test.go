package sim_test

import (
	"io"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/alloctest"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func newDevice(t require.TestingT, cfg sim.Config) *sim.Simulated {
	dev, err := sim.New(cfg)
	require.NoError(t, err)
	return dev.(*sim.Simulated)
}

func TestPool(t *testing.T) {
	alloctest.SharedDevice(t, func(t *testing.T) alloc.Device { return newDevice(t, sim.Config{}).NewPool(0) })
}

func TestPoolKeepsUpToItsThreshold(t *testing.T) {
	dev := newDevice(t, sim.Config{})
	pool := dev.NewPool(6 * alloc.MiB).(*sim.Pool)
	var ptrs []alloc.Ptr
	for range 2 {
		p, err := pool.Alloc(5 * alloc.MiB)
		require.NoError(t, err)
		ptrs = append(ptrs, p)
	}
	want := sim.PoolStats{Used: 10 * alloc.MiB, UsedHigh: 10 * alloc.MiB, Reserved: 12 * alloc.MiB, ReservedHigh: 12 * alloc.MiB}
	stats, err := pool.Stats()
	require.NoError(t, err)
	require.Equal(t, want, stats)
	require.ErrorIs(t, dev.Free(ptrs[0]), alloc.ErrDoubleFree, "it is the pool's")
	for _, p := range ptrs {
		require.NoError(t, pool.Free(p))
		require.ErrorIs(t, pool.Free(p), alloc.ErrUnknownPtr)
	}
	require.NoError(t, dev.Synchronize())
	reserved, err := pool.Reserved()
	require.NoError(t, err)
	require.Equal(t, 6*alloc.MiB, reserved)
	require.NoError(t, pool.Trim(0))
	count, _ := dev.Live()
	require.Zero(t, count)
}

func TestPoolWaitsForOtherStreams(t *testing.T) {
	dev := newDevice(t, sim.Config{CheckReuse: true})
	pool := dev.NewPool(alloc.GiB).(*sim.Pool)
	p, n, err := pool.AllocOn(alloc.MiB, 1)
	require.NoError(t, err)
	require.NoError(t, dev.Queue(2, p, n, time.Second))
	require.ErrorIs(t, pool.RecordStream(p+1, 2), alloc.ErrUnknownPtr)
	require.NoError(t, pool.RecordStream(p, 2))
	require.NoError(t, pool.Free(p))
	again, _, err := pool.AllocOn(n, 3)
	require.NoError(t, err)
	require.NotEqual(t, p, again)
	require.NoError(t, dev.Err())
	dev.Advance(time.Second)
	late, _, err := pool.AllocOn(n, 3)
	require.NoError(t, err)
	require.Equal(t, p, late)
	require.NoError(t, dev.Err())

	require.NoError(t, dev.Queue(2, p, n, time.Second))
	require.NoError(t, pool.Free(p), "without RecordStream")
	_, _, err = pool.AllocOn(n, 3)
	require.NoError(t, err)
	var reuse *sim.ReuseError
	require.ErrorAs(t, dev.Err(), &reuse)
}

func TestPinned(t *testing.T) {
	dev := newDevice(t, sim.Config{})
	before, err := dev.MemInfo()
	require.NoError(t, err)
	pinned := dev.Pinned(alloc.MiB).(*sim.Pinned)
	p, err := pinned.Alloc(alloc.MiB)
	require.NoError(t, err)
	after, err := dev.MemInfo()
	require.NoError(t, err)
	require.Equal(t, before, after, "it takes none of the device's")
	_, err = pinned.Alloc(1)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	require.ErrorContains(t, err, "pinned host memory of Simulated GPU 0")
	require.NoError(t, pinned.Free(p))
	require.ErrorIs(t, pinned.Free(p), alloc.ErrUnknownPtr)
	_, err = pinned.Alloc(-1)
	require.ErrorIs(t, err, alloc.ErrSize)
	_, err = pinned.MemInfo()
	require.Error(t, err)
}

// TestRandomProgramsOfEachKind has calls fail at random under a tracker over each allocator. After
// each step the ledger is what the allocator has live.
func TestRandomProgramsOfEachKind(t *testing.T) {
	for name, open := range map[string]func(*sim.Simulated) (alloc.Device, func() alloc.Bytes){
		"pool": func(dev *sim.Simulated) (alloc.Device, func() alloc.Bytes) {
			pool := dev.NewPool(32 * alloc.MiB).(*sim.Pool)
			return pool, func() alloc.Bytes {
				stats, err := pool.Stats()
				require.NoError(t, err)
				count, pages := dev.Live()
				require.Equal(t, stats.Reserved, pages, "%d blocks", count)
				return stats.Used
			}
		},
		"pinned": func(dev *sim.Simulated) (alloc.Device, func() alloc.Bytes) {
			pinned := dev.Pinned(256 * alloc.MiB).(*sim.Pinned)
			return pinned, func() alloc.Bytes { _, n := pinned.Live(); return n }
		},
	} {
		t.Run(name, func(t *testing.T) {
			rapid.Check(t, func(r *rapid.T) {
				dev := newDevice(r, sim.Config{Memory: alloc.GiB, CheckReuse: true})
				from, used := open(dev)
				tr, err := tracker.New(tracker.Config{Device: from, NoCache: true, Report: io.Discard})
				require.NoError(r, err)
				var live []*tracker.Buffer
				pick := func(r *rapid.T) int {
					if len(live) == 0 {
						r.Skip("nothing is live")
					}
					return rapid.IntRange(0, len(live)-1).Draw(r, "index")
				}
				on := func(r *rapid.T) alloc.Stream { return alloc.Stream(rapid.IntRange(0, 2).Draw(r, "stream")) }
				r.Repeat(map[string]func(*rapid.T){
					"break": func(r *rapid.T) {
						dev.Inject()
						op := rapid.SampledFrom([]string{"PoolAlloc", "PoolFree", "PinnedAlloc", "PinnedFree", "MemInfo"}).Draw(r, "call")
						dev.Inject(sim.Fault{Call: op, Nth: rapid.IntRange(1, 3).Draw(r, "nth"), Err: rapid.SampledFrom([]error{nil, alloc.ErrOutOfMemory}).Draw(r, "error")})
					},
					"alloc": func(r *rapid.T) {
						n := rapid.SampledFrom([]int{0, 1, 1 << 20, 5 << 20, 300 << 20}).Draw(r, "bytes")
						if b, err := tr.AllocOn(on(r), alloc.Shape{n}, alloc.Uint8, tracker.Activation); err == nil {
							assert.Equal(r, capability.MemoryOf(from), b.Allocation().Memory)
							live = append(live, b)
						}
					},
					"free": func(r *rapid.T) {
						if i := pick(r); live[i].Free() == nil {
							live = slices.Delete(live, i, i+1)
						}
					},
					"work": func(r *rapid.T) {
						b, s := live[pick(r)], on(r)
						if from.(interface{ Memory() alloc.Memory }).Memory().OnHost() {
							return
						}
						require.NoError(r, dev.Queue(s, b.Ptr(), b.Bytes(), time.Second))
						require.NoError(r, b.RecordStream(s))
					},
					"advance": func(r *rapid.T) { dev.Advance(time.Duration(rapid.IntRange(0, 3).Draw(r, "seconds")) * time.Second) },
					"wait":    func(r *rapid.T) { require.NoError(r, dev.Synchronize()) },
					"": func(r *rapid.T) {
						s := tr.Snapshot()
						trackertest.RequireExact(r, s)
						var sum alloc.Bytes
						for _, b := range live {
							sum += b.Bytes()
						}
						require.Equal(r, sum, s.Live.Bytes+s.Host().Bytes)
						require.Equal(r, sum, used())
						require.NoError(r, dev.Err(), "no reuse before its time")
					},
				})
			})
		})
	}
}
