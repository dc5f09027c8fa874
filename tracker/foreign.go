package tracker

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// SetLabel names the live memory at an address that Register entered, as Buffer.SetLabel does.
// An address that is not live is alloc.ErrUnknownPtr.
func (t *MemTracker) SetLabel(ptr alloc.Ptr, label string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	id := t.find(ptr)
	if id == 0 {
		return fmt.Errorf("label %v %q: %w: it is not live", ptr, label, alloc.ErrUnknownPtr)
	}
	t.ledger.Label(id, t.ledger.Records.At(id), label)
	return nil
}

// ExplainOutOfMemory turns an out of memory error of other code into the error that Alloc
// would have returned. If err is alloc.ErrOutOfMemory, for example an *alloc.OutOfMemoryError,
// the result is an *OutOfMemoryError that unwraps to err. It is added to the history, and a
// dump is written if Config.OOMDir asks for one. Any other err is returned unchanged, also if
// the tensor is not valid. The tensor is what the memory was for. Any goroutine may call it.
func (t *MemTracker) ExplainOutOfMemory(err error, shape alloc.Shape, dtype alloc.DType, kind Kind) error {
	if !errors.Is(err, alloc.ErrOutOfMemory) {
		return err
	}
	stack := snapshot.StackID(t.stacks.Table.Capture(1))
	x, invalid := snapshot.NewTensor(shape, dtype, kind)
	if invalid != nil {
		return err
	}
	return t.outOfMemory(err, stack, 0, x)
}
