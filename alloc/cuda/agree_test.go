//go:build cuda && cgo && linux

package cuda_test

import (
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/alloctest"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/internal/gpuemu"
)

// TestCacheAndDriverAgree breaks driver calls at random under a cache. After
// each step the driver must hold exactly the cache's segments, whatever failed.
func TestCacheAndDriverAgree(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Memory: 1 << 30}) {
		return
	}
	dev := open(t)
	machine := control(t)
	rapid.Check(t, func(t *rapid.T) {
		a := &agreement{dev: dev, machine: machine, cache: alloc.NewCache(dev, alloc.CacheConfig{})}
		t.Repeat(map[string]func(*rapid.T){"break": a.breakCall, "alloc": a.alloc, "free": a.free, "empty": a.empty, "": a.check})
		machine.Heal()
		for _, p := range a.live {
			require.NoError(t, a.cache.Free(p))
		}
		require.NoError(t, a.cache.Close())
		require.Zero(t, a.held(t).Buffers)
	})
}

type agreement struct {
	dev     *cuda.Device
	machine *gpuemu.Control
	cache   *alloc.Cache
	live    []alloc.Ptr
}

func (a *agreement) breakCall(t *rapid.T) {
	a.machine.Heal()
	require.NoError(t, a.machine.Fail(gpuemu.Fault{
		Function: rapid.SampledFrom([]string{"cuMemAlloc_v2", "cuMemFree_v2", "cuMemGetInfo_v2", "cuCtxPushCurrent_v2", "cuCtxPopCurrent_v2"}).Draw(t, "function"),
		From:     rapid.IntRange(1, 3).Draw(t, "call"),
		Onward:   rapid.Bool().Draw(t, "onward"),
		Code:     rapid.SampledFrom([]int{1, 2, 700, 999}).Draw(t, "code"),
	}))
}

func (a *agreement) alloc(t *rapid.T) {
	n := rapid.SampledFrom([]alloc.Bytes{0, 512, alloc.MiB, 5 * alloc.MiB, 30 * alloc.MiB, 300 * alloc.MiB}).Draw(t, "bytes")
	if p, err := a.cache.Alloc(n); err == nil {
		a.live = append(a.live, p)
	}
}

func (a *agreement) free(t *rapid.T) {
	if len(a.live) == 0 {
		t.Skip("nothing to free")
	}
	i := rapid.IntRange(0, len(a.live)-1).Draw(t, "index")
	require.NoError(t, a.cache.Free(a.live[i]), "a free does not reach the driver")
	a.live = append(a.live[:i], a.live[i+1:]...)
}

func (a *agreement) empty(*rapid.T) { _, _ = a.cache.Empty() }

func (a *agreement) check(t *rapid.T) {
	held, reserved := a.held(t), a.cache.Stats().Reserved
	require.EqualValues(t, reserved.Bytes.Current, held.Requested)
	require.EqualValues(t, reserved.Count.Current, held.Buffers)
	alloctest.Invariants(t, a.cache)
}

// held is what the driver says of this process.
func (a *agreement) held(t *rapid.T) gpuemu.Usage {
	usage, ok := a.machine.Usage(os.Getpid(), 0)
	require.True(t, ok)
	return usage
}
