package tracker

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Register enters memory that other code allocated on the tracker's device, such as an arena
// or a C library's buffer, with the caller's call stack. The other code still owns it, and
// calls Unregister before it frees it. The memory is alloc.DeviceMemory, or another type that belongs
// to the device, the host's too:
//
//	err := tr.Register(p, alloc.PinnedMemory, shape, alloc.Float32, tracker.Input)
//
// The error is ErrDuplicatePtr if the address is already live, alloc.ErrUnknownPtr if it is 0,
// alloc.ErrShape if the shape or type is not valid, and alloc.ErrClosed after Close, or says that there is
// no such type of memory.
func (t *MemTracker) Register(ptr alloc.Ptr, memory alloc.Memory, shape alloc.Shape, dtype alloc.DType, kind Kind) error {
	stack := tables.StackID(t.stacks.Table.Capture(1))
	x, err := tables.NewTensor(shape, dtype, kind)
	if err != nil {
		return fmt.Errorf("register %v: %w", ptr, err)
	}
	if _, err := memory.MarshalText(); err != nil {
		return fmt.Errorf("register %v: %v: there is no such type of memory", ptr, memory)
	}
	x.Memory = memory
	if ptr == 0 {
		return fmt.Errorf("register %s: %w: 0 is the address of no memory", x.String(), alloc.ErrUnknownPtr)
	}
	line := t.stacks.Line(stack)
	here, now := t.sections.goroutine(), t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.admit(ptr, x.Each); err != nil {
		return fmt.Errorf("register %s: %w", x.String(), err)
	}
	in := t.sections.at(here)
	cell := t.ledger.Cells.Make(placeOf(stack, in, 0), line, &x, t.ledger.Epoch)
	id, r := t.ledger.Records.Get()
	r.Ptr, r.Foreign = ptr, true
	t.enter(r, cell, x.Each, in, now, mem.Registered)
	t.ledger.Addresses.Add(uint64(ptr), id)
	return nil
}

// admit returns why an address cannot be registered. The caller holds the lock.
func (t *MemTracker) admit(ptr alloc.Ptr, bytes alloc.Bytes) error {
	switch {
	case t.ledger.Closed:
		return fmt.Errorf("tracker: %w", alloc.ErrClosed)
	case !t.ledger.Admits(bytes):
		return fmt.Errorf("%v: %v more than the %v in the ledger overflows 64 bits", ptr, bytes, t.ledger.Current.Bytes)
	}
	if id := t.find(ptr); id != 0 {
		return t.ledger.Duplicate(id)
	}
	return nil
}

// Unregister takes memory that Register entered out of the ledger. Call it before the memory is freed:
// from then on the driver may give the address to somebody else. If the free fails, putBack enters the
// memory again, once, with all that was known of it:
//
//	putBack, err := tr.Unregister(arena)
//	if err != nil {
//		return err
//	}
//	if err := driver.Free(arena); err != nil {
//		return errors.Join(err, putBack())
//	}
//
// The error is alloc.ErrUnknownPtr for any address that Register did not enter, and for all after Close.
// That of putBack is ErrDuplicatePtr if somebody else has the address by then.
func (t *MemTracker) Unregister(ptr alloc.Ptr) (putBack func() error, err error) {
	w, err := t.withdraw(ptr)
	if err != nil {
		return nil, err
	}
	return func() error { return t.restore(w) }, nil
}

// withdrawn is all that was known of registered memory.
type withdrawn struct {
	record ledger.Record
	group  *ledger.Group
	place  ledger.Place
	line   ledger.LineID
	label  string
}

// withdraw takes registered memory out of the ledger.
func (t *MemTracker) withdraw(ptr alloc.Ptr) (w withdrawn, err error) {
	here, now := t.sections.goroutine(), t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	id := t.find(ptr)
	if id == 0 {
		return w, fmt.Errorf("unregister %v: %w: it was never registered, or is unregistered already", ptr, alloc.ErrUnknownPtr)
	}
	r := t.ledger.Records.At(id)
	if !r.Foreign {
		return w, fmt.Errorf("unregister %v: %w: it is a Buffer of the tracker's own, which Free frees", ptr, alloc.ErrUnknownPtr)
	}
	c := t.ledger.Cells.At(r.Cell)
	w = withdrawn{*r, c.Group, c.Place, c.Line, t.ledger.LabelOf(r)}
	t.leave(r, here, now, mem.Unregistered)
	t.ledger.Forget(r)
	t.ledger.Remove(id, r)
	return w, nil
}

// restore undoes withdraw.
func (t *MemTracker) restore(w withdrawn) error {
	here, now := t.sections.goroutine(), t.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ledger.Closed {
		return nil
	}
	if other := t.find(w.record.Ptr); other != 0 {
		return fmt.Errorf("put back %w", t.ledger.Duplicate(other))
	}
	id, r := t.ledger.Records.Get()
	*r = w.record
	r.Label = 0
	t.ledger.Label(id, r, w.label)
	r.Cell = t.ledger.Cells.Readmit(w.place, w.line, &w.group.Tensor, t.ledger.Epoch)
	t.ledger.Addresses.Add(uint64(r.Ptr), id)
	t.ledger.Enter(r)
	t.unleave(r, here, now)
	return nil
}

// ErrDuplicatePtr says that the ledger already has a live buffer at this address: it was freed
// without telling the tracker, or registered twice.
var ErrDuplicatePtr = ledger.ErrDuplicatePtr

// SetLabel gives a label to memory that was entered by Register, by its address, as Buffer.SetLabel
// does. If no live memory has that address, the error is alloc.ErrUnknownPtr.
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
	stack := tables.StackID(t.stacks.Table.Capture(1))
	x, invalid := tables.NewTensor(shape, dtype, kind)
	if invalid != nil {
		return err
	}
	return t.outOfMemory(err, stack, 0, x)
}
