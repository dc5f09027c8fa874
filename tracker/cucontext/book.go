//go:build cuda && cgo

package cucontext

import (
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// book is a tracked context's part of the ledger.
type book struct {
	tr *tracker.MemTracker

	mu    sync.Mutex
	live  map[cu.DevicePtr]bool
	freed map[cu.DevicePtr]bool // addresses that were freed and, mostly, not allocated again since
	err   error                 // the first that was kept
}

// maxFreed bounds how many freed addresses are remembered.
const maxFreed = 1 << 14

func newBook(tr *tracker.MemTracker) *book {
	return &book{tr: tr, live: make(map[cu.DevicePtr]bool), freed: make(map[cu.DevicePtr]bool)}
}

// keep keeps an error for TrackErr. A program that had cu.Context before must get its memory
// whatever the ledger says.
func (b *book) keep(err error) {
	b.mu.Lock()
	first := b.err == nil && err != nil
	if first {
		b.err = err
	}
	b.mu.Unlock()
	if first {
		slog.Warn("gpumemtrack: a tracked context's report is not complete, or the program has an error", "err", err)
	}
}

func (b *book) trackErr() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// enter enters an address that the driver gave.
func (b *book) enter(p cu.DevicePtr, memory alloc.Memory, as func(int64) Tensor, dims ...int64) {
	t, problem := describe(as, dims...)
	b.enterAs(p, memory, t, problem)
}

// enterAs enters an address as a tensor; problem says why it is not the one that was described.
func (b *book) enterAs(p cu.DevicePtr, memory alloc.Memory, t Tensor, problem error) {
	err := enter(b.tr, p, memory, t)
	b.keep(errors.Join(problem, err))
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.freed, p)
	if err == nil {
		b.live[p] = true
	}
}

// withdraw takes an address out of the ledger; false for one that is not in.
func (b *book) withdraw(p cu.DevicePtr) (putBack func() error, ours bool) {
	b.mu.Lock()
	ours = b.live[p]
	delete(b.live, p)
	if ours {
		if len(b.freed) >= maxFreed {
			clear(b.freed)
		}
		b.freed[p] = true
	}
	b.mu.Unlock()
	if !ours {
		return nil, false
	}
	putBack, err := b.tr.Unregister(alloc.Ptr(p))
	return putBack, err == nil // the tracker may be closed
}

// restore undoes withdraw.
func (b *book) restore(p cu.DevicePtr, putBack func() error) {
	err := putBack()
	b.keep(err)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.freed, p)
	if err == nil {
		b.live[p] = true
	}
}

// leave frees an address through the ledger if it is in.
func (b *book) leave(p cu.DevicePtr, free func() error) {
	putBack, ours := b.withdraw(p)
	switch err := free(); {
	case err == nil:
	case ours:
		b.restore(p, putBack)
	case errors.Is(err, cu.InvalidValue):
		b.tellDoubleFree(p, err)
	}
}

// tellDoubleFree keeps the error of a free of an address that is not in the ledger, if
// it was freed before.
func (b *book) tellDoubleFree(p cu.DevicePtr, err error) {
	b.mu.Lock()
	before := b.freed[p]
	b.mu.Unlock()
	switch {
	case !before:
	case err == nil:
		b.keep(fmt.Errorf("free %v: %w", alloc.Ptr(p), alloc.ErrDoubleFree))
	default:
		b.keep(fmt.Errorf("free %v: %w (%w)", alloc.Ptr(p), alloc.ErrDoubleFree, err))
	}
}

// leaveAll takes out what a context that is gone took with it.
func (b *book) leaveAll() {
	b.mu.Lock()
	gone := b.live
	b.live = make(map[cu.DevicePtr]bool)
	b.mu.Unlock()
	for p := range gone {
		_, _ = b.tr.Unregister(alloc.Ptr(p))
	}
}
