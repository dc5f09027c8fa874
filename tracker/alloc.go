package tracker

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/ledger"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Alloc allocates device memory for a tensor and enters it in the ledger with the caller's
// call stack. The memory is not initialized. The shape is copied. The caller frees the buffer.
//
// The error is alloc.ErrShape if the shape or type is not valid, a *OutOfMemoryError if the
// device is full, ErrDuplicatePtr or alloc.ErrBrokenDriver if the device returned an
// overlapping or invalid address (which is not freed), and alloc.ErrClosed after Close. A kind that
// is not valid, as mem.Kind tells, is an error too. Nothing has changed then.
func (t *MemTracker) Alloc(shape alloc.Shape, dtype alloc.DType, kind Kind) (*Buffer, error) {
	return t.alloc(tables.StackID(t.stacks.Table.Capture(1)), 0, shape, dtype, kind)
}

// AllocOn is Alloc for work that runs on stream s; Alloc itself is for the default stream. The
// cache may return memory that earlier work on s still uses: a stream runs its work in order, so
// the new work starts after that. If other streams use the buffer too, call Buffer.RecordStream.
// The errors are those of Alloc, and errors.ErrUnsupported for CU_STREAM_PER_THREAD, which means a
// different stream on each thread.
func (t *MemTracker) AllocOn(s alloc.Stream, shape alloc.Shape, dtype alloc.DType, kind Kind) (*Buffer, error) {
	return t.alloc(tables.StackID(t.stacks.Table.Capture(1)), s, shape, dtype, kind)
}

// AllocBytes allocates n bytes of device memory, as a tensor of n uint8 elements. A negative
// size is alloc.ErrSize; the other errors are those of Alloc.
func (t *MemTracker) AllocBytes(n alloc.Bytes, kind Kind) (*Buffer, error) {
	stack := tables.StackID(t.stacks.Table.Capture(1))
	if n < 0 {
		return nil, fmt.Errorf("%w of %d bytes: negative", alloc.ErrSize, n)
	}
	if alloc.Bytes(int(n)) != n {
		return nil, fmt.Errorf("%w of %d bytes: too large for this platform's int", alloc.ErrSize, n)
	}
	return t.alloc(stack, 0, alloc.Shape{int(n)}, alloc.Uint8, kind)
}

// Make is Alloc for a tensor of Go type T, as CopyIn and CopyOut take:
//
//	x, err := tracker.Make[float32](tr, alloc.Shape{32, 3, 224, 224}, tracker.Input)
//
// The errors are those of Alloc.
func Make[T alloc.Element](t *MemTracker, shape alloc.Shape, kind Kind) (*Buffer, error) {
	return t.alloc(tables.StackID(t.stacks.Table.Capture(1)), 0, shape, alloc.DTypeOf[T](), kind)
}

// alloc is Alloc with the call stack that the exported function has taken: it alone knows how far
// away the caller is.
func (t *MemTracker) alloc(stack tables.StackID, on alloc.Stream, shape alloc.Shape, dtype alloc.DType, kind Kind) (*Buffer, error) {
	x := tables.Tensor{Kind: kind, DType: dtype, Memory: alloc.Memory(t.memory.Load()), Shape: shape}
	b := &Buffer{tracker: t, stack: stack}
	by := asker{stream: on, here: t.sections.goroutine(), now: t.now()}
	if t.cache == nil || !t.fromCache(b, &x, by) {
		if err := t.enquire(b, &x, by); err != nil {
			return nil, err
		}
	}
	t.watch(b)
	if t.freed != nil {
		t.freed.handedOut(b)
	}
	return b, nil
}

// enquire is the slow way of Alloc: it checks the request, and may ask the driver.
func (t *MemTracker) enquire(b *Buffer, x *tables.Tensor, by asker) error {
	err := x.Measure()
	if err != nil {
		return fmt.Errorf("alloc: %w", err)
	}
	if t.closed.Load() {
		return fmt.Errorf("alloc %s: tracker: %w", x.String(), alloc.ErrClosed)
	}
	if t.cache == nil {
		err = t.fromDevice(b, x, by)
	} else {
		err = t.fromDriver(b, x, by)
	}
	if errors.Is(err, alloc.ErrOutOfMemory) {
		return t.outOfMemory(err, b.stack, by.stream, *x)
	}
	if err != nil {
		return fmt.Errorf("alloc %s: %w", x.String(), err)
	}
	return nil
}

// asker says who asks for memory: the stream, the goroutine (which tells the section) and the time.
// The line of code is set only where a new cell may be made, because finding it costs more than an
// Alloc from the cache.
type asker struct {
	stream alloc.Stream
	here   goroutine
	now    time.Duration
	line   ledger.LineID
}

// fromCache allocates if an inactive block serves the request and the ledger has its cell. Then the cache and
// the ledger change in one step, under one lock. It reports false, and has changed nothing, if the slow way is needed:
// enquire, which finds any error again. A tensor that equals one of the ledger needs no measuring.
func (t *MemTracker) fromCache(b *Buffer, x *tables.Tensor, by asker) bool {
	t.locked.LockSettled()
	defer t.mu.Unlock()
	if t.ledger.Closed {
		return false
	}
	in := t.sections.at(by.here)
	place := placeOf(b.stack, in, t.ledger.Streams.At(by.stream))
	cell := t.ledger.Cells.Recent(place, x)
	if cell == 0 && x.Measure() == nil {
		cell = t.ledger.Cells.Find(place, x)
	}
	if cell == 0 {
		return false
	}
	c := t.ledger.Cells.At(cell)
	if !t.ledger.Admits(c.Each) {
		return false
	}
	id, r := t.ledger.Records.Get()
	p, allocated, ok := t.locked.Alloc(c.Each, by.stream, cachelock.Owner(id))
	if !ok {
		t.ledger.Records.Put(id)
		return false
	}
	r.Ptr = p
	t.enter(r, cell, allocated, in, by.now, mem.Allocated)
	b.is(id, r, c.Group)
	return true
}

// fromDriver allocates through the cache, which may ask the driver, and makes the cell if it is new. No lock is
// held while the driver is asked; the cache takes the lock again to enter the memory.
func (t *MemTracker) fromDriver(b *Buffer, x *tables.Tensor, by asker) error {
	by.line = t.stacks.Line(b.stack)
	own := x.Clone()
	t.tick(by.now)
	err := t.locked.AllocOwned(own.Each, by.stream, func(p alloc.Ptr, allocated alloc.Bytes) (cachelock.Owner, error) {
		own.Memory = t.locked.Memory() // a cache may find that its segments cannot expand
		t.memory.Store(uint32(own.Memory))
		b.ptr, b.allocated = p, allocated
		id, err := t.enterNew(b, &own, by)
		return cachelock.Owner(id), err
	})
	if err != nil && t.closed.Load() {
		t.freedAfterClose()
	}
	return err
}

// fromDevice allocates from a device without a cache.
func (t *MemTracker) fromDevice(b *Buffer, x *tables.Tensor, by asker) (err error) {
	by.line = t.stacks.Line(b.stack)
	if b.ptr, b.allocated, err = t.askDevice(by.stream, x.Each); err != nil {
		return err
	}
	if b.ptr == 0 {
		return fmt.Errorf("%s: %w: no address", t.name, alloc.ErrBrokenDriver)
	}
	t.mu.Lock()
	other := t.ledger.At(b.ptr)
	ours := other != 0 && !t.ledger.Records.At(other).Foreign
	id, err := t.enterNew(b, x, by)
	if err == nil {
		t.ledger.Addresses.Add(uint64(b.ptr), id)
	}
	t.mu.Unlock()
	switch {
	case ours: // another Buffer owns this address: freeing it would free that Buffer's memory
		return fmt.Errorf("%s: %w: %w", t.name, alloc.ErrBrokenDriver, err)
	case err != nil:
		return errors.Join(err, t.device.Free(b.ptr))
	}
	return nil
}

// askDevice allocates from a device that has no cache over it. A device that does not say how much it took
// took n.
func (t *MemTracker) askDevice(on alloc.Stream, n alloc.Bytes) (p alloc.Ptr, allocated alloc.Bytes, err error) {
	switch {
	case t.streamed != nil:
		return t.streamed.AllocOn(n, on)
	case t.sized != nil:
		return t.sized.AllocSized(n)
	}
	p, err = t.device.Alloc(n)
	return p, n, err
}

// enterNew enters memory that the device gave for b, in a cell that may be new. If it returns an error, nothing is
// entered. The caller holds the lock.
func (t *MemTracker) enterNew(b *Buffer, x *tables.Tensor, by asker) (slab.ID, error) {
	if t.ledger.Closed {
		return 0, fmt.Errorf("tracker: %w", alloc.ErrClosed)
	}
	if !t.ledger.Admits(x.Each) {
		return 0, fmt.Errorf("%v: %v more than the %v in the ledger overflows 64 bits", b.ptr, x.Each, t.ledger.Current.Bytes)
	}
	if other := t.ledger.At(b.ptr); other != 0 {
		return 0, t.ledger.Duplicate(other)
	}
	in := t.sections.at(by.here)
	cell := t.ledger.Cells.Make(placeOf(b.stack, in, t.ledger.Streams.At(by.stream)), by.line, x, t.ledger.Epoch)
	id, r := t.ledger.Records.Get()
	r.Ptr = b.ptr
	t.enter(r, cell, b.allocated, in, by.now, mem.Allocated)
	b.is(id, r, t.ledger.Cells.At(cell).Group)
	return id, nil
}

// enter makes a record live and tells the section and the history. The caller holds the lock.
func (t *MemTracker) enter(r *ledger.Record, cell slab.ID, allocated alloc.Bytes, in *section, now time.Duration, action mem.Action) {
	r.Since, r.Seq = t.history.Moment(now), t.history.Next
	t.ledger.Add(r, cell, allocated)
	if c := t.ledger.Cells.At(cell); in != nil && !c.Memory.OnHost() {
		t.sections.allocated(in, c.Each)
	}
	t.note(r, r.Since, action)
}

// watch has the collector call lose when the program can no longer reach b. The cleanup gets a copy: b itself
// would stay reachable through it.
func (t *MemTracker) watch(b *Buffer) {
	if t.lost != IgnoreLost {
		runtime.AddCleanup(b, (*Buffer).lose, &Buffer{t, b.group, b.ptr, b.allocated, b.seq, b.record, b.stack})
	}
}
