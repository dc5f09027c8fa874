package tracker

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

// Buffer is a piece of device memory that a MemTracker gave out. Its methods may
// be called from any goroutine.
type Buffer struct {
	tracker   *MemTracker
	group     *group // kind, shape, dtype
	ptr       alloc.Ptr
	allocated alloc.Bytes
	seq       uint64 // of its record
	record    slab.ID
	stack     callstack.ID
}

// Alloc takes device memory for a tensor, not initialised, and enters it in the
// ledger with the caller's stack. The shape is copied. The caller frees the buffer.
//
// The error is a *alloc.ShapeError if there can be no such tensor, a
// *OutOfMemoryError if the device is full, ErrDuplicatePtr or
// alloc.ErrBrokenDriver if the device gave memory that cannot be, which is left
// alone, alloc.ErrClosed after Close; nothing has changed then.
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
	b := &Buffer{tracker: t, stack: stack}
	here, now := t.sections.goroutine(), t.now()
	if t.cache == nil {
		err = t.fromDevice(b, here, now, &x)
	} else if !t.fromCache(b, here, now, &x) {
		err = t.fromDriver(b, here, now, &x)
	}
	if errors.Is(err, alloc.ErrOutOfMemory) {
		return nil, t.outOfMemory(err, stack, x)
	}
	if err != nil {
		return nil, fmt.Errorf("alloc %s: %w", x.String(), err)
	}
	t.watch(b)
	return b, nil
}

// fromCache allocates what is cached, of a cell that is known: then the cache and
// the ledger change in one step, under one lock.
func (t *MemTracker) fromCache(b *Buffer, here goroutine, now time.Duration, x *tensor) bool {
	t.mu.Lock()
	if t.ledger.closed || !t.ledger.admits(x.each) {
		t.mu.Unlock()
		return false
	}
	in := t.sections.at(here)
	cell := t.ledger.cells.find(place{b.stack, in.pathID()}, x)
	if cell == 0 {
		t.mu.Unlock()
		return false
	}
	id, r := t.ledger.records.Get()
	p, allocated, ok := t.cache.Locked().Alloc(x.each, alloc.Owner(id))
	if !ok {
		t.ledger.records.Put(id)
		t.mu.Unlock()
		return false
	}
	r.ptr = p
	t.enter(r, cell, allocated, in, now, Allocated)
	b.is(id, r, t.ledger.cells.At(cell).group)
	t.mu.Unlock()
	return true
}

// fromDriver allocates through the cache, which may ask the driver, or of a cell
// that is new.
func (t *MemTracker) fromDriver(b *Buffer, here goroutine, now time.Duration, x *tensor) error {
	line := t.stacks.line(b.stack)
	shape := x.shape.Clone() // the caller's must not escape
	each, dtype, kind := x.each, x.dtype, x.kind
	t.tick(now)
	err := t.cache.AllocOwned(each, func(p alloc.Ptr, allocated alloc.Bytes) (alloc.Owner, error) {
		own := tensor{kind, dtype, shape, each}
		id, err := t.enterNew(b, line, here, now, &own, p, allocated)
		return alloc.Owner(id), err
	})
	if err != nil && t.closed.Load() {
		t.freedAfterClose()
	}
	return err
}

// fromDevice allocates from a device without a cache.
func (t *MemTracker) fromDevice(b *Buffer, here goroutine, now time.Duration, x *tensor) (err error) {
	line := t.stacks.line(b.stack)
	p, allocated := alloc.Ptr(0), x.each
	if t.sized != nil {
		p, allocated, err = t.sized.AllocSized(x.each)
	} else {
		p, err = t.device.Alloc(x.each)
	}
	if err != nil {
		return err
	}
	if p == 0 {
		return fmt.Errorf("%s: %w: no address", t.name, alloc.ErrBrokenDriver)
	}
	t.mu.Lock()
	other := t.ledger.addresses[p]
	buffers := other != 0 && !t.ledger.records.At(other).foreign
	id, err := t.enterNew(b, line, here, now, x, p, allocated)
	if err == nil {
		t.ledger.addresses[p] = id
	}
	t.mu.Unlock()
	if buffers {
		return fmt.Errorf("%s: %w: %w", t.name, alloc.ErrBrokenDriver, err) // to free it would free the Buffer's
	}
	if err != nil {
		err = errors.Join(err, t.device.Free(p))
	}
	return err
}

// enterNew enters memory that the device gave. The caller holds the lock.
func (t *MemTracker) enterNew(b *Buffer, line lineID, here goroutine, now time.Duration, x *tensor, p alloc.Ptr, allocated alloc.Bytes) (slab.ID, error) {
	if t.ledger.closed {
		return 0, fmt.Errorf("tracker: %w", alloc.ErrClosed)
	}
	if !t.ledger.admits(x.each) {
		return 0, fmt.Errorf("%v: %v more than the %v in the ledger overflows 64 bits", p, x.each, t.ledger.current.Bytes)
	}
	if other := t.ledger.addresses[p]; other != 0 {
		return 0, t.ledger.duplicate(other)
	}
	in := t.sections.at(here)
	cell := t.ledger.cells.at(place{b.stack, in.pathID()}, line, x, t.ledger.epoch)
	id, r := t.ledger.records.Get()
	r.ptr = p
	t.enter(r, cell, allocated, in, now, Allocated)
	b.is(id, r, t.ledger.cells.At(cell).group)
	return id, nil
}

// enter makes a record live and tells the section and the history. The caller holds the lock.
func (t *MemTracker) enter(r *record, cell slab.ID, allocated alloc.Bytes, in *Section, now time.Duration, action Action) {
	r.since, r.seq = t.history.moment(now), t.history.next
	t.ledger.add(r, cell, allocated)
	if in != nil {
		t.sections.allocated(in, t.ledger.cells.At(cell).each)
	}
	t.note(r, r.since, action)
}

// note tells the history what became of a record.
func (t *MemTracker) note(r *record, now time.Duration, action Action) {
	c := t.ledger.cells.At(r.cell)
	e := t.history.slot()
	e.since, e.action, e.ptr, e.allocated = now, action, r.ptr, r.allocated
	e.group, e.stack, e.section = c.group, c.stack, uint16(c.section)
}

// is says what record a new Buffer stands for.
func (b *Buffer) is(id slab.ID, r *record, g *group) {
	b.group, b.ptr, b.allocated = g, r.ptr, r.allocated
	b.record, b.seq = id, r.seq
}

// live returns the record of a Buffer, or nil if it was freed. The caller holds
// the lock.
func (b *Buffer) live() *record {
	r := b.tracker.ledger.records.At(b.record)
	if r.state != live || r.seq != b.seq {
		return nil
	}
	return r
}

// Free gives the memory back to the cache, and forgets the buffer. The memory
// may be handed out again at once: work that the device still has queued on it
// must be done. A second Free is alloc.ErrDoubleFree. If the device refuses,
// the buffer stays live and the error says why. To free a nil Buffer does nothing.
func (b *Buffer) Free() error {
	if b == nil {
		return nil
	}
	err := b.free()
	runtime.KeepAlive(b) // it is not lost while it is being freed
	return err
}

func (b *Buffer) free() error {
	t := b.tracker
	here, now := t.sections.goroutine(), t.now()
	t.mu.Lock()
	r := b.live()
	if r == nil {
		t.mu.Unlock()
		return fmt.Errorf("free %v: %w", b, alloc.ErrDoubleFree)
	}
	if t.cache == nil {
		return t.freeOnDevice(b, r, here, now)
	}
	if err := t.cache.Locked().Free(b.ptr, alloc.Owner(b.record)); err != nil {
		t.mu.Unlock()
		return fmt.Errorf("free %v: %w", b, err)
	}
	t.leave(r, here, now, Freed)
	t.ledger.remove(b.record, r)
	closed := t.ledger.closed
	t.mu.Unlock()
	if closed {
		t.freedAfterClose()
	}
	return nil
}

// freeOnDevice is free without a cache. It takes the record out first: the
// moment that the memory is free, the driver may give its address to another goroutine. The
// caller holds the lock, which it lets go.
func (t *MemTracker) freeOnDevice(b *Buffer, r *record, here goroutine, now time.Duration) error {
	t.leave(r, here, now, Freed)
	t.ledger.takeOut(b.record, r)
	t.mu.Unlock()
	if err := t.device.Free(b.ptr); err != nil {
		now = t.now()
		t.mu.Lock()
		defer t.mu.Unlock()
		err = fmt.Errorf("free %v: %w", b, err)
		if duplicate := t.ledger.putBack(b.record, r); duplicate != nil {
			return errors.Join(err, duplicate)
		}
		if !t.ledger.closed {
			t.unleave(r, here, now)
		}
		return err
	}
	t.mu.Lock()
	t.ledger.settle(b.record, r)
	closed := t.ledger.closed
	t.mu.Unlock()
	if closed {
		t.freedAfterClose()
	}
	return nil
}

// leave tells the section and the history that a record leaves the ledger. The
// caller holds the lock.
func (t *MemTracker) leave(r *record, here goroutine, now time.Duration, action Action) {
	if t.ledger.closed {
		return // the ledger is gone, the memory is not
	}
	c := t.ledger.cells.At(r.cell)
	if here != 0 || c.section != noPath {
		t.sections.freed(here, c.section, 1, c.each)
	}
	now = t.history.moment(now)
	t.ledger.wasFreed(c, now-r.since, t.history.next)
	t.note(r, now, action)
}

// unleave undoes leave for a record whose memory could not be freed.
func (t *MemTracker) unleave(r *record, here goroutine, now time.Duration) {
	if c := t.ledger.cells.At(r.cell); here != 0 || c.section != noPath {
		t.sections.freed(here, c.section, -1, c.each)
	}
	t.note(r, t.history.moment(now), FreeFailed)
}

// Ptr returns the buffer's address on the device.
func (b *Buffer) Ptr() alloc.Ptr { return b.ptr }

// Shape returns the shape it was allocated with; the caller must not write to it.
func (b *Buffer) Shape() alloc.Shape { return b.group.shape }

// DType returns the type of its elements.
func (b *Buffer) DType() alloc.DType { return b.group.dtype }

// Kind returns what it is for.
func (b *Buffer) Kind() Kind { return b.group.kind }

// Bytes returns the memory that was asked for.
func (b *Buffer) Bytes() alloc.Bytes { return b.group.each }

// Allocated returns the memory that the device took for it, after rounding.
func (b *Buffer) Allocated() alloc.Bytes { return b.allocated }

// Stack returns the calls that led to the allocation.
func (b *Buffer) Stack() Stack { return b.tracker.stacks.resolve(b.stack) }

// Label returns the name that SetLabel gave; "" once the buffer is freed.
func (b *Buffer) Label() string {
	b.tracker.mu.Lock()
	defer b.tracker.mu.Unlock()
	if r := b.live(); r != nil {
		return b.tracker.ledger.labelOf(r)
	}
	return ""
}

// SetLabel names the buffer, for snapshots: "layer1.0.conv1.weight". A buffer
// that is freed has no name.
func (b *Buffer) SetLabel(label string) {
	b.tracker.mu.Lock()
	defer b.tracker.mu.Unlock()
	if r := b.live(); r != nil {
		b.tracker.ledger.label(b.record, r, label)
	}
}

// String describes the buffer on one line.
func (b *Buffer) String() string {
	return fmt.Sprintf("%v %v %v, %v at %v", b.group.kind, b.group.shape, b.group.dtype, b.group.each, b.ptr)
}
