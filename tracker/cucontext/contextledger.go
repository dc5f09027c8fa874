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

// contextLedger is a tracked context's part of the tracker's ledger.
type contextLedger struct {
	tr *tracker.MemTracker

	mu    sync.Mutex
	live  map[cu.DevicePtr]bool
	freed map[cu.DevicePtr]bool // freed addresses, few of which were allocated again since
	err   error                 // the first one
}

// maxFreed bounds the number of freed addresses that are kept.
const maxFreed = 1 << 14

func newContextLedger(tr *tracker.MemTracker) *contextLedger {
	return &contextLedger{tr: tr, live: make(map[cu.DevicePtr]bool), freed: make(map[cu.DevicePtr]bool)}
}

// recordError keeps the first error for TrackErr, and logs it. It does not return errors: a program that
// used cu.Context before must get its memory whatever the ledger says.
func (b *contextLedger) recordError(err error) {
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

func (b *contextLedger) trackErr() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.err
}

// register registers an address that the driver returned.
func (b *contextLedger) register(p cu.DevicePtr, memory alloc.Memory, as func(int64) Tensor, dims ...int64) {
	t, problem := describe(as, dims...)
	b.registerAs(p, memory, t, problem)
}

// registerAs registers an address as a tensor. problem says why that is not the described one.
func (b *contextLedger) registerAs(p cu.DevicePtr, memory alloc.Memory, t Tensor, problem error) {
	err := register(b.tr, p, memory, t)
	b.recordError(errors.Join(problem, err))
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.freed, p)
	if err == nil {
		b.live[p] = true
	}
}

// unregister removes an address from the ledger. found is false if it is not registered.
func (b *contextLedger) unregister(p cu.DevicePtr) (undo func() error, found bool) {
	b.mu.Lock()
	found = b.live[p]
	delete(b.live, p)
	if found {
		if len(b.freed) >= maxFreed {
			clear(b.freed)
		}
		b.freed[p] = true
	}
	b.mu.Unlock()
	if !found {
		return nil, false
	}
	undo, err := b.tr.Unregister(alloc.Ptr(p))
	return undo, err == nil // fails if the tracker is closed
}

// restore undoes withdraw.
func (b *contextLedger) restore(p cu.DevicePtr, undo func() error) {
	err := undo()
	b.recordError(err)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.freed, p)
	if err == nil {
		b.live[p] = true
	}
}

// free unregisters an address and calls call to free it. If that fails, the address is registered again.
func (b *contextLedger) free(p cu.DevicePtr, call func() error) {
	undo, found := b.unregister(p)
	switch err := call(); {
	case err == nil:
	case found:
		b.restore(p, undo)
	case errors.Is(err, cu.InvalidValue):
		b.reportDoubleFree(p, err)
	}
}

// reportDoubleFree records the free of an address that is not registered, if it was freed before.
func (b *contextLedger) reportDoubleFree(p cu.DevicePtr, err error) {
	b.mu.Lock()
	before := b.freed[p]
	b.mu.Unlock()
	switch {
	case !before:
	case err == nil:
		b.recordError(fmt.Errorf("free %v: %w", alloc.Ptr(p), alloc.ErrDoubleFree))
	default:
		b.recordError(fmt.Errorf("free %v: %w (%w)", alloc.Ptr(p), alloc.ErrDoubleFree, err))
	}
}

// unregisterAll unregisters all addresses: the context is destroyed, and has freed them.
func (b *contextLedger) unregisterAll() {
	b.mu.Lock()
	gone := b.live
	b.live = make(map[cu.DevicePtr]bool)
	b.mu.Unlock()
	for p := range gone {
		_, _ = b.tr.Unregister(alloc.Ptr(p))
	}
}
