//go:build cuda && cgo

package cuda

import (
	"gorgonia.org/cu"
)

// Track returns ctx with its allocations in the ledger: MemAlloc, MemAllocManaged
// and MemAllocPitch enter them, MemFree takes them out, and Close takes out
// what the context took with it. In every other respect it is ctx: a call that
// fails, fails in the same way, and addresses from before Track, or from elsewhere,
// are freed as ever. Allocations are entered with the bytes asked for, a pitched one
// with height x pitch.
//
// If ctx is a *cu.BatchedContext, so in effect is the result: a *Batched. Track that, and not
// the context under it, whose methods a batch does not call. A refusal of the
// ledger never disturbs the program; the result's method TrackErr() error has the first one.
//
// A cu.Context may be used by one goroutine at a time; so may the result.
func Track[K ~uint8](ctx cu.Context, tr Registrar[K]) cu.Context {
	if batched, ok := ctx.(*cu.BatchedContext); ok {
		return TrackBatched(batched, tr)
	}
	return &tracked[K]{Context: ctx, book: newBook(tr)}
}

type tracked[K ~uint8] struct {
	cu.Context
	book *book[K]
}

// TrackErr is the first refusal of the ledger, for example that it is closed.
func (t *tracked[K]) TrackErr() error { return t.book.trackErr() }

func (t *tracked[K]) MemAlloc(bytes int64) (cu.DevicePtr, error) {
	p, err := t.Context.MemAlloc(bytes)
	if err == nil {
		t.book.enter(p, bytes)
	}
	return p, err
}

func (t *tracked[K]) MemAllocManaged(bytes int64, flags cu.MemAttachFlags) (cu.DevicePtr, error) {
	p, err := t.Context.MemAllocManaged(bytes, flags)
	if err == nil {
		t.book.enter(p, bytes)
	}
	return p, err
}

func (t *tracked[K]) MemAllocPitch(width, height int64, elementSize uint) (cu.DevicePtr, int64, error) {
	p, pitch, err := t.Context.MemAllocPitch(width, height, elementSize)
	if err == nil {
		t.book.enter(p, height, pitch)
	}
	return p, pitch, err
}

// MemFree has no result; like the context's own, it leaves its error in Error.
func (t *tracked[K]) MemFree(p cu.DevicePtr) {
	t.book.leave(p, func() error {
		t.Context.MemFree(p)
		return t.Context.Error()
	})
}

func (t *tracked[K]) Close() error {
	err := t.Context.Close()
	if err == nil {
		t.book.leaveAll()
	}
	return err
}
