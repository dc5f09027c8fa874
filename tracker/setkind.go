package tracker

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// SetKind says what a live buffer is for, where its allocation did not, as Make's. It counts for its new
// kind from now on; the peak stays what it was. The history shows a free and an allocation at the same
// time. The error says that it is no kind, or is alloc.ErrUnknownPtr for a
// buffer that is freed, or alloc.ErrClosed.
func (b *Buffer) SetKind(kind Kind) error {
	return b.tracker.setKind(b.ptr, kind, func() slab.ID {
		if b.live() == nil {
			return 0
		}
		return b.record
	})
}

// SetKind is Buffer.SetKind for the live memory at an address that Register entered. An
// address that is not live is alloc.ErrUnknownPtr; the other errors are those of
// Buffer.SetKind.
func (t *MemTracker) SetKind(ptr alloc.Ptr, kind Kind) error {
	return t.setKind(ptr, kind, func() slab.ID { return t.find(ptr) })
}

// setKind sets the kind of the record that find finds, with the lock held.
func (t *MemTracker) setKind(ptr alloc.Ptr, kind Kind, find func() slab.ID) error {
	asked, err := snapshot.Untyped(kind, 0)
	if err != nil {
		return fmt.Errorf("set the kind of %v: %w", ptr, err)
	}
	kind = asked.Clone().Kind
	now := t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	id := find()
	switch {
	case t.ledger.Closed:
		return fmt.Errorf("set the kind of %v: tracker: %w", ptr, alloc.ErrClosed)
	case id == 0:
		return fmt.Errorf("set the kind of %v: %w: it is not live", ptr, alloc.ErrUnknownPtr)
	}
	r := t.ledger.Records.At(id)
	c := t.ledger.Cells.At(r.Cell)
	if c.Group.Kind == kind {
		return nil
	}
	leaves, comes := snapshot.Freed, snapshot.Allocated
	if r.Foreign {
		leaves, comes = snapshot.Unregistered, snapshot.Registered
	}
	x := c.Group.Tensor
	x.Kind = kind
	now = t.history.Moment(now)
	t.note(r, now, leaves)
	t.ledger.Move(id, r, t.ledger.Cells.Make(c.Place, c.Line, &x, t.ledger.Epoch))
	t.note(r, now, comes)
	return nil
}
