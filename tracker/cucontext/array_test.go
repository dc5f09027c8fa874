//go:build cuda && cgo && linux

package cucontext_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/cucontext"
)

// kindsOf is the ledger: the type of memory at each address.
func kindsOf(tr *tracker.MemTracker) []alloc.Memory {
	var kinds []alloc.Memory
	for a := range tr.Snapshot().Allocations() {
		kinds = append(kinds, a.Memory)
	}
	return kinds
}

func TestKindsOfMemory(t *testing.T) {
	if !gpuemu.Emulated() {
		t.Skip("a real GPU's arrays depend on it")
	}
	tr := newTracker(t)
	contexts := map[string]cu.Context{"plain": cucontext.Track(newContext(t), tr), "batched": cucontext.TrackBatched(cu.NewBatchedContext(newContext(t), 0), tr)}
	for name, ctx := range contexts {
		t.Run(name, func(t *testing.T) {
			what := cucontext.Tensor{Kind: tracker.Input, Label: "image"}
			array, err := cucontext.MakeArray(cucontext.With(ctx, what), cu.ArrayDesc{Width: 640, Height: 480, Format: cu.Float32, NumChannels: 4})
			require.NoError(t, err)
			for a := range tr.Snapshot().Allocations() {
				require.Equal(t, alloc.ArrayMemory, a.Memory)
				require.Equal(t, alloc.Shape{480, 640, 4}, a.Shape)
				require.Equal(t, alloc.Float32, a.DType)
				require.Equal(t, tracker.Input, a.Kind)
				require.Equal(t, "image", a.Label)
			}
			volume, err := cucontext.Make3DArray(ctx, cu.Array3Desc{Width: 8, Height: 4, Depth: 2, Format: cu.Uint8, NumChannels: 1})
			require.NoError(t, err)
			require.Len(t, kindsOf(tr), 2)
			ctx.DestroyArray(array)
			ctx.DestroyArray(volume)
			require.Empty(t, kindsOf(tr))
			require.NoError(t, trackErr(ctx))

			_, err = cucontext.MakeArray(ctx, cu.ArrayDesc{Width: 1 << 30, Height: 1 << 10, Format: cu.Float32, NumChannels: 1})
			require.ErrorIs(t, err, alloc.ErrOutOfMemory)
			require.ErrorIs(t, err, cu.OutOfMemory)
			_, err = cucontext.MakeArray(ctx, cu.ArrayDesc{Format: cu.Float32, NumChannels: 1})
			require.ErrorIs(t, err, cu.InvalidValue)
		})
	}
	ctx := contexts["plain"]
	m, err := ctx.MemAllocManaged(1000, cu.AttachGlobal)
	require.NoError(t, err)
	require.Equal(t, []alloc.Memory{alloc.ManagedMemory}, kindsOf(tr))
	ctx.MemFree(m)
	d, err := ctx.MemAlloc(1000)
	require.NoError(t, err)
	require.Equal(t, []alloc.Memory{alloc.DeviceMemory}, kindsOf(tr))
	ctx.MemFree(d)
	require.Panics(t, func() { _, _ = cucontext.MakeArray(newContext(t), cu.ArrayDesc{}) })
}
