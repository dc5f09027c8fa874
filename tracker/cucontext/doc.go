// Package cucontext tracks the allocations of programs that use gorgonia.org/cu. One line
// does it:
//
//	ctx = cucontext.Track(ctx, tr) // its MemAlloc, MemFree, ... are in tr's reports now
//
// The tracker can work on the same context, which saves the memory of a second one:
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
// The package needs the build tag cuda, cgo, and the cuda.h of CUDA 11 or 12, because
// gorgonia.org/cu does. scripts/cuda-headers finds or fetches cuda.h:
//
//	settings=$(scripts/cuda-headers) && eval "$settings" && go build -tags cuda
//
// Without the tag only this text is there. A program that links gorgonia.org/cu does not
// start where libcuda.so.1 is missing, and its init ends it, with exit status 1, where no
// device answers. Package cuda has none of these needs: prefer it where you do not use
// cu.Context.
//
// # The functions
//
//	func Track(ctx cu.Context, tr *tracker.MemTracker) cu.Context
//
// Track returns ctx with its allocations in the ledger: MemAlloc, MemAllocManaged and MemAllocPitch
// enter them, MemFree takes them out, and Close takes out what the context took with it. In every
// other respect it behaves as ctx does. Addresses from before Track, or from elsewhere, can be
// freed through it. An allocation that finds no memory fails with a *tracker.OutOfMemoryError,
// which says who holds the memory and what to do, and unwraps to ctx's own error. The result has a
// method TrackErr() error. It returns the first problem that no call of the program returns, which
// is also logged: the tracker is closed, an address was freed twice (alloc.ErrDoubleFree), or a
// description does not fit.
//
//	func TrackBatched(ctx *cu.BatchedContext, tr *tracker.MemTracker) Batched
//
// TrackBatched is Track for a batched context, and has its further methods AllocAndCopy,
// DoWork and Run. Track does the same with a batched context. Where DoWork finds that a
// MemFree has failed, the buffer is in the ledger again, with its old call stack.
//
//	func With[C cu.Context](ctx C, what Tensor) C
//	func Describe[C cu.Context](ctx C, describe func(bytes int64) Tensor) C
//
// With returns the tracked context ctx; what is allocated through the result is entered with
// the kind, shape, dtype and label of a Tensor. Describe asks a function for each allocation.
// Other allocations are entered as bytes of kind Unspecified. Both panic if ctx is not
// tracked.
//
//	type Tensor struct {
//		Kind  tracker.Kind
//		Shape alloc.Shape // nil: as many elements as there are bytes
//		DType alloc.DType
//		Label string
//	}
//
//	func MakeArray(ctx cu.Context, desc cu.ArrayDesc) (cu.Array, error)
//	func Make3DArray(ctx cu.Context, desc cu.Array3Desc) (cu.Array, error)
//
// These are gorgonia.org/cu's functions of the same names, in a tracked context and with its
// ledger: an array is entered at its handle. The context's DestroyArray takes it out.
//
//	func FromContext(ctx cu.Context) (cuda.Device, error)
//
// FromContext returns a cuda.Device over a context that the program already has. The program
// keeps the context: closing the Device leaves it alone.
//
//	func MemAlloc(tr *tracker.MemTracker, bytes int64) (cu.DevicePtr, error)
//	func MemAllocManaged(tr *tracker.MemTracker, bytes int64, flags cu.MemAttachFlags) (cu.DevicePtr, error)
//	func MemAllocPitch(tr *tracker.MemTracker, width, height int64, elementSize uint) (p cu.DevicePtr, pitch int64, err error)
//	func MemFree(tr *tracker.MemTracker, p cu.DevicePtr) error
//
// These are gorgonia.org/cu's functions of the same names, with the ledger. A context must be
// current on the calling thread.
//
// One goroutine at a time may use a cu.Context, and what these functions return.
package cucontext
