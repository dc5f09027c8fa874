//go:build cuda && cgo

package cucontext

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Track returns ctx with its allocations in the ledger: MemAlloc, MemAllocManaged and MemAllocPitch
// add them, MemFree removes them, and Close removes all that the context freed. In every other
// respect the result behaves as ctx. It can also free addresses that were allocated before Track,
// or elsewhere. The ledger has the bytes that were asked for, or for a pitched allocation height x
// pitch. With and Describe say what the memory is for.
//
// An allocation that finds no memory fails with a *tracker.OutOfMemoryError, which unwraps to ctx's
// own error.
//
// If ctx is a *cu.BatchedContext, the result is a Batched. Track that, and not the context under
// it, because a batch does not call the methods of that context.
//
// An error of the ledger never disturbs the program. The result's method TrackErr() error returns
// the first one, or the first double free, which is also logged.
//
// Only one goroutine at a time may use a cu.Context, and the same holds for the result.
func Track(ctx cu.Context, tr *tracker.MemTracker) cu.Context {
	if b, ok := ctx.(*cu.BatchedContext); ok {
		return TrackBatched(b, tr)
	}
	return &tracked{Context: ctx, ledger: newContextLedger(tr)}
}

type tracked struct {
	cu.Context
	ledger *contextLedger
	as     func(bytes int64) Tensor // nil: bytes
}

func (t *tracked) described(as func(int64) Tensor) cu.Context {
	return &tracked{t.Context, t.ledger, as}
}

// TrackErr returns the first error of the ledger, for example that it is closed.
func (t *tracked) TrackErr() error { return t.ledger.trackErr() }

// registered registers the result of an allocation, or explains its error.
func (t *tracked) registered(p cu.DevicePtr, memory alloc.Memory, err error, dims ...int64) error {
	if err != nil {
		return explainError(t.ledger.tr, err, t.as, dims...)
	}
	t.ledger.register(p, memory, t.as, dims...)
	return nil
}

func (t *tracked) MemAlloc(bytes int64) (cu.DevicePtr, error) {
	p, err := t.Context.MemAlloc(bytes)
	return p, t.registered(p, alloc.DeviceMemory, err, bytes)
}

func (t *tracked) MemAllocManaged(bytes int64, flags cu.MemAttachFlags) (cu.DevicePtr, error) {
	p, err := t.Context.MemAllocManaged(bytes, flags)
	return p, t.registered(p, alloc.ManagedMemory, err, bytes)
}

func (t *tracked) MemAllocPitch(width, height int64, elementSize uint) (cu.DevicePtr, int64, error) {
	p, pitch, err := t.Context.MemAllocPitch(width, height, elementSize)
	return p, pitch, t.registered(p, alloc.DeviceMemory, err, height, max(pitch, width))
}

// MemFree has no result; like the context's own, it leaves its error in Error.
func (t *tracked) MemFree(p cu.DevicePtr) {
	t.ledger.free(p, func() error {
		t.Context.MemFree(p)
		return t.Context.Error()
	})
}

func (t *tracked) Close() error {
	err := t.Context.Close()
	if err == nil {
		t.ledger.unregisterAll()
	}
	return err
}

// Tensor describes an allocation. A Shape must have as many bytes as are allocated; nil means
// as many elements as there are bytes. A pitched allocation has bytes between its rows, so
// only Kind and Label count for it.
type Tensor struct {
	Kind  tracker.Kind
	Shape alloc.Shape
	DType alloc.DType
	Label string
}

// With returns a tracked context, from Track or TrackBatched, that describes its allocations by
// what. It shares the memory of ctx: either can free it. It panics if ctx is not tracked.
func With[C cu.Context](ctx C, what Tensor) C {
	return Describe(ctx, func(int64) Tensor { return what })
}

// Describe is With for a function that is asked, on the calling goroutine, before each
// allocation is entered.
func Describe[C cu.Context](ctx C, describe func(bytes int64) Tensor) C {
	t, ok := any(ctx).(interface {
		described(func(int64) Tensor) cu.Context
	})
	if !ok {
		panic(fmt.Sprintf("cucontext: describe: a %T is not tracked: call Track first", ctx))
	}
	return t.described(describe).(C)
}

// describe returns the tensor of an allocation with these dimensions in bytes. problem says why it is not
// the described one.
func describe(as func(int64) Tensor, dims ...int64) (t Tensor, problem error) {
	bytes := int64(1)
	shape := make(alloc.Shape, len(dims))
	for i, d := range dims {
		shape[i] = int(d)
		bytes *= d
	}
	if as != nil {
		t = as(bytes)
	}
	if t.Shape == nil || len(dims) > 1 {
		t.Shape, t.DType = shape, alloc.Uint8
		return t, nil
	}
	if n, err := t.Shape.Bytes(t.DType); err != nil || int64(n) != bytes {
		problem = fmt.Errorf("an allocation of %d bytes was described as %v %v, which has %d: it is entered as bytes", bytes, t.Shape, t.DType, n)
		t.Shape, t.DType = shape, alloc.Uint8
	}
	return t, problem
}

// FromContext returns a cuda.Device over a context that the program already has. The
// program keeps the context: closing the Device leaves it alone. The context must outlive it.
// The errors are cuda.Open's.
func FromContext(ctx cu.Context) (cuda.Device, error) {
	handle := ctx.CUDAContext()
	return cuda.FromHandle(*(*uintptr)(unsafe.Pointer(&handle))) // its only field is the CUcontext
}

var _ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.CUContext{})]byte{}
