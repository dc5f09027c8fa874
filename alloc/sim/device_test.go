package sim_test

import (
	"errors"
	"math"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

// open opens a device that the test closes.
func open(t testing.TB, cfg sim.Config) *sim.Simulated {
	t.Helper()
	dev, err := sim.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { _ = dev.Close() })
	return dev.(*sim.Simulated)
}

func mustAlloc(t testing.TB, dev alloc.Device, n alloc.Bytes) alloc.Ptr {
	t.Helper()
	p, err := dev.Alloc(n)
	require.NoError(t, err)
	return p
}

func free(t testing.TB, dev alloc.Device) alloc.Bytes {
	t.Helper()
	info, err := dev.MemInfo()
	require.NoError(t, err)
	return info.Free
}

func TestNewDefaults(t *testing.T) {
	dev := open(t, sim.Config{})
	info, err := dev.MemInfo()
	require.NoError(t, err)
	assert.Equal(t, "Simulated GPU", dev.Name())
	assert.Equal(t, 0, dev.Ordinal())
	assert.Equal(t, "Simulated GPU 0", dev.String())
	assert.Equal(t, sim.DefaultMemory, info.Total)
	assert.Equal(t, sim.DefaultOverhead, info.Used())
	assert.Equal(t, sim.DefaultOverhead, dev.Overhead())
}

func TestNewRefuses(t *testing.T) {
	for name, cfg := range map[string]sim.Config{
		"negative ordinal":       {Ordinal: -1},
		"ordinal beyond range":   {Ordinal: 1 << 30},
		"negative memory":        {Memory: -1},
		"less than a page":       {Memory: sim.PageSize - 1},
		"more than addresses":    {Memory: sim.MaxMemory + 1},
		"overhead beyond memory": {Memory: alloc.GiB, Overhead: 2 * alloc.GiB},
		"overhead in pages":      {Memory: 3 * alloc.MiB, Overhead: 3 * alloc.MiB},
	} {
		t.Run(name, func(t *testing.T) {
			_, err := sim.New(cfg)
			assert.ErrorContains(t, err, "open simulated device")
		})
	}
}

func TestRounding(t *testing.T) {
	dev := open(t, sim.Config{Memory: 5 * alloc.MiB, Overhead: 1})
	info, err := dev.MemInfo()
	require.NoError(t, err)
	assert.Equal(t, alloc.MemInfo{Free: 2 * alloc.MiB, Total: 4 * alloc.MiB}, info)
	assert.Zero(t, open(t, sim.Config{Overhead: -1}).Overhead(), "a negative overhead is none")
}

// TestPages checks what each size takes of the driver's memory.
func TestPages(t *testing.T) {
	for _, test := range []struct {
		size  alloc.Bytes
		pages alloc.Bytes
	}{
		{0, 1}, {1, 1}, {sim.PageSize - 1, 1}, {sim.PageSize, 1}, {sim.PageSize + 1, 2}, {20 * alloc.MiB, 10},
	} {
		dev := open(t, sim.Config{Overhead: -1})
		before := free(t, dev)
		p := mustAlloc(t, dev, test.size)
		assert.Equal(t, test.pages*sim.PageSize, before-free(t, dev), "%d bytes", int64(test.size))
		require.NoError(t, dev.Free(p))
		assert.Equal(t, before, free(t, dev))
	}
}

func TestSmallAllocationsShareAPage(t *testing.T) {
	dev := open(t, sim.Config{})
	before := free(t, dev)
	seen := make(map[alloc.Ptr]bool)
	for range 4096 { // 512 bytes each
		seen[mustAlloc(t, dev, 0)] = true
	}
	assert.Len(t, seen, 4096, "zero bytes have an address of their own")
	assert.Equal(t, sim.PageSize, before-free(t, dev))
	mustAlloc(t, dev, 1)
	assert.Equal(t, 2*sim.PageSize, before-free(t, dev))
	for p := range seen {
		require.NoError(t, dev.Free(p))
	}
	assert.Equal(t, sim.PageSize, before-free(t, dev), "an empty page goes back")
}

func TestAddressesAreReusedLowestFirst(t *testing.T) {
	dev := open(t, sim.Config{})
	a, b, c := mustAlloc(t, dev, 4*alloc.MiB), mustAlloc(t, dev, 4*alloc.MiB), mustAlloc(t, dev, 4*alloc.MiB)
	assert.Less(t, a, b)
	assert.Less(t, b, c)
	require.NoError(t, dev.Free(a))
	require.NoError(t, dev.Free(b))
	assert.Equal(t, a, mustAlloc(t, dev, 8*alloc.MiB), "neighbours that are free fit a larger one")
}

func TestHolesDoNotMakeRequestsFail(t *testing.T) {
	dev := open(t, sim.Config{Memory: 64 * alloc.MiB, Overhead: -1})
	var every []alloc.Ptr
	for range 32 {
		every = append(every, mustAlloc(t, dev, sim.PageSize))
	}
	for i := 0; i < len(every); i += 2 {
		require.NoError(t, dev.Free(every[i]))
	}
	mustAlloc(t, dev, 32*alloc.MiB)
}

func TestOutOfMemory(t *testing.T) {
	dev := open(t, sim.Config{Memory: 64 * alloc.MiB, Overhead: 4 * alloc.MiB})
	mustAlloc(t, dev, 50*alloc.MiB)
	_, err := dev.Alloc(12 * alloc.MiB)
	var oom *alloc.OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	assert.Equal(t, alloc.OutOfMemoryError{
		Device: "Simulated GPU 0", Requested: 12 * alloc.MiB, Free: 10 * alloc.MiB, Total: 64 * alloc.MiB,
		Reserved: -1, Allocated: 50 * alloc.MiB, LargestInactive: -1,
	}, *oom)
	mustAlloc(t, dev, 10*alloc.MiB)
	assert.Zero(t, free(t, dev))
	_, err = dev.Alloc(1)
	assert.ErrorIs(t, err, alloc.ErrOutOfMemory)
	_, err = dev.Alloc(math.MaxInt64)
	assert.ErrorIs(t, err, alloc.ErrOutOfMemory)
}

func TestSimulatedMemoryIsNotHeld(t *testing.T) {
	dev := open(t, sim.Config{Memory: 192 * alloc.GiB})
	mustAlloc(t, dev, 191*alloc.GiB)
}

func TestOther(t *testing.T) {
	dev := open(t, sim.Config{Memory: 64 * alloc.MiB, Overhead: -1})
	dev.SetOther(3 * alloc.MiB)
	assert.Equal(t, 4*alloc.MiB, dev.Other())
	assert.Equal(t, 60*alloc.MiB, free(t, dev))
	p := mustAlloc(t, dev, 10*alloc.MiB)
	dev.SetOther(math.MaxInt64)
	assert.Equal(t, 54*alloc.MiB, dev.Other(), "they get what there is")
	assert.Zero(t, free(t, dev))
	require.NoError(t, dev.Free(p))
	dev.SetOther(-1)
	assert.Equal(t, 64*alloc.MiB, free(t, dev))
}

func TestDevicesShareNoAddress(t *testing.T) {
	first, second := open(t, sim.Config{}), open(t, sim.Config{Ordinal: 1})
	p := mustAlloc(t, first, alloc.MiB)
	assert.ErrorIs(t, second.Free(p), alloc.ErrUnknownPtr)
	assert.NotEqual(t, p, mustAlloc(t, second, alloc.MiB))
}

func TestClose(t *testing.T) {
	dev := open(t, sim.Config{Backed: true})
	p := mustAlloc(t, dev, alloc.MiB)
	require.NoError(t, dev.Close())
	_, allocErr := dev.Alloc(1)
	_, infoErr := dev.MemInfo()
	_, intervalErr := dev.StartInterval()
	for name, err := range map[string]error{
		"Alloc": allocErr, "Free": dev.Free(p), "MemInfo": infoErr, "Synchronize": dev.Synchronize(),
		"CopyToDevice": dev.CopyToDevice(p, nil), "CopyToHost": dev.CopyToHost(nil, p),
		"StartInterval": intervalErr, "Close": dev.Close(),
	} {
		assert.ErrorIs(t, err, alloc.ErrClosed, name)
	}
	n, size := dev.Live()
	assert.Zero(t, n)
	assert.Zero(t, size)
}

func TestFaults(t *testing.T) {
	broken := errors.New("broken")
	dev := open(t, sim.Config{})
	dev.Inject(sim.Fault{Call: "Alloc", Nth: 3, Err: broken})
	p := mustAlloc(t, dev, alloc.MiB)
	q := mustAlloc(t, dev, alloc.MiB)
	_, err := dev.Alloc(alloc.MiB)
	var fault *sim.FaultError
	require.ErrorAs(t, err, &fault)
	assert.Equal(t, sim.FaultError{Call: "Alloc", Device: "Simulated GPU 0", Err: broken}, *fault)
	assert.ErrorIs(t, err, broken)
	assert.EqualError(t, err, "Alloc on Simulated GPU 0: broken")
	mustAlloc(t, dev, alloc.MiB)
	assert.Equal(t, 4, dev.Calls("Alloc"))

	dev.Inject(sim.Fault{Call: "Free", Times: -1}, sim.Fault{Call: "MemInfo", Nth: 2, Times: 2})
	assert.ErrorIs(t, dev.Free(p), sim.ErrInjected)
	assert.ErrorIs(t, dev.Free(p), sim.ErrInjected)
	var failed []bool
	for range 4 {
		_, err := dev.MemInfo()
		failed = append(failed, errors.Is(err, sim.ErrInjected))
	}
	assert.Equal(t, []bool{false, true, true, false}, failed)

	dev.Inject()
	assert.NoError(t, dev.Free(p))
	assert.NoError(t, dev.Free(q))
	n, size := dev.Live()
	assert.Equal(t, 1, n)
	assert.Equal(t, alloc.MiB, size)
}

func TestOutOfMemoryOnDemand(t *testing.T) {
	dev := open(t, sim.Config{})
	dev.Inject(sim.Fault{Call: "Alloc", Err: alloc.ErrOutOfMemory})
	_, err := dev.Alloc(alloc.MiB)
	var oom *alloc.OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	assert.Equal(t, sim.DefaultMemory-sim.DefaultOverhead, oom.Free)
	var fault *sim.FaultError
	assert.ErrorAs(t, err, &fault, "it can be told from a real one")
}

func TestLatency(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev := open(t, sim.Config{})
		dev.SetLatency(time.Second)
		start := time.Now()
		p := mustAlloc(t, dev, alloc.MiB)
		assert.Equal(t, time.Second, time.Since(start))

		var calls sync.WaitGroup
		for range 10 {
			calls.Go(func() { _, _ = dev.MemInfo() })
		}
		calls.Wait()
		assert.Equal(t, 2*time.Second, time.Since(start), "calls sleep side by side")

		dev.SetLatency(0)
		require.NoError(t, dev.Free(p))
		assert.Equal(t, 2*time.Second, time.Since(start))
	})
}

func TestInterval(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		interval, err := open(t, sim.Config{}).StartInterval()
		require.NoError(t, err)
		_, err = interval.Elapsed()
		assert.ErrorContains(t, err, "call Stop first")
		time.Sleep(3 * time.Millisecond)
		require.NoError(t, interval.Stop())
		time.Sleep(time.Hour)
		elapsed, err := interval.Elapsed()
		require.NoError(t, err)
		assert.Equal(t, 3*time.Millisecond, elapsed)
	})
}

func TestCopy(t *testing.T) {
	dev := open(t, sim.Config{Backed: true})
	for _, size := range []alloc.Bytes{5, 700, 3 * alloc.MiB} {
		p := mustAlloc(t, dev, size)
		end := p + alloc.Ptr(size)
		require.NoError(t, dev.CopyToDevice(end-5, []byte("hello")))
		got := make([]byte, 3)
		require.NoError(t, dev.CopyToHost(got, end-4))
		assert.Equal(t, "ell", string(got))
		assert.NoError(t, dev.CopyToHost(nil, end), "nothing, at the end")
		assert.ErrorIs(t, dev.CopyToHost(got, end-2), alloc.ErrUnknownPtr, "past the end")
		assert.ErrorIs(t, dev.CopyToHost(got[:1], end), alloc.ErrUnknownPtr)
		assert.ErrorIs(t, dev.CopyToDevice(p-1, got), alloc.ErrUnknownPtr, "before the start")
		require.NoError(t, dev.Free(p))
		assert.ErrorIs(t, dev.CopyToHost(got, p), alloc.ErrUnknownPtr, "freed")
	}
	assert.ErrorIs(t, dev.CopyToHost(nil, 1), alloc.ErrUnknownPtr)
}

func TestCopyNeedsBacking(t *testing.T) {
	dev := open(t, sim.Config{})
	p := mustAlloc(t, dev, alloc.MiB)
	assert.ErrorIs(t, dev.CopyToDevice(p, []byte{1}), errors.ErrUnsupported)
	assert.ErrorIs(t, dev.CopyToHost([]byte{1}, p), errors.ErrUnsupported)
}

func TestFaultOfNoCall(t *testing.T) {
	dev := open(t, sim.Config{})
	require.NoError(t, dev.Inject(sim.Fault{Call: "Alloc"}))
	require.EqualError(t, dev.Inject(sim.Fault{Call: "Free"}, sim.Fault{Call: "alloc"}), `sim: Fault.Call "alloc": want one of `+
		"[Alloc Free MemInfo Synchronize Reserve Map Unmap Queue Fill Copy Event PoolAlloc PoolFree Pool PinnedAlloc PinnedFree]")
	assert.Zero(t, dev.Calls("alloc"))
	_, err := dev.Alloc(1)
	require.ErrorIs(t, err, sim.ErrInjected, "the faults from before stay")
}
