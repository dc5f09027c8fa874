package tracker

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// SetLabel names the live memory at an address that Register entered, as Buffer.SetLabel
// does. An address that is not live is alloc.ErrUnknownPtr.
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

// ExplainOutOfMemory is for allocations that other code makes: it turns their lack of memory
// into the error that Alloc would have returned. Where err is alloc.ErrOutOfMemory, as by
// *alloc.OutOfMemoryError, the result is a *OutOfMemoryError that unwraps to err. It enters the
// history, and there is a dump if Config.OOMDir asks for one. Any other err is returned as it
// is, and so is one for a tensor that is not valid. The tensor is what the memory was for. Any
// goroutine may call it.
func (t *MemTracker) ExplainOutOfMemory(err error, shape alloc.Shape, dtype alloc.DType, kind Kind) error {
	if !errors.Is(err, alloc.ErrOutOfMemory) {
		return err
	}
	stack := snapshot.StackID(t.stacks.table.Capture(1))
	x, invalid := snapshot.NewTensor(shape, dtype, kind)
	if invalid != nil {
		return err
	}
	return t.outOfMemory(err, stack, 0, x)
}
