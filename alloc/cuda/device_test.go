//go:build linux

package cuda_test

import (
	"errors"
	"fmt"
	"math"
	"os"
	"runtime"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/alloctest"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
)

// These tests run on a real driver where one answers, and otherwise on the emulated one.
// Those that need faults start themselves again under the emulated one.
func TestMain(m *testing.M) {
	if os.Getenv(openVariable) != "" {
		printOpened()
		return
	}
	_, err := cuda.Devices()
	os.Exit(gpuemu.Main(m, err == nil))
}

// needDriver skips a test where no driver answers, since none can be emulated.
func needDriver(t *testing.T) {
	t.Helper()
	if _, none := cuda.Devices(); none != nil && !gpuemu.Emulated() {
		t.Skip(none, gpuemu.Available())
	}
}

// needEmulated skips a test on a real driver too: it would be found, whatever is searched first.
func needEmulated(t *testing.T) {
	t.Helper()
	needDriver(t)
	if !gpuemu.Emulated() {
		t.Skip("a real driver answers")
	}
}

func open(t *testing.T) *cuda.Opened {
	t.Helper()
	needDriver(t)
	dev, err := cuda.Open(0)
	require.NoError(t, err)
	t.Cleanup(func() {
		if err := dev.Close(); !errors.Is(err, alloc.ErrClosed) {
			assert.NoError(t, err)
		}
	})
	return dev.(*cuda.Opened)
}

// control is the emulated machine's, or nil on a real one.
func control(t *testing.T) *gpuemu.Control {
	t.Helper()
	if !gpuemu.Emulated() {
		return nil
	}
	c, err := gpuemu.Attach()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

func fail(t *testing.T, c *gpuemu.Control, function string, code int) {
	t.Helper()
	require.NoError(t, c.Fail(gpuemu.Fault{Function: function, From: 1, Code: code}))
}

func memInfo(t *testing.T, dev alloc.Device) alloc.MemInfo {
	t.Helper()
	info, err := dev.MemInfo()
	require.NoError(t, err)
	return info
}

// conformance is the contract's test. A real GPU may have other users.
func conformance(t *testing.T, open func(t *testing.T) alloc.Device) {
	if gpuemu.Emulated() {
		alloctest.Device(t, open)
	} else {
		alloctest.SharedDevice(t, open)
	}
}

func TestDevice(t *testing.T) {
	conformance(t, func(t *testing.T) alloc.Device { return open(t) })
}

func TestCache(t *testing.T) {
	conformance(t, func(t *testing.T) alloc.Device {
		cache := cachetest.NewCache(t, open(t), cache.Config{})
		t.Cleanup(func() { assert.NoError(t, cache.Close()) })
		return cache
	})
}

func TestExpandableCache(t *testing.T) {
	conformance(t, func(t *testing.T) alloc.Device {
		cache := cachetest.NewCache(t, open(t), cache.Config{ExpandableSegments: true})
		t.Cleanup(func() { assert.NoError(t, cache.Close()) })
		return cache
	})
}

// TestMapFails has each of Map's driver calls fail: nothing is held afterwards.
func TestMapFails(t *testing.T) {
	c := control(t)
	if c == nil {
		t.Skip("a real driver does not fail on demand")
	}
	dev := open(t)
	const chunk = 2 * alloc.MiB
	before := memInfo(t, dev)
	p, err := dev.Reserve(4*chunk, chunk)
	require.NoError(t, err)
	for _, function := range []string{"cuMemCreate", "cuMemMap", "cuMemSetAccess"} {
		require.NoError(t, c.Fail(gpuemu.Fault{Function: function, From: 1, Code: 304}), function)
		assert.ErrorIs(t, dev.Map(p, 3*chunk), cuda.Error(304), function)
		assert.Equal(t, before, memInfo(t, dev), function)
	}
	require.NoError(t, dev.Map(p, 3*chunk))
	assert.ErrorIs(t, dev.Map(p+alloc.Ptr(2*chunk), 2*chunk), alloc.ErrUnknownPtr, "a part of it is mapped")
	assert.ErrorIs(t, dev.Unmap(p, 4*chunk), alloc.ErrUnknownPtr, "a part of it is not")
	assert.ErrorIs(t, dev.Release(p), alloc.ErrUnknownPtr)

	before = memInfo(t, dev)
	for call := 1; call <= 3; call++ {
		require.NoError(t, c.Fail(gpuemu.Fault{Function: "cuMemUnmap", From: call, Code: 304}))
		assert.ErrorIs(t, dev.Unmap(p, 3*chunk), cuda.Error(304), "call %d", call)
		assert.Equal(t, before, memInfo(t, dev), "call %d", call)
		require.NoError(t, dev.CopyToDevice(p, make([]byte, 3*chunk)), "call %d", call)
	}
	assert.NoError(t, dev.Unmap(p, 3*chunk))
	assert.NoError(t, dev.Release(p))
}

func TestFromHandle(t *testing.T) {
	owner := open(t)
	conformance(t, func(t *testing.T) alloc.Device {
		dev, err := cuda.FromHandle(owner.Handle())
		require.NoError(t, err)
		require.Equal(t, owner.Info(), dev.(*cuda.Opened).Info())
		t.Cleanup(func() { assert.NoError(t, dev.Close()) })
		return dev
	})
	p, err := owner.Alloc(1)
	require.NoError(t, err, "closing the Device leaves the context alone")
	require.NoError(t, owner.Free(p))
}

// TestTracker is the tracker's own test body. Where the driver is emulated it
// fails on demand too.
func TestTracker(t *testing.T) {
	dev, machine := open(t), control(t)
	trackertest.Run(t, func(t *testing.T) trackertest.Rig {
		rig := trackertest.Rig{Device: dev}
		if machine != nil {
			rig.FailAlloc = func() { fail(t, machine, "cuMemAlloc_v2", 2) }
			rig.FailFree = func() { fail(t, machine, "cuMemFree_v2", 719) }
			rig.Heal = machine.Heal
		}
		return rig
	})
}

func TestThreadsKeepTheirCurrentContext(t *testing.T) {
	dev := open(t)
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	before := cuda.CurrentContext()
	p, err := dev.Alloc(1)
	require.NoError(t, err)
	require.NoError(t, dev.Synchronize())
	require.NoError(t, dev.Free(p))
	require.ErrorIs(t, dev.Free(p), alloc.ErrUnknownPtr)
	require.Equal(t, before, cuda.CurrentContext())
}

func TestIntervalIsUsedOnce(t *testing.T) {
	interval, err := open(t).StartInterval()
	require.NoError(t, err)
	require.NoError(t, interval.Stop())
	require.ErrorContains(t, interval.Stop(), "is stopped")
	_, err = interval.Elapsed()
	require.NoError(t, err)
	_, err = interval.Elapsed()
	require.ErrorContains(t, err, "call Stop first, Elapsed once")
}

// TestIntervalThatCannotStop gives its events back all the same.
func TestIntervalThatCannotStop(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev, machine := open(t), control(t)
	interval, err := dev.StartInterval()
	require.NoError(t, err)
	fail(t, machine, "cuEventCreate", 2)
	fail(t, machine, "cuEventDestroy_v2", 400)
	err = interval.Stop()
	require.ErrorIs(t, err, cuda.Error(2))
	require.ErrorIs(t, err, cuda.Error(400), "it destroys the first event")
	_, err = interval.Elapsed()
	require.ErrorContains(t, err, "was not stopped")
	require.ErrorContains(t, interval.Stop(), "is stopped")
}

func TestOpenOfNoDevice(t *testing.T) {
	needDriver(t)
	for _, n := range []int64{99, -1, 1 << 32, -1 << 32} {
		ordinal := int(n)
		if int64(ordinal) != n {
			continue // an int has 32 bits here
		}
		_, err := cuda.Open(ordinal)
		require.ErrorIs(t, err, cuda.ErrNoDevice)
		require.ErrorContains(t, err, fmt.Sprintf("open CUDA device %d of ", ordinal))
	}
}

func TestErrors(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Name: "Test GPU", Memory: 1 << 30, Context: 24 << 20}) {
		return
	}
	dev := open(t)
	_, err := dev.Alloc(2 * alloc.GiB)
	var oom *alloc.OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.ErrorIs(t, err, cuda.Error(2))
	require.Equal(t, alloc.OutOfMemoryError{
		Device: "Test GPU 0", Requested: 2 * alloc.GiB, Free: 1000 * alloc.MiB, Total: alloc.GiB,
		Reserved: -1, Allocated: -1, LargestInactive: -1, Err: oom.Err,
	}, *oom)

	require.EqualError(t, cuda.Error(2), "CUDA_ERROR_OUT_OF_MEMORY (2): out of memory", "the driver's words")
	require.EqualError(t, cuda.Error(54321), "CUDA error 54321")

	err = dev.Free(0xdead)
	require.ErrorIs(t, err, alloc.ErrUnknownPtr)
	require.ErrorIs(t, err, cuda.Error(1))
	require.ErrorIs(t, dev.CopyToDevice(0xdead, []byte{1}), alloc.ErrUnknownPtr)

	require.NoError(t, dev.Close())
	for name, call := range map[string]func() error{
		"Alloc":   func() error { _, err := dev.Alloc(1); return err },
		"Free":    func() error { return dev.Free(1) },
		"MemInfo": func() error { _, err := dev.MemInfo(); return err },
		"Copy":    func() error { return dev.CopyToHost(make([]byte, 1), 1) },
		"Sync":    dev.Synchronize,
		"Close":   dev.Close,
	} {
		require.ErrorIs(t, call(), alloc.ErrClosed, name)
	}
}

// TestEveryCallThatFails makes each driver call of each operation fail in turn:
// the driver must hold afterwards what it held before.
func TestEveryCallThatFails(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev, machine := open(t), control(t)
	kept, err := dev.Alloc(alloc.MiB)
	require.NoError(t, err)
	before := memInfo(t, dev)
	for name, operation := range map[string]func() error{
		"Alloc":   func() error { _, err := dev.Alloc(4 * alloc.MiB); return err },
		"Free":    func() error { return dev.Free(kept) },
		"MemInfo": func() error { _, err := dev.MemInfo(); return err },
		"Copy":    func() error { return dev.CopyToDevice(kept, make([]byte, 10)) },
		"Sync":    dev.Synchronize,
		"Interval": func() error {
			_, err := dev.StartInterval()
			return err
		},
	} {
		for _, code := range []int{226, 700, 719, 721, 810, 911, 999} {
			require.NoError(t, machine.Fail(gpuemu.Fault{Function: "*", From: 1, Code: code}), name)
			err := operation()
			machine.Heal()
			require.ErrorIs(t, err, cuda.ErrDeviceLost, "%s: %d", name, code)
			require.ErrorIs(t, err, cuda.Error(code))
			require.Equal(t, before, memInfo(t, dev), name)
		}
	}
	// A pop that fails after the call went well is no failure of the call.
	fail(t, machine, "cuCtxPopCurrent_v2", 999)
	require.NoError(t, dev.Free(kept))
	machine.Heal()
	require.Equal(t, before.Free+2*alloc.MiB, memInfo(t, dev).Free)
}

func TestLostDevice(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev, machine := open(t), control(t)
	machine.Lose()
	defer machine.Heal()
	_, err := dev.Alloc(1)
	require.ErrorIs(t, err, cuda.ErrDeviceLost)
	_, err = cuda.Open(0)
	require.ErrorIs(t, err, cuda.ErrDeviceLost)
	machine.Heal()
	fail(t, machine, "cuDevicePrimaryCtxRetain", 46)
	_, err = cuda.Open(0)
	require.ErrorIs(t, err, cuda.ErrDeviceLost, "the device is unavailable")
	require.ErrorContains(t, err, "another process has the device for itself")
}

// TestAbsurdSizes: a driver may call a size invalid that no device has.
func TestAbsurdSizes(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev, machine := open(t), control(t)
	fail(t, machine, "cuMemAlloc_v2", 1)
	_, err := dev.Alloc(math.MaxInt64)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	require.ErrorIs(t, err, cuda.Error(1))
	fail(t, machine, "cuMemAlloc_v2", 1)
	_, err = dev.Alloc(1)
	require.ErrorIs(t, err, cuda.Error(1))
	require.NotErrorIs(t, err, alloc.ErrOutOfMemory)
}

func TestOpenWithoutRoomForAContext(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Memory: 1 << 20}) {
		return
	}
	_, err := cuda.Open(0)
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
}

// TestCloseDuringCalls: a call either goes through or says that the device is closed.
func TestCloseDuringCalls(t *testing.T) {
	dev, second := open(t), open(t)
	before := memInfo(t, second)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for {
				p, err := dev.Alloc(4 * alloc.MiB)
				if err == nil {
					err = second.Free(p)
				}
				if err != nil {
					assert.ErrorIs(t, err, alloc.ErrClosed)
					return
				}
			}
		})
	}
	group.Go(func() { assert.NoError(t, dev.Close()) })
	group.Wait()
	if gpuemu.Emulated() {
		require.Equal(t, before, memInfo(t, second))
	}
}

// TestCloseEndsIntervals: what the Device made goes with it, also where the context lives on.
func TestCloseEndsIntervals(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev, second, machine := open(t), open(t), control(t)
	started, err := dev.StartInterval()
	require.NoError(t, err)
	stopped, err := dev.StartInterval()
	require.NoError(t, err)
	require.NoError(t, stopped.Stop())
	other, err := second.StartInterval()
	require.NoError(t, err)
	require.Equal(t, 4, machine.Events(os.Getpid()))
	require.NoError(t, dev.Close())
	require.Equal(t, 1, machine.Events(os.Getpid()))
	require.ErrorIs(t, started.Stop(), alloc.ErrClosed)
	_, err = stopped.Elapsed()
	require.ErrorIs(t, err, alloc.ErrClosed)
	require.NoError(t, other.Stop())
	_, err = other.Elapsed()
	require.NoError(t, err)
	require.Zero(t, machine.Events(os.Getpid()))
}

// TestUndoingThatFails has all calls fail from one of them on, and recover: a growing cache then gives back all
// that it ever had mapped, wherever it was, by Trim or Close.
func TestUndoingThatFails(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{}) {
		return
	}
	dev, machine := open(t), control(t)
	before := memInfo(t, dev)
	for _, code := range []int{2, 304, 719} {
		for from := 1; from <= 90; from++ {
			c := cachetest.NewCache(t, dev, cache.Config{ExpandableSegments: true})
			require.NoError(t, machine.Fail(gpuemu.Fault{Function: "*", From: from, Onward: true, Code: code}))
			var live []alloc.Ptr
			for _, n := range []alloc.Bytes{50 * alloc.MiB, alloc.MiB, 30 * alloc.MiB} {
				if p, err := c.Alloc(n); err == nil {
					live = append(live, p)
				}
			}
			for i, p := range live {
				if i != 1 {
					_ = c.Free(p)
				}
			}
			_, _ = c.Trim()
			machine.Heal()
			if len(live) > 1 {
				require.NoError(t, c.Free(live[1]))
			}
			_, err := c.Trim()
			require.NoError(t, err, "%d from call %d", code, from)
			require.Equal(t, before, memInfo(t, dev), "%d from call %d: Trim tried again", code, from)
			require.NoError(t, c.Close(), "%d from call %d", code, from)
			require.Equal(t, before, memInfo(t, dev), "%d from call %d", code, from)
		}
	}
}
