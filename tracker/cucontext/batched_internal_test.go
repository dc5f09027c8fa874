//go:build cuda && cgo && linux

package cucontext

import (
	"io"
	"runtime"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// TestStillAllocatedOnAnyThread: the goroutine of a DoWork may have been moved to a thread
// that has no context, or another one.
func TestStillAllocatedOnAnyThread(t *testing.T) {
	gpu, err := sim.New(sim.Config{})
	require.NoError(t, err)
	defer gpu.Close()
	tr, err := tracker.New(tracker.Config{Device: gpu, Report: io.Discard})
	require.NoError(t, err)
	defer tr.Close()
	ctx := cu.NewContext(0, cu.SchedAuto)
	defer ctx.Close()
	b := TrackBatched(cu.NewBatchedContext(ctx, 0), tr).(*batched)
	p, err := ctx.MemAlloc(1000)
	require.NoError(t, err)

	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		assert.NoError(t, cu.SetCurrentContext(cu.CUContext{}))
		assert.True(t, b.stillAllocated(p))
		ctx.MemFree(p)
		assert.NoError(t, ctx.Error())
		assert.False(t, b.stillAllocated(p))
	}()
	<-done
}
