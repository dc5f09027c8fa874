//go:build cuda && cgo

package cucontext

import (
	"fmt"
	"runtime"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Batched is a *cu.BatchedContext with its allocations in the ledger. Make one with TrackBatched;
// the rules of Track apply. An allocation waits for its batch, and its error is the context's,
// explained as Track's errors are.
//
// MemFree only queues the free, as in a cu.BatchedContext. The record leaves the ledger at that
// moment. If DoWork finds that the free failed, the record is entered again with its old call
// stack. For that, call DoWork and Run here, not on the original.
//
// The original keeps only the results of the last batch that it sent to the driver. If one DoWork
// sent several batches, a failed free in an earlier one goes unnoticed, unless an allocation ended
// that batch.
type Batched interface {
	cu.Context
	// AllocAndCopy allocates and copies; where only the copy failed there is memory all the same.
	AllocAndCopy(host unsafe.Pointer, bytes int64) (cu.DevicePtr, error)
	// LaunchAndSync is the original's.
	LaunchAndSync(f cu.Function, gridX, gridY, gridZ, blockX, blockY, blockZ, sharedBytes int, s cu.Stream, params []unsafe.Pointer)
	// WorkAvailable is the original's: it tells when to call DoWork.
	WorkAvailable() <-chan struct{}
	// DoWork does the work queued, on the calling thread, and settles the frees that were queued
	// before it began.
	DoWork()
	// Errors and FirstError are the original's, for the last batch.
	Errors() error
	FirstError() error
	// TrackErr returns the first error of the ledger, for example that it is closed; nil if there was
	// none.
	TrackErr() error
}

// batched is a Batched.
type batched struct {
	*cu.BatchedContext
	ledger *contextLedger
	frees  *freeQueue
	as     func(bytes int64) Tensor // nil: bytes
}

// String names the tracker.
func (b *batched) String() string { return fmt.Sprintf("batched context of %v", b.ledger.tr) }

// TrackBatched does what Track does, for a batched context, with its further methods.
func TrackBatched(ctx *cu.BatchedContext, tr *tracker.MemTracker) Batched {
	b := newContextLedger(tr)
	return &batched{BatchedContext: ctx, ledger: b, frees: newFreeQueue(b.restore)}
}

func (b *batched) described(as func(int64) Tensor) cu.Context {
	return &batched{b.BatchedContext, b.ledger, b.frees, as}
}

func (b *batched) TrackErr() error { return b.ledger.trackErr() }

// allocated makes an allocation call, which waits for its batch, and enters the address that it
// returned. The error may belong to another call of the batch, so only the address tells whether
// there is memory.
func (b *batched) allocated(memory alloc.Memory, call func() (cu.DevicePtr, error), bytes int64) (cu.DevicePtr, error) {
	b.frees.beginAlloc()
	p, err := call()
	b.frees.endAlloc(p, err)
	if p == 0 {
		return 0, explainError(b.ledger.tr, err, b.as, bytes)
	}
	b.ledger.register(p, memory, b.as, bytes)
	return p, err
}

func (b *batched) MemAlloc(bytes int64) (cu.DevicePtr, error) {
	return b.allocated(alloc.DeviceMemory, func() (cu.DevicePtr, error) { return b.BatchedContext.MemAlloc(bytes) }, bytes)
}

func (b *batched) MemAllocManaged(bytes int64, flags cu.MemAttachFlags) (cu.DevicePtr, error) {
	return b.allocated(alloc.ManagedMemory, func() (cu.DevicePtr, error) { return b.BatchedContext.MemAllocManaged(bytes, flags) }, bytes)
}

func (b *batched) AllocAndCopy(host unsafe.Pointer, bytes int64) (cu.DevicePtr, error) {
	return b.allocated(alloc.DeviceMemory, func() (cu.DevicePtr, error) { return b.BatchedContext.AllocAndCopy(host, bytes) }, bytes)
}

// MemAllocPitch is not batched: it goes to the context underneath.
func (b *batched) MemAllocPitch(width, height int64, elementSize uint) (cu.DevicePtr, int64, error) {
	b.frees.beginAlloc()
	p, pitch, err := b.BatchedContext.MemAllocPitch(width, height, elementSize)
	b.frees.endAlloc(p, nil) // no call of a batch failed
	if err != nil {
		return p, pitch, explainError(b.ledger.tr, err, b.as, height, max(pitch, width))
	}
	b.ledger.register(p, alloc.DeviceMemory, b.as, height, pitch)
	return p, pitch, nil
}

// MemFree queues the free.
func (b *batched) MemFree(p cu.DevicePtr) {
	undo, found := b.ledger.unregister(p)
	if !found {
		b.ledger.reportDoubleFree(p, nil)
		b.BatchedContext.MemFree(p)
		return
	}
	f := b.frees.add(p, undo)
	b.BatchedContext.MemFree(p)
	b.frees.queued(f)
}

func (b *batched) DoWork() {
	pending := b.frees.pending()
	b.BatchedContext.DoWork()
	b.frees.reconcile(pending, b.Errors() != nil, b.stillAllocated)
}

// Run does the work of this context, and of the one underneath, as it comes. It ends when the
// context is closed, or when a batch fails and errs is nil.
func (b *batched) Run(errs chan error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	for {
		select {
		case <-b.WorkAvailable():
			b.DoWork()
			if err := b.Errors(); err != nil {
				if errs == nil {
					return err
				}
				errs <- err
			}
		case work, open := <-b.Work():
			if !open {
				return nil
			}
			b.ErrChan() <- work()
		}
	}
}

// Close closes the context; its memory leaves the ledger. If the context returns an error, so does
// Close, and the ledger is unchanged.
func (b *batched) Close() error {
	err := b.BatchedContext.Close()
	if err != nil {
		return err
	}
	b.frees.clear()
	b.ledger.unregisterAll()
	return nil
}

// stillAllocated asks the driver whether an address is allocated. It makes the context current
// first, since DoWork may be called on any thread.
func (b *batched) stillAllocated(p cu.DevicePtr) bool {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := cu.PushCurrentCtx(b.CUDAContext()); err != nil {
		return deviceLost(err)
	}
	_, base, err := p.AddressRange()
	_, _ = cu.PopCurrentCtx()
	return err == nil && base == p || err != nil && deviceLost(err)
}
