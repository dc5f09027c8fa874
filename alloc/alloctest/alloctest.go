// Package alloctest tests that a program's own alloc.Device keeps the contract of that interface:
//
//	func TestDevice(t *testing.T) {
//		alloctest.Device(t, func(t *testing.T) alloc.Device { return openMine(t) })
//	}
//
// A device that passes can be given to cache.New and tracker.Config. The tests call nothing but the
// device's methods. They never look at how it works, and ask nothing that the contract leaves open.
package alloctest

import (
	"math"
	"math/rand/v2"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
)

// Device tests a device:
//
//   - Allocations do not overlap, and each can be freed once.
//   - An allocation that is impossible returns the error that alloc.Device names. It changes
//     nothing, and neither does a Free that fails.
//   - Freed memory can be allocated again.
//   - All of this holds for several goroutines at once.
//
// It also tests those of the optional methods, listed at alloc.Device, that the device has.
//
// open opens a device with at least 64 MiB free, and has the test close it (t.Cleanup). Each subtest calls it
// once, and Device once before them, to see what the device can do. Nobody else may use the device's memory meanwhile: see SharedDevice.
func Device(t *testing.T, open func(t *testing.T) alloc.Device) {
	test(t, func(t *testing.T) subject { return subject{Device: open(t)} })
}

// SharedDevice tests a device as Device does, but others may use its memory too, or its driver may
// keep some for itself, so that the free memory may change at any time. Where Device would fail
// because of such a change, SharedDevice logs it.
func SharedDevice(t *testing.T, open func(t *testing.T) alloc.Device) {
	test(t, func(t *testing.T) subject { return subject{Device: open(t), shared: true} })
}

func test(t *testing.T, open func(t *testing.T) subject) {
	able := open(t)
	for _, test := range []struct {
		name string
		run  func(t *testing.T, dev subject)
		can  bool
	}{
		{"Identity", testIdentity, true},
		{"AllocFree", testAllocFree, true},
		{"Distinct", testDistinct, true},
		{"Zero", testZero, true},
		{"Negative", testNegative, true},
		{"DoubleFree", testDoubleFree, true},
		{"UnknownPtr", testUnknownPtr, true},
		{"OutOfMemory", testOutOfMemory, true},
		{"Reuse", testReuse, true},
		{"Concurrent", testConcurrent, true},
		{"Sized", testSized, has[alloc.StreamAllocator](able)},
		{"Synchronize", testSynchronize, has[capability.Synchronizer](able)},
		{"Events", testEvents, has[capability.EventDevice](able)},
		{"Copy", testCopy, copies(able)},
		{"Interval", testInterval, has[capability.Timer](able)},
		{"Virtual", testVirtual, maps(able)},
	} {
		if test.can {
			t.Run(test.name, func(t *testing.T) { test.run(t, open(t)) })
		}
	}
}

func testIdentity(t *testing.T, dev subject) {
	assert.NotEmpty(t, dev.Name())
	assert.GreaterOrEqual(t, dev.Ordinal(), 0)
	info := memInfo(t, dev)
	assert.Positive(t, info.Total)
	assert.GreaterOrEqual(t, info.Free, alloc.Bytes(0))
	assert.LessOrEqual(t, info.Free, info.Total)
}

func testAllocFree(t *testing.T, dev subject) {
	before := memInfo(t, dev)
	p := mustAlloc(t, dev, 32*alloc.MiB)
	assert.NotZero(t, p)
	if took := before.Free - memInfo(t, dev).Free; !dev.shared {
		assert.GreaterOrEqual(t, took, 32*alloc.MiB)
	}
	assert.NoError(t, dev.Free(p))
	assert.Equal(t, before.Total, memInfo(t, dev).Total)
}

// testDistinct checks that no two live allocations overlap.
func testDistinct(t *testing.T, dev subject) {
	var live []span
	for range 4 {
		for _, n := range []alloc.Bytes{0, 1, 511, 512, 513, 4 * alloc.KiB, alloc.MiB, alloc.MiB + 1, 3 * alloc.MiB} {
			live = append(live, span{mustAlloc(t, dev, n), n})
		}
	}
	requireDisjoint(t, live)
	for _, s := range live {
		assert.NoError(t, dev.Free(s.ptr))
	}
}

func testZero(t *testing.T, dev subject) {
	p, q := mustAlloc(t, dev, 0), mustAlloc(t, dev, 0)
	assert.NotZero(t, p)
	assert.NotEqual(t, p, q, "each has an address of its own")
	assert.NoError(t, dev.Free(p))
	assert.NoError(t, dev.Free(q))
}

func testNegative(t *testing.T, dev subject) {
	before := memInfo(t, dev)
	_, err := dev.Alloc(-1)
	require.ErrorIs(t, err, alloc.ErrSize)
	assertUnchanged(t, dev, before)
}

func testDoubleFree(t *testing.T, dev subject) {
	p, other := mustAlloc(t, dev, alloc.MiB), mustAlloc(t, dev, alloc.MiB)
	require.NoError(t, dev.Free(p))
	before := memInfo(t, dev)
	requireNotLive(t, dev.Free(p))
	assertUnchanged(t, dev, before)
	assert.NoError(t, dev.Free(other), "other allocations are untouched")
}

func testUnknownPtr(t *testing.T, dev subject) {
	p := mustAlloc(t, dev, alloc.MiB)
	before := memInfo(t, dev)
	for name, foreign := range map[string]alloc.Ptr{"zero": 0, "small": 1, "large": 1<<64 - 1, "inside": p + 512} {
		assert.ErrorIs(t, dev.Free(foreign), alloc.ErrUnknownPtr, name)
	}
	assertUnchanged(t, dev, before)
	assert.NoError(t, dev.Free(p))
}

func testOutOfMemory(t *testing.T, dev subject) {
	p := mustAlloc(t, dev, alloc.MiB)
	before := memInfo(t, dev)
	for _, n := range []alloc.Bytes{before.Total + 1, math.MaxInt64} {
		_, err := dev.Alloc(n)
		require.ErrorIs(t, err, alloc.ErrOutOfMemory)
		var oom *alloc.OutOfMemoryError
		require.ErrorAs(t, err, &oom)
		assert.Equal(t, n, oom.Requested)
		assert.Contains(t, oom.Device, dev.Name())
		assertUnchanged(t, dev, before)
	}
	require.NoError(t, dev.Free(p))
	require.NoError(t, dev.Free(mustAlloc(t, dev, alloc.MiB)), "it goes on")
}

// testReuse takes far more than the device has, piece after piece.
func testReuse(t *testing.T, dev subject) {
	info := memInfo(t, dev)
	piece := info.Free / 4
	for i := range 16 {
		p, err := dev.Alloc(piece)
		require.NoError(t, err, "after %d times %v of %v", i, piece, info.Total)
		require.NoError(t, dev.Free(p))
	}
}

// testConcurrent has goroutines allocate and free at random; what is live then
// must be disjoint, each free good for exactly one, and nothing may remain.
func testConcurrent(t *testing.T, dev subject) {
	const workers, steps = 8, 200
	before := memInfo(t, dev)
	left := make([][]span, workers)
	var group sync.WaitGroup
	for w := range workers {
		group.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 0))
			for range steps {
				if n := len(left[w]); n > 0 && random.IntN(2) == 0 {
					assert.NoError(t, dev.Free(left[w][n-1].ptr))
					left[w] = left[w][:n-1]
					continue
				}
				size := alloc.Bytes(random.IntN(int(64 * alloc.KiB)))
				if p, err := dev.Alloc(size); assert.NoError(t, err) {
					left[w] = append(left[w], span{p, size})
				}
			}
		})
	}
	group.Wait()
	var live []span
	for _, own := range left {
		live = append(live, own...)
	}
	requireDisjoint(t, live)

	// Every worker frees every address: exactly one of the frees must succeed.
	freed := make([]int, workers)
	for w := range workers {
		group.Go(func() {
			for _, s := range live {
				if dev.Free(s.ptr) == nil {
					freed[w]++
				}
			}
		})
	}
	group.Wait()
	total := 0
	for _, n := range freed {
		total += n
	}
	assert.Equal(t, len(live), total)
	if cache, ok := dev.Device.(interface{ Trim() (alloc.Bytes, error) }); ok {
		_, err := cache.Trim()
		require.NoError(t, err)
	}
	assertUnchanged(t, dev, before)
}
