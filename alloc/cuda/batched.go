//go:build cuda && cgo

package cuda

import (
	"runtime"
	"sync"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Batched is a *cu.BatchedContext with its allocations in the ledger. Make one
// with TrackBatched; the rules are Track's.
//
// Its MemFree only queues, as the original's does: the record leaves the ledger
// then, and comes back, with its old call stack, if a later DoWork finds that the
// free failed. For that, DoWork and Run must be called here, not on the original.
type Batched[K ~uint8] struct {
	*cu.BatchedContext
	book *book[K]

	mu      sync.Mutex
	queued  []queuedFree
	suspect bool // a call since the last DoWork returned an error
}

// TrackBatched is Track for a batched context, with its further methods.
func TrackBatched[K ~uint8](ctx *cu.BatchedContext, tr Registrar[K]) *Batched[K] {
	return &Batched[K]{BatchedContext: ctx, book: newBook(tr)}
}

// TrackErr is the first refusal of the ledger, for example that it is closed.
func (b *Batched[K]) TrackErr() error { return b.book.trackErr() }

// entered enters what a call that waited for its batch gave. Its error may be that of
// another call of the batch, so the address alone tells whether there is memory.
func (b *Batched[K]) entered(p cu.DevicePtr, err error, bytes int64) (cu.DevicePtr, error) {
	if err != nil {
		b.mu.Lock()
		b.suspect = true
		b.mu.Unlock()
	}
	if p != 0 {
		b.book.enter(p, bytes)
	}
	return p, err
}

func (b *Batched[K]) MemAlloc(bytes int64) (cu.DevicePtr, error) {
	p, err := b.BatchedContext.MemAlloc(bytes)
	return b.entered(p, err, bytes)
}

func (b *Batched[K]) MemAllocManaged(bytes int64, flags cu.MemAttachFlags) (cu.DevicePtr, error) {
	p, err := b.BatchedContext.MemAllocManaged(bytes, flags)
	return b.entered(p, err, bytes)
}

// AllocAndCopy allocates and copies; where only the copy failed there is memory all the same.
func (b *Batched[K]) AllocAndCopy(host unsafe.Pointer, bytes int64) (cu.DevicePtr, error) {
	p, err := b.BatchedContext.AllocAndCopy(host, bytes)
	return b.entered(p, err, bytes)
}

// MemAllocPitch is not batched: it goes to the context underneath.
func (b *Batched[K]) MemAllocPitch(width, height int64, elementSize uint) (cu.DevicePtr, int64, error) {
	p, pitch, err := b.BatchedContext.MemAllocPitch(width, height, elementSize)
	if err == nil {
		b.book.enter(p, height, pitch)
	}
	return p, pitch, err
}

// MemFree queues the free.
func (b *Batched[K]) MemFree(p cu.DevicePtr) {
	if putBack, ours := b.book.withdraw(p); ours {
		b.mu.Lock()
		b.queued = append(b.queued, queuedFree{p, putBack})
		b.mu.Unlock()
	}
	b.BatchedContext.MemFree(p)
}

// DoWork does the work queued, on the calling thread, and settles the frees
// that were queued before it began.
func (b *Batched[K]) DoWork() {
	b.mu.Lock()
	frees := b.queued
	b.queued = nil
	b.mu.Unlock()

	b.BatchedContext.DoWork()

	b.mu.Lock()
	suspect := b.suspect || b.Errors() != nil
	b.suspect = false
	b.mu.Unlock()
	for _, f := range frees {
		if suspect && b.book.stillAllocated(f.ptr) {
			b.book.restore(f)
		}
	}
}

// Run does work as it comes, and the work of the context underneath, until a
// batch fails and errs is nil, or the context is closed.
func (b *Batched[K]) Run(errs chan error) error {
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

// Close closes the context; its memory leaves the ledger with it.
func (b *Batched[K]) Close() error {
	err := b.BatchedContext.Close()
	if err != nil {
		return err
	}
	b.mu.Lock()
	b.queued = nil
	b.mu.Unlock()
	b.book.leaveAll()
	return nil
}

// queuedFree is a free of which the ledger waits to hear whether it failed.
type queuedFree struct {
	ptr     cu.DevicePtr
	putBack func()
}

// withdraw takes an address out of the ledger; false for one that is not in.
func (b *book[K]) withdraw(p cu.DevicePtr) (putBack func(), ours bool) {
	b.mu.Lock()
	ours = b.live[p]
	delete(b.live, p)
	b.mu.Unlock()
	if !ours {
		return nil, false
	}
	putBack, err := b.tr.Withdraw(alloc.Ptr(p))
	return putBack, err == nil // the ledger may be closed
}

// restore undoes withdraw.
func (b *book[K]) restore(f queuedFree) {
	f.putBack()
	b.mu.Lock()
	defer b.mu.Unlock()
	b.live[f.ptr] = true
}

// stillAllocated asks the driver about an address whose free may have failed.
// One that we were given anew since then was freed. The context must be current.
func (b *book[K]) stillAllocated(p cu.DevicePtr) bool {
	if b.has(p) {
		return false
	}
	_, base, err := p.AddressRange()
	return err == nil && base == p || err != nil && lostTo(err)
}

// lostTo: of a lost device the driver says nothing more, and nothing was freed.
func lostTo(err error) bool {
	code, ok := Code(err)
	return ok && lost[code]
}
