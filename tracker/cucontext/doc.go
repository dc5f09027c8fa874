// Package cucontext has the allocations of programs that use gorgonia.org/cu tracked. One
// line does it:
//
//	ctx = cucontext.Track(ctx, tr) // its MemAlloc, MemFree, ... are in tr's reports now
//
// The tracker may work on the same context, which saves the memory of a second one:
//
//	var ctx cu.Context = cu.NewContext(0, cu.SchedAuto)
//	dev, err := cucontext.FromContext(ctx)
//	tr, err := tracker.New(tracker.Config{Device: dev})
//	ctx = cucontext.Track(ctx, tr)
//	defer ctx.Close()
//
//	w, err := cucontext.With(ctx, cucontext.Tensor{
//		Kind: tracker.Parameter, Shape: alloc.Shape{64, 3, 7, 7}, DType: alloc.Float32, Label: "conv1.weight",
//	}).MemAlloc(64 * 3 * 7 * 7 * 4)
//	ctx.MemFree(w)
//
// # Building
//
// All but this text needs the build tag cuda, cgo, and cuda.h of CUDA 11 or 12, which
// gorgonia.org/cu is compiled with; scripts/cuda-headers finds or fetches it. A program that
// links gorgonia.org/cu does not start where libcuda.so.1 is missing, and ends from
// its init, with exit status 1, where no device answers. Package cuda has neither need
// nor effect: prefer it where cu.Context is not used.
//
// # The functions
//
//	func Track(ctx cu.Context, tr *tracker.MemTracker) cu.Context
//
// Track returns ctx with its allocations in the ledger: MemAlloc, MemAllocManaged and
// MemAllocPitch enter them, MemFree takes them out, and Close takes out what the context
// took with it. In every other respect it is ctx, and addresses from before Track, or from
// elsewhere, are freed as ever. An allocation for which there is no memory fails with
// a *tracker.OutOfMemoryError, which tells who holds the memory and what to do, and unwraps to
// ctx's own error. The result's method TrackErr() error has the first thing that went
// wrong beside the program's own calls, which is also logged: the tracker is closed; an address
// was freed twice (alloc.ErrDoubleFree); a description does not fit.
//
//	func TrackBatched(ctx *cu.BatchedContext, tr *tracker.MemTracker) *Batched
//
// TrackBatched is Track for a batched context, with its further methods AllocAndCopy, DoWork
// and Run; Track, given one, returns the same. A MemFree that DoWork finds to have failed
// puts the buffer back, with its old call stack.
//
//	func With[C cu.Context](ctx C, what Tensor) C
//	func Describe[C cu.Context](ctx C, describe func(bytes int64) Tensor) C
//
// With returns a tracked context whose allocations are entered as what: the kind, shape,
// dtype and label of a Tensor. Describe asks a function of the program's for each
// allocation. What neither describes is bytes of kind Unspecified.
//
//	type Tensor struct {
//		Kind  tracker.Kind
//		Shape alloc.Shape // nil: as many elements as there are bytes
//		DType alloc.DType
//		Label string
//	}
//
//	func FromContext(ctx cu.Context) (*cuda.Device, error)
//
// FromContext is a cuda.Device over a context that the program already has, and
// keeps: closing the Device leaves the context alone.
//
//	func MemAlloc(tr *tracker.MemTracker, bytes int64) (cu.DevicePtr, error)
//	func MemAllocManaged(tr *tracker.MemTracker, bytes int64, flags cu.MemAttachFlags) (cu.DevicePtr, error)
//	func MemAllocPitch(tr *tracker.MemTracker, width, height int64, elementSize uint) (p cu.DevicePtr, pitch int64, err error)
//	func MemFree(tr *tracker.MemTracker, p cu.DevicePtr) error
//
// These are gorgonia.org/cu's package functions, for programs that call those: a context must
// be current on the calling thread.
//
//	func Code(err error) (code int, ok bool)
//
// Code returns the driver's number of an error that came from gorgonia.org/cu, whose own
// type has no exported name.
//
// A cu.Context may be used by one goroutine at a time; so may what these functions return.
package cucontext
