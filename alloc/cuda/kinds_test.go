//go:build linux

package cuda_test

import (
	"errors"
	"fmt"
	"io"
	"math"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/alloctest"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/internal/capability"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func newPool(t *testing.T, dev *cuda.Opened, cfg cuda.PoolConfig) cuda.Pool {
	t.Helper()
	pool, err := dev.NewPool(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, pool.Close()) })
	return pool
}

func TestPool(t *testing.T) {
	alloctest.SharedDevice(t, func(t *testing.T) alloc.Device { return newPool(t, open(t), cuda.PoolConfig{}) })
}

// TestPoolLevels: what is freed stays reserved, is used again on its stream, and goes back by
// Trim, or when the program waits and it is beyond the threshold.
func TestPoolLevels(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev := open(t)
	pool := newPool(t, dev, cuda.PoolConfig{ReleaseThreshold: 64 * alloc.MiB})
	type levels struct{ used, reserved alloc.Bytes }
	stats := func() levels {
		used, reserved, err := pool.Stats()
		require.NoError(t, err)
		return levels{used, reserved}
	}
	require.Zero(t, stats())
	p, err := pool.Alloc(5 * alloc.MiB)
	require.NoError(t, err)
	require.Equal(t, levels{5 * alloc.MiB, 6 * alloc.MiB}, stats())
	require.NoError(t, pool.Free(p))
	require.ErrorIs(t, pool.Free(p), alloc.ErrUnknownPtr)
	again, err := pool.Alloc(4 * alloc.MiB)
	require.NoError(t, err)
	require.Equal(t, p, again, "it is used again")
	require.NoError(t, pool.Free(again))

	require.NoError(t, dev.Synchronize())
	require.Equal(t, levels{0, 6 * alloc.MiB}, stats(), "below the threshold it stays")
	reserved, err := pool.(capability.ReservingDevice).Reserved()
	require.NoError(t, err)
	require.Equal(t, 6*alloc.MiB, reserved)
	require.NoError(t, pool.SetReleaseThreshold(0))
	require.NoError(t, dev.Synchronize())
	require.Zero(t, stats().reserved)

	require.NoError(t, pool.SetReleaseThreshold(math.MaxInt64))
	for range 2 {
		p, err := pool.Alloc(alloc.MiB)
		require.NoError(t, err)
		defer func() { require.ErrorIs(t, pool.Free(p), alloc.ErrUnknownPtr) }()
		require.NoError(t, pool.Free(p))
	}
	require.Equal(t, 2*alloc.MiB, stats().reserved)
	require.NoError(t, pool.Trim(0))
	require.Zero(t, stats().reserved)
	_, err = dev.NewPool(cuda.PoolConfig{MaxSize: -1})
	require.ErrorContains(t, err, "want 0 or more")
	small := newPool(t, dev, cuda.PoolConfig{MaxSize: 4 * alloc.MiB})
	_, err = small.Alloc(5 * alloc.MiB)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	require.NotEqual(t, fmt.Sprint(small), "")
}

func TestClosedPool(t *testing.T) {
	pool, err := open(t).NewPool(cuda.PoolConfig{})
	require.NoError(t, err)
	require.NoError(t, pool.Close())
	_, err = pool.Alloc(1)
	require.ErrorIs(t, err, alloc.ErrClosed)
	_, _, err = pool.Stats()
	require.ErrorIs(t, err, alloc.ErrClosed)
	require.ErrorIs(t, pool.Trim(0), alloc.ErrClosed)
	require.ErrorIs(t, pool.Close(), alloc.ErrClosed)
}

func TestDefaultPool(t *testing.T) {
	dev := open(t)
	pool, err := dev.DefaultPool()
	require.NoError(t, err)
	p, err := pool.Alloc(1)
	require.NoError(t, err)
	require.NoError(t, pool.Free(p))
	require.NoError(t, pool.Close())
	pool, err = dev.DefaultPool()
	require.NoError(t, err, "Close leaves it alone")
	require.NoError(t, pool.Close())
}

// TestTrackerOverPool: what the pool holds is reserved, not untracked.
func TestTrackerOverPool(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev := open(t)
	pool := newPool(t, dev, cuda.PoolConfig{ReleaseThreshold: alloc.GiB})
	tr, err := tracker.New(tracker.Config{Device: pool, NoCache: true, Report: io.Discard})
	require.NoError(t, err)
	untracked := tr.LightSnapshot().Untracked()
	b, err := tr.AllocBytes(5*alloc.MiB, tracker.Activation)
	require.NoError(t, err)
	require.Equal(t, alloc.PoolMemory, b.Allocation().Memory)
	require.NoError(t, b.RecordStream(0))
	for _, freed := range []bool{false, true} {
		if freed {
			require.NoError(t, b.Free())
		}
		s := tr.Snapshot()
		trackertest.RequireExact(t, s)
		require.Equal(t, 6*alloc.MiB, s.Reserved, "freed: %v", freed)
		require.Equal(t, untracked, s.Untracked(), "freed: %v", freed)
	}
	_, err = tr.AllocBytes(math.MaxInt64/2, tracker.Activation)
	var oom *tracker.OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.Zero(t, oom.Reserved, "the driver took back what was free")
	require.NoError(t, tr.Close())
}

func TestPinnedMemory(t *testing.T) {
	dev := open(t)
	for _, cfg := range []cuda.PinnedConfig{{}, {Mapped: true}, {WriteCombined: true}} {
		pinned := dev.Pinned(cfg)
		p, err := pinned.Alloc(1000)
		require.NoError(t, err)
		host, err := pinned.Slice(p)
		require.NoError(t, err)
		require.Len(t, host, 1000)
		copy(host, "the quick brown fox")
		back := make([]byte, 5)
		require.NoError(t, pinned.CopyToHost(back, p+4))
		require.Equal(t, "quick", string(back))
		require.NoError(t, pinned.CopyToDevice(p+4, []byte("QUICK")))
		require.Equal(t, "the QUICK brown fox", string(host[:19]))
		require.ErrorIs(t, pinned.CopyToDevice(p+998, back), alloc.ErrUnknownPtr)

		on, err := pinned.DevicePtr(p)
		if cfg.Mapped {
			require.NoError(t, err)
			require.NotZero(t, on)
		} else {
			require.ErrorContains(t, err, "not mapped")
		}
		require.NoError(t, pinned.Free(p))
		require.ErrorIs(t, pinned.Free(p), alloc.ErrUnknownPtr)
		_, err = pinned.Slice(p)
		require.ErrorIs(t, err, alloc.ErrUnknownPtr)
		_, err = pinned.Alloc(-1)
		require.ErrorIs(t, err, alloc.ErrSize)
		_, err = pinned.MemInfo()
		require.Error(t, err)
	}
}

// TestPinnedCopies: while a copy runs, other memory is allocated, and nobody frees its own.
func TestPinnedCopies(t *testing.T) {
	pinned := open(t).Pinned(cuda.PinnedConfig{})
	p, err := pinned.Alloc(1000)
	require.NoError(t, err)
	freed := make(chan error, 1)
	require.NoError(t, pinned.(*cuda.PinnedMemory).Use(p+10, 990, func(memory []byte) {
		other, err := pinned.Alloc(1000)
		require.NoError(t, err)
		require.NoError(t, pinned.CopyToDevice(other, []byte("fox")))
		require.NoError(t, pinned.Free(other))
		go func() { freed <- pinned.Free(p) }()
		require.Eventually(t, func() bool { _, err := pinned.Slice(p); return err != nil }, time.Minute, time.Millisecond, "it is being freed")
		require.ErrorIs(t, pinned.CopyToDevice(p, []byte("fox")), alloc.ErrUnknownPtr)
		require.Never(t, func() bool { return len(freed) > 0 }, 10*time.Millisecond, time.Millisecond)
		copy(memory, "fox")
	}))
	require.NoError(t, <-freed)
}

func TestPinnedLimit(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Pinned: 1 << 20}) {
		return
	}
	pinned := open(t).Pinned(cuda.PinnedConfig{})
	p, err := pinned.Alloc(alloc.MiB)
	require.NoError(t, err)
	_, err = pinned.Alloc(1)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	require.ErrorContains(t, err, "pinned host memory of")
	require.NoError(t, pinned.Free(p))
}

// TestManagedMemory takes none of the device before the device touches it.
func TestManagedMemory(t *testing.T) {
	dev := open(t)
	managed := dev.Managed()
	before := memInfo(t, managed)
	p, err := managed.Alloc(4 * alloc.MiB)
	require.NoError(t, err)
	if gpuemu.Emulated() {
		require.Equal(t, before, memInfo(t, managed))
	}
	copier, ok := alloc.As[alloc.Copier](managed)
	require.True(t, ok)
	require.NoError(t, copier.CopyToDevice(p, []byte("fox")))
	back := make([]byte, 3)
	require.NoError(t, copier.CopyToHost(back, p))
	require.Equal(t, "fox", string(back))
	require.NoError(t, managed.Free(p))
	_, err = managed.Alloc(-1)
	require.ErrorIs(t, err, alloc.ErrSize)
	_, err = managed.Alloc(math.MaxInt64)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
}

// TestRandomProgramsOfEachKind breaks driver calls at random under a tracker over each allocator.
// After each step the ledger must be the driver's own list of live addresses.
func TestRandomProgramsOfEachKind(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Memory: 1 << 30, Pinned: 256 << 20}) {
		return
	}
	dev := open(t)
	pool := newPool(t, dev, cuda.PoolConfig{ReleaseThreshold: 32 * alloc.MiB})
	other := newStream(t)
	for name, test := range map[string]struct {
		dev   alloc.Device
		list  func() (map[uint64]uint64, error)
		calls []string
	}{
		"pool":    {pool, gpuemu.Live, []string{"cuMemAllocFromPoolAsync", "cuMemFreeAsync", "cuMemPoolGetAttribute", "cuMemPoolTrimTo", "cuStreamWaitEvent", "cuEventRecord"}},
		"managed": {dev.Managed(), gpuemu.Live, []string{"cuMemAllocManaged", "cuMemFree_v2"}},
		"pinned":  {dev.Pinned(cuda.PinnedConfig{}), gpuemu.LiveHost, []string{"cuMemHostAlloc", "cuMemFreeHost"}},
		"mapped":  {dev.Pinned(cuda.PinnedConfig{Mapped: true}), gpuemu.LiveHost, []string{"cuMemHostAlloc", "cuMemFreeHost"}},
	} {
		t.Run(name, func(t *testing.T) {
			machine := control(t)
			rapid.Check(t, func(r *rapid.T) {
				tr, err := tracker.New(tracker.Config{Device: test.dev, NoCache: true, Report: io.Discard})
				require.NoError(r, err)
				k := &kindProgram{dev: test.dev, machine: machine, tr: tr, list: test.list, calls: test.calls, streams: []alloc.Stream{0, other}}
				r.Repeat(map[string]func(*rapid.T){
					"break": k.breakCall, "alloc": k.alloc, "free": k.free, "record": k.record, "wait": k.wait, "": k.check,
				})
				machine.Heal()
				for _, b := range k.live {
					require.NoError(r, b.Free())
				}
				require.NoError(r, tr.Close())
				live, err := test.list()
				require.NoError(r, err)
				require.Empty(r, live)
			})
		})
	}
}

type kindProgram struct {
	dev     alloc.Device
	machine *gpuemu.Control
	tr      *tracker.MemTracker
	list    func() (map[uint64]uint64, error)
	calls   []string
	streams []alloc.Stream
	live    []*tracker.Buffer
}

func (k *kindProgram) breakCall(r *rapid.T) {
	k.machine.Heal()
	require.NoError(r, k.machine.Fail(gpuemu.Fault{
		Function: rapid.SampledFrom(append(k.calls, "cuCtxPushCurrent_v2", "cuMemGetInfo_v2")).Draw(r, "function"),
		From:     rapid.IntRange(1, 3).Draw(r, "call"),
		Onward:   rapid.Bool().Draw(r, "onward"),
		Code:     rapid.SampledFrom([]int{1, 2, 700, 999}).Draw(r, "code"),
	}))
}

func (k *kindProgram) alloc(r *rapid.T) {
	n := rapid.SampledFrom([]alloc.Bytes{1, 512, alloc.MiB, 5 * alloc.MiB, 30 * alloc.MiB, 300 * alloc.MiB}).Draw(r, "bytes")
	on := rapid.SampledFrom(k.streams).Draw(r, "stream")
	if b, err := k.tr.AllocOn(on, alloc.Shape{int(n)}, alloc.Uint8, tracker.Activation); err == nil {
		k.live = append(k.live, b)
		require.Equal(r, capability.MemoryOf(k.dev), b.Allocation().Memory)
	}
}

// pick draws a buffer's index.
func (k *kindProgram) pick(r *rapid.T) int {
	if len(k.live) == 0 {
		r.Skip("nothing is live")
	}
	return rapid.IntRange(0, len(k.live)-1).Draw(r, "index")
}

func (k *kindProgram) free(r *rapid.T) {
	if i := k.pick(r); k.live[i].Free() == nil {
		k.live = slices.Delete(k.live, i, i+1)
	}
}

func (k *kindProgram) record(r *rapid.T) {
	_ = k.live[k.pick(r)].RecordStream(rapid.SampledFrom(k.streams).Draw(r, "stream"))
}

func (k *kindProgram) wait(r *rapid.T) {
	if sync, ok := alloc.As[capability.Synchronizer](k.dev); ok {
		_ = sync.Synchronize()
	}
	if pool, ok := k.dev.(cuda.Pool); ok && rapid.Bool().Draw(r, "trim") {
		_ = pool.Trim(0)
	}
}

func (k *kindProgram) check(r *rapid.T) {
	s := k.tr.Snapshot()
	trackertest.RequireExact(r, s)
	own := make(map[uint64]uint64)
	for a := range s.Allocations() {
		own[uint64(a.Ptr)] = uint64(a.Requested)
	}
	live, err := k.list()
	require.NoError(r, err)
	require.Equal(r, live, own)
	require.Len(r, own, len(k.live))
}

// TestPoolWaitsForOtherStreams: freed memory that another stream uses is no other's before that
// work is done.
func TestPoolWaitsForOtherStreams(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev := standstill(t)
	pool := newPool(t, dev.Opened, cuda.PoolConfig{ReleaseThreshold: alloc.GiB})
	own, other, third := newStream(t), newStream(t), newStream(t)
	p, n, err := pool.AllocOn(alloc.MiB, own)
	require.NoError(t, err)
	require.Equal(t, alloc.MiB, n)
	require.ErrorIs(t, pool.RecordStream(p+1, other), alloc.ErrUnknownPtr)
	require.NoError(t, dev.Work(other, p, n, time.Second))
	require.NoError(t, pool.RecordStream(p, other))
	require.NoError(t, pool.Free(p))
	again, _, err := pool.AllocOn(n, third)
	require.NoError(t, err)
	require.NotEqual(t, p, again, "the work is not done")
	dev.Advance(time.Second)
	late, _, err := pool.AllocOn(n, third)
	require.NoError(t, err)
	require.Equal(t, p, late)
	require.NoError(t, pool.Free(again))
	require.NoError(t, pool.Free(late))
}

// TestEveryCallOfAKindThatFails makes each driver call of each operation fail in turn: what is
// live, and what the pool holds, is as before.
func TestEveryCallOfAKindThatFails(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev, machine := open(t), control(t)
	other := newStream(t)
	pool := newPool(t, dev, cuda.PoolConfig{ReleaseThreshold: alloc.GiB})
	pinned, managed := dev.Pinned(cuda.PinnedConfig{Mapped: true}), dev.Managed()
	inPool, err := pool.Alloc(1)
	require.NoError(t, err)
	require.NoError(t, pool.RecordStream(inPool, other))
	onHost, err := pinned.Alloc(1)
	require.NoError(t, err)
	moving, err := managed.Alloc(1)
	require.NoError(t, err)
	held := func() (all []any) {
		for _, list := range []func() (map[uint64]uint64, error){gpuemu.Live, gpuemu.LiveHost} {
			live, err := list()
			require.NoError(t, err)
			all = append(all, live)
		}
		used, reserved, err := pool.Stats()
		require.NoError(t, err)
		return append(all, used, reserved, memInfo(t, dev), machine.Events(os.Getpid()))
	}
	before := held()
	for _, op := range []struct {
		name string
		do   func() error
	}{
		{"NewPool", func() error { _, err := dev.NewPool(cuda.PoolConfig{ReleaseThreshold: 1}); return err }},
		{"DefaultPool", func() error { _, err := dev.DefaultPool(); return err }},
		{"pool Alloc", func() error { _, err := pool.Alloc(alloc.MiB); return err }},
		{"Stats", func() error { _, _, err := pool.Stats(); return err }},
		{"Threshold", func() error { return pool.SetReleaseThreshold(alloc.GiB) }},
		{"Trim", func() error { return pool.Trim(0) }},
		{"managed", func() error { _, err := managed.Alloc(alloc.MiB); return err }},
		{"pinned", func() error { _, err := pinned.Alloc(alloc.MiB); return err }},
		{"DevicePtr", func() error { _, err := pinned.DevicePtr(onHost); return err }},
		{"pool Free", func() error { return pool.Free(inPool) }},
		{"managed Free", func() error { return managed.Free(moving) }},
		{"pinned Free", func() error { return pinned.Free(onHost) }},
	} {
		failures := 0
		for call := 1; ; call++ {
			require.NoError(t, machine.Fail(gpuemu.Fault{Function: "*", From: call, Code: 719}), op.name)
			err := op.do()
			machine.Heal()
			if err == nil {
				break // it makes no more calls, or what failed is no failure of it
			}
			failures++
			require.ErrorIs(t, err, cuda.ErrDeviceLost, "%s, call %d", op.name, call)
			require.Equal(t, before, held(), "%s, call %d", op.name, call)
		}
		require.GreaterOrEqual(t, failures, 2, op.name)
		switch op.name { // the last one did it
		case "pool Alloc", "managed", "pinned", "pool Free", "managed Free", "pinned Free", "Trim", "NewPool":
			before = held()
		}
	}
}

// TestVirtualMemoryInLargerUnits: a cache goes without expandable segments.
func TestVirtualMemoryInLargerUnits(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Unit: 8 << 20}) {
		return
	}
	dev := open(t)
	_, err := dev.Reserve(8*alloc.MiB, 2*alloc.MiB)
	require.ErrorIs(t, err, errors.ErrUnsupported)
	p, err := dev.Reserve(16*alloc.MiB, 8*alloc.MiB)
	require.NoError(t, err)
	require.NoError(t, dev.Map(p, 8*alloc.MiB))
	require.NoError(t, dev.Unmap(p, 8*alloc.MiB))
	require.NoError(t, dev.Release(p))
	cache := cachetest.NewCache(t, dev, cache.Config{ExpandableSegments: true})
	require.Equal(t, alloc.VirtualMemory, cache.Memory())
	p, err = cache.Alloc(1)
	require.NoError(t, err)
	require.Equal(t, alloc.DeviceMemory, cache.Memory())
	require.NoError(t, cache.Free(p))
	require.NoError(t, cache.Close())
}

// TestExamples runs the examples, which go test only compiles, because not every machine has a driver or can emulate one.
func TestExamples(t *testing.T) {
	needDriver(t)
	stdout := os.Stdout
	defer func() { os.Stdout = stdout }()
	for want, example := range map[string]func(){
		"pool 4.0 MiB\n":     ExampleDevice_NewPool,
		"0 B 4.0 MiB\n":      ExampleDevice_Pinned,
		"managed 64.0 MiB\n": ExampleDevice_Managed,
	} {
		r, w, err := os.Pipe()
		require.NoError(t, err)
		os.Stdout = w
		example()
		require.NoError(t, w.Close())
		got, err := io.ReadAll(r)
		require.NoError(t, err)
		assert.Equal(t, want, string(got))
	}
}
