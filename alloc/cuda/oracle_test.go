//go:build linux

package cuda_test

import (
	"flag"
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// TestLedgerCacheAndDriverAgree breaks driver calls at random under a tracker, with a
// cache and without. After each step the ledger must hold exactly the buffers that the
// program got and did not free, and the driver's own list must be the cache's segments or
// the ledger. A failure prints the program and its seed; -long tries many more.
func TestLedgerCacheAndDriverAgree(t *testing.T) {
	if gpuemu.Rerun(t, gpuemu.Options{Memory: 1 << 30}) {
		return
	}
	if *trackertest.Long {
		require.NoError(t, flag.Set("rapid.checks", "10000"))
	}
	dev := open(t)
	machine := control(t)
	rapid.Check(t, func(t *rapid.T) {
		tr, err := tracker.New(tracker.Config{Device: dev, NoCache: rapid.Bool().Draw(t, "no cache"), Report: io.Discard})
		require.NoError(t, err)
		a := &agreement{machine: machine, tr: tr}
		t.Repeat(map[string]func(*rapid.T){"break": a.breakCall, "alloc": a.alloc, "free": a.free, "clear": a.clear, "": a.check})
		machine.Heal()
		for _, buf := range a.live {
			require.NoError(t, buf.Free())
		}
		require.NoError(t, tr.Close())
		live, err := gpuemu.Live()
		require.NoError(t, err)
		require.Empty(t, live)
	})
}

type agreement struct {
	machine *gpuemu.Control
	tr      *tracker.MemTracker
	live    []*tracker.Buffer
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
	n := rapid.SampledFrom([]alloc.Bytes{1, 512, alloc.MiB, 5 * alloc.MiB, 30 * alloc.MiB, 300 * alloc.MiB}).Draw(t, "bytes")
	if buf, err := a.tr.AllocBytes(n, tracker.Activation); err == nil {
		a.live = append(a.live, buf)
	}
}

func (a *agreement) free(t *rapid.T) {
	if len(a.live) == 0 {
		t.Skip("nothing to free")
	}
	i := rapid.IntRange(0, len(a.live)-1).Draw(t, "index")
	if a.live[i].Free() == nil {
		a.live = slices.Delete(a.live, i, i+1)
	}
}

func (a *agreement) clear(*rapid.T) { _, _ = a.tr.ClearCache() }

func (a *agreement) check(t *rapid.T) {
	var want mem.Tally
	for _, buf := range a.live {
		want = want.Add(mem.Tally{Count: 1, Bytes: buf.Bytes()})
	}
	s := a.tr.Snapshot()
	trackertest.RequireExact(t, s)
	require.Equal(t, want, s.Live)
	live, err := gpuemu.Live()
	require.NoError(t, err)
	own := make(map[uint64]uint64)
	cache, ok := a.tr.Device().(*cache.Cache)
	if !ok {
		for a := range s.Allocations() {
			own[uint64(a.Ptr)] = uint64(a.Requested)
		}
		require.Equal(t, own, live, "the ledger")
		return
	}
	for segment := range cache.Segments() {
		own[uint64(segment.Ptr)] = uint64(segment.Size)
	}
	require.Equal(t, own, live, "the cache's segments")
	cachetest.Invariants(t, cache)
}
