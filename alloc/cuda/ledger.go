//go:build cuda && cgo

package cuda

import (
	"errors"
	"sync"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Registrar is the ledger that allocations enter and leave. A
// *tracker.MemTracker is one; K is its Kind, and what is entered has K's zero value.
//
// Register enters memory that the caller took from the driver. Withdraw takes
// it out; putBack undoes that, for a free that failed. The error is
// alloc.ErrUnknownPtr for an address that is not in.
type Registrar[K ~uint8] interface {
	Register(ptr alloc.Ptr, shape alloc.Shape, dtype alloc.DType, kind K) error
	Withdraw(ptr alloc.Ptr) (putBack func(), err error)
}

// MemAlloc is cu.MemAlloc, entered in the ledger. As with all of cu's package
// functions, a context must be current on the calling thread.
func MemAlloc[K ~uint8](tr Registrar[K], bytes int64) (cu.DevicePtr, error) {
	p, err := cu.MemAlloc(bytes)
	return entered(tr, p, err, bytes)
}

// MemAllocManaged is cu.MemAllocManaged, entered in the ledger with its whole
// size, wherever its pages are.
func MemAllocManaged[K ~uint8](tr Registrar[K], bytes int64, flags cu.MemAttachFlags) (cu.DevicePtr, error) {
	p, err := cu.MemAllocManaged(bytes, flags)
	return entered(tr, p, err, bytes)
}

// MemAllocPitch is cu.MemAllocPitch, entered in the ledger as height rows of
// pitch bytes: what the driver took.
func MemAllocPitch[K ~uint8](tr Registrar[K], width, height int64, elementSize uint) (p cu.DevicePtr, pitch int64, err error) {
	p, pitch, err = cu.MemAllocPitch(width, height, elementSize)
	p, err = entered(tr, p, err, height, pitch)
	return p, pitch, err
}

// MemFree is cu.MemFree, and takes the address out of the ledger first if it is in.
func MemFree[K ~uint8](tr Registrar[K], p cu.DevicePtr) error {
	return release(tr, p, func() error { return cu.MemFree(p) })
}

// entered enters what an allocation gave. Where the ledger refuses it, it is
// freed again and the refusal is the error: a caller sees no memory of which
// the ledger does not know.
func entered[K ~uint8](tr Registrar[K], p cu.DevicePtr, err error, dims ...int64) (cu.DevicePtr, error) {
	if err != nil {
		return p, err
	}
	if err := enter(tr, p, dims...); err != nil {
		return 0, errors.Join(err, cu.MemFree(p))
	}
	return p, nil
}

func enter[K ~uint8](tr Registrar[K], p cu.DevicePtr, dims ...int64) error {
	shape := make(alloc.Shape, len(dims))
	for i, d := range dims {
		shape[i] = int(d)
	}
	return tr.Register(alloc.Ptr(p), shape, alloc.Uint8, 0)
}

// release frees an address through the ledger, and one that is not in it all the same.
func release[K ~uint8](tr Registrar[K], p cu.DevicePtr, free func() error) error {
	putBack, unknown := tr.Withdraw(alloc.Ptr(p))
	err := free()
	if err != nil && unknown == nil {
		err = errors.Join(err, undone(putBack))
	}
	return err
}

// undone calls what Withdraw gave to undo it.
func undone(putBack func()) error {
	putBack()
	return nil
}

// book is what a tracked context has in the ledger.
type book[K ~uint8] struct {
	tr Registrar[K]

	mu   sync.Mutex
	live map[cu.DevicePtr]bool
	err  error // the first refusal of the ledger
}

func newBook[K ~uint8](tr Registrar[K]) *book[K] {
	return &book[K]{tr: tr, live: make(map[cu.DevicePtr]bool)}
}

// enter enters an address that the driver gave. A program that had cu.Context
// before must get its memory whatever the ledger says, so a refusal is kept for TrackErr.
func (b *book[K]) enter(p cu.DevicePtr, dims ...int64) {
	err := enter(b.tr, p, dims...)
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.live[p] = true
	} else if b.err == nil {
		b.err = err
	}
}

// leave frees an address through the ledger if it is in.
func (b *book[K]) leave(p cu.DevicePtr, free func() error) {
	putBack, ours := b.withdraw(p)
	if err := free(); err != nil && ours {
		b.restore(p, putBack)
	}
}

// leaveAll takes out what a context that is gone took with it.
func (b *book[K]) leaveAll() {
	b.mu.Lock()
	gone := b.live
	b.live = make(map[cu.DevicePtr]bool)
	b.mu.Unlock()
	for p := range gone {
		_, _ = b.tr.Withdraw(alloc.Ptr(p))
	}
}

// withdraw takes an address out of the ledger; false for one that is not in.
func (b *book[K]) withdraw(p cu.DevicePtr) (putBack func() error, ours bool) {
	b.mu.Lock()
	ours = b.live[p]
	delete(b.live, p)
	b.mu.Unlock()
	if !ours {
		return nil, false
	}
	undo, err := b.tr.Withdraw(alloc.Ptr(p))
	if err != nil {
		return nil, false // the ledger is closed
	}
	return func() error { return undone(undo) }, true
}

// restore undoes withdraw.
func (b *book[K]) restore(p cu.DevicePtr, putBack func() error) {
	err := putBack()
	b.mu.Lock()
	defer b.mu.Unlock()
	if err == nil {
		b.live[p] = true
	} else if b.err == nil {
		b.err = err
	}
}

func (b *book[K]) trackErr() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}
