package tracker

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
)

// Alloc takes device memory for a tensor, not initialised, and enters it in the
// ledger with the caller's stack. The shape is copied. The caller frees the buffer.
//
// The error is a *alloc.ShapeError if there can be no such tensor, a
// *OutOfMemoryError if the device is full, alloc.ErrClosed after Close;
// nothing has changed then.
func (t *MemTracker) Alloc(shape alloc.Shape, dtype alloc.DType, kind Kind) (*Buffer, error) {
	return t.alloc(t.stacks.table.Capture(1), shape, dtype, kind)
}

// AllocBytes takes n bytes of device memory, as a tensor of n uint8 elements.
// See Alloc.
func (t *MemTracker) AllocBytes(n alloc.Bytes, kind Kind) (*Buffer, error) {
	stack := t.stacks.table.Capture(1)
	if n < 0 {
		return nil, &alloc.SizeError{Requested: n, Reason: "negative"}
	}
	if alloc.Bytes(int(n)) != n {
		return nil, &alloc.SizeError{Requested: n, Reason: "too large for this platform's int"}
	}
	return t.alloc(stack, alloc.Shape{int(n)}, alloc.Uint8, kind)
}

// Make takes device memory for a tensor of Go type T and these dimensions, of
// kind Unspecified:
//
//	x, err := tracker.Make[float32](tr, 32, 3, 224, 224)
//
// See Alloc.
func Make[T alloc.Element](t *MemTracker, dims ...int) (*Buffer, error) {
	return t.alloc(t.stacks.table.Capture(1), dims, alloc.DTypeOf[T](), Unspecified)
}

// alloc is Alloc for a stack already taken.
func (t *MemTracker) alloc(stack callstack.ID, shape alloc.Shape, dtype alloc.DType, kind Kind) (*Buffer, error) {
	x, err := newTensor(shape, dtype, kind)
	if err != nil {
		return nil, fmt.Errorf("alloc: %w", err)
	}
	if t.closed.Load() {
		return nil, fmt.Errorf("alloc %s: tracker: %w", x.String(), alloc.ErrClosed)
	}
	b := t.newBuffer()
	r := b.record
	if t.sized != nil {
		r.ptr, r.allocated, err = t.sized.AllocSized(x.each)
	} else {
		r.ptr, err = t.device.Alloc(x.each)
		r.allocated = x.each
	}
	if err != nil {
		return nil, t.refused(err, stack, x)
	}
	if err := t.remember(r, stack, x, Allocated); err != nil {
		return nil, errors.Join(fmt.Errorf("alloc %s: %w", x.String(), err), t.device.Free(r.ptr), t.emptyIfClosed())
	}
	t.watch(b)
	return b, nil
}

// Register enters memory that other code allocated on the tracker's device in
// the ledger, with the caller's stack: an arena, a framework's engine, a C
// library. The memory stays theirs; they call Unregister before they free it.
// An address that is live already is ErrDuplicatePtr, 0 is alloc.ErrUnknownPtr.
func (t *MemTracker) Register(ptr alloc.Ptr, shape alloc.Shape, dtype alloc.DType, kind Kind) error {
	stack := t.stacks.table.Capture(1)
	x, err := newTensor(shape, dtype, kind)
	if err != nil {
		return fmt.Errorf("register %v: %w", ptr, err)
	}
	if ptr == 0 {
		return fmt.Errorf("register %s: %w: 0 is the address of no memory", x.String(), alloc.ErrUnknownPtr)
	}
	r := &record{tracker: t, ptr: ptr, allocated: x.each, foreign: true}
	if err := t.remember(r, stack, x, Registered); err != nil {
		return fmt.Errorf("register %s: %w", x.String(), err)
	}
	return nil
}

// Unregister takes an address that Register entered out of the ledger. Call it
// before the memory is freed: from then on the driver may give the address to
// somebody else. Any other address is alloc.ErrUnknownPtr.
func (t *MemTracker) Unregister(ptr alloc.Ptr) error {
	_, err := t.unregister(ptr)
	return err
}

// Withdraw is Unregister for a free whose outcome is known later: putBack,
// called at most once, enters the memory again with all that was known of it.
func (t *MemTracker) Withdraw(ptr alloc.Ptr) (putBack func(), err error) {
	r, err := t.unregister(ptr)
	if err != nil {
		return nil, err
	}
	return func() { t.restore(r) }, nil
}

// Release is Unregister, then free, and Register again with all that was known
// of the memory if free fails. Its error is free's; or Unregister's, and then
// free was not called: the address is not the ledger's, or the tracker is closed.
func (t *MemTracker) Release(ptr alloc.Ptr, free func() error) error {
	r, err := t.unregister(ptr)
	if err != nil {
		return err
	}
	if err := free(); err != nil {
		t.restore(r)
		return err
	}
	return nil
}

func (t *MemTracker) unregister(ptr alloc.Ptr) (*record, error) {
	t.mu.Lock()
	r := t.ledger.live[ptr]
	t.mu.Unlock()
	if r != nil && !r.foreign {
		return nil, fmt.Errorf("unregister %v: %w: it is a Buffer of the tracker's own, which Free frees", ptr, alloc.ErrUnknownPtr)
	}
	if r == nil || t.forget(r, Unregistered) != nil {
		return nil, fmt.Errorf("unregister %v: %w: it was never registered, or is unregistered already", ptr, alloc.ErrUnknownPtr)
	}
	return r, nil
}

// remember enters a new record in the ledger.
func (t *MemTracker) remember(r *record, stack callstack.ID, x tensor, action Action) error {
	here := t.sections.goroutine()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.closed.Load() {
		return fmt.Errorf("tracker: %w", alloc.ErrClosed)
	}
	r.since = t.now()
	in := t.sections.at(here)
	r.cell = t.ledger.cells.at(place{stack, in.pathID()}, x, t.ledger.epoch)
	r.seq = t.history.next
	if err := t.ledger.add(r); err != nil {
		return err
	}
	if in != nil {
		t.sections.allocated(in, x.each)
	}
	t.history.add(r.event(r.since, action))
	return nil
}

// forget takes a live record out of the ledger. It comes before the memory is
// freed: the moment that it is, the driver may give its address to another
// goroutine.
func (t *MemTracker) forget(r *record, action Action) error {
	here := t.sections.goroutine()
	t.mu.Lock()
	defer t.mu.Unlock()
	if r.state != live {
		return fmt.Errorf("free %v: %w", r, alloc.ErrDoubleFree)
	}
	r.state = freed
	if t.closed.Load() {
		return nil // the ledger is gone, the memory is not
	}
	t.ledger.remove(r)
	if here != 0 || r.cell.section != noPath {
		t.sections.freed(here, r.cell.section, 1, r.cell.group.each)
	}
	now := t.now()
	t.ledger.wasFreed(r, now, t.history.next)
	t.history.add(r.event(now, action))
	return nil
}

// restore puts back a record whose memory could not be freed.
func (t *MemTracker) restore(r *record) {
	here := t.sections.goroutine()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ledger.live[r.ptr] != nil {
		return // the address is somebody else's by now
	}
	r.state = live
	if t.closed.Load() {
		return
	}
	t.ledger.enter(r)
	if here != 0 || r.cell.section != noPath {
		t.sections.freed(here, r.cell.section, -1, r.cell.group.each)
	}
	t.history.add(r.event(t.now(), FreeFailed))
}

func (r *record) event(since time.Duration, action Action) event {
	return event{
		since: since, action: action, ptr: r.ptr, allocated: r.allocated,
		group: r.cell.group, stack: r.cell.stack, section: r.cell.section,
	}
}
