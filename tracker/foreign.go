package tracker

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// SetLabel names the live memory at an address, as Buffer.SetLabel does, for what
// Register entered. An address that is not live is alloc.ErrUnknownPtr.
func (t *MemTracker) SetLabel(ptr alloc.Ptr, label string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := t.find(ptr)
	if id == 0 {
		return fmt.Errorf("label %v %q: %w: it is not live", ptr, label, alloc.ErrUnknownPtr)
	}
	t.ledger.label(id, t.ledger.records.At(id), label)
	return nil
}

// Explain makes of an error that other code's allocation failed with what Alloc would have
// returned: if it is alloc.ErrOutOfMemory, a *OutOfMemoryError that unwraps to it, entered in
// the history, with a dump if Config.OOMDir asks for one. Any other error is returned
// as it is. The tensor is what the memory was for.
func (t *MemTracker) Explain(err error, shape alloc.Shape, dtype alloc.DType, kind Kind) error {
	if !errors.Is(err, alloc.ErrOutOfMemory) {
		return err
	}
	stack := t.stacks.table.Capture(1)
	x, invalid := newTensor(shape, dtype, kind)
	if invalid != nil {
		return err
	}
	return t.outOfMemory(err, stack, x)
}
