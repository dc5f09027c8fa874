//go:build linux

package cuda_test

import (
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// TestFaultsLeaveNothing runs random programs while the driver refuses one call, or all calls of a function, or all calls,
// from some call on until it recovers. Then ClearCache and Close leave nothing with the driver: memory, addresses or
// events. -long runs thousands.
func TestFaultsLeaveNothing(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Memory: 1 << 30}) {
		return
	}
	dev, machine := open(t), control(t)
	other := newStream(t)
	kinds := []func() alloc.Device{
		func() alloc.Device { return dev },
		func() alloc.Device { return dev.Managed() },
		func() alloc.Device { return dev.Pinned(cuda.PinnedConfig{Mapped: true}) },
		func() alloc.Device {
			pool, err := dev.NewPool(cuda.PoolConfig{ReleaseThreshold: alloc.GiB})
			require.NoError(t, err)
			return pool
		},
	}
	held := func() (all []any) {
		for _, list := range []func() (map[uint64]uint64, error){gpuemu.Live, gpuemu.LiveHost} {
			live, err := list()
			require.NoError(t, err)
			all = append(all, live)
		}
		return append(all, memInfo(t, dev), machine.Events(os.Getpid()))
	}
	before := held()
	runs := 200
	if *trackertest.Long {
		runs = 10_000
	}
	for seed := range uint64(runs) {
		random := rand.New(rand.NewPCG(seed, 1))
		kind := random.IntN(5) % len(kinds)
		from := kinds[kind]()
		cfg := tracker.Config{Device: from, Report: io.Discard, NoCache: random.IntN(4) == 0}
		if !cfg.NoCache && kind == 0 && random.IntN(3) > 0 {
			cfg.Device = cachetest.NewCache(t, from, cache.Config{ExpandableSegments: true})
		}
		tr, err := tracker.New(cfg)
		require.NoError(t, err)
		functions := []string{"*", "*", "cuMemUnmap", "cuMemRelease", "cuMemAddressFree", "cuMemSetAccess", "cuMemMap", "cuMemFree_v2", "cuMemFreeHost", "cuMemFreeAsync", "cuEventRecord", "cuEventQuery", "cuEventDestroy_v2", "cuCtxPopCurrent_v2", "cuStreamSynchronize"}
		broken := gpuemu.Fault{
			Function: functions[random.IntN(len(functions))], From: 1 + random.IntN(60), Onward: random.IntN(3) > 0,
			Code: []int{1, 2, 201, 700, 999}[random.IntN(5)],
		}
		var live []*tracker.Buffer
		for step := range 40 {
			if step == 5 {
				require.NoError(t, machine.Fail(broken))
			}
			switch n := random.IntN(20); {
			case n < 8:
				on := alloc.Stream(0)
				if n < 3 {
					on = other
				}
				if b, err := tr.AllocOn(on, alloc.Shape{1 << random.IntN(27)}, alloc.Uint8, tracker.Activation); err == nil {
					live = append(live, b)
				}
			case n < 10 && len(live) > 0:
				_ = live[random.IntN(len(live))].RecordStream(other)
			case n < 18 && len(live) > 0:
				if i := random.IntN(len(live)); live[i].Free() == nil {
					live = slices.Delete(live, i, i+1)
				}
			case n == 18:
				_, _ = tr.ClearCache()
			case n == 19:
				tr.Track()
			}
		}
		machine.Heal()
		for _, b := range live {
			require.NoError(t, b.Free(), "seed %d", seed)
		}
		_, err = tr.ClearCache()
		require.NoError(t, err, "seed %d, %v", seed, broken)
		require.NoError(t, tr.Close(), "seed %d, %v", seed, broken)
		for _, its := range []alloc.Device{cfg.Device, from} {
			if closer, ok := its.(io.Closer); ok && its != dev {
				require.NoError(t, closer.Close(), "seed %d, %v", seed, broken)
				break
			}
		}
		require.Equal(t, before, held(), "seed %d, %v, %T, %v", seed, broken, from, cfg.Device)
	}
}
