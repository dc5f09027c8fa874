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
// The error is alloc.ErrShape if the shape or type is not valid, a *OutOfMemoryError if the device
// is full, ErrDuplicatePtr or alloc.ErrBrokenDriver if the device returned an overlapping or
// invalid address (which is not freed), and alloc.ErrClosed after Close. A kind that is not valid
// (see mem.Kind) is an error too. A failed Alloc changes nothing.
func (t *MemTracker) Alloc(shape alloc.Shape, dtype alloc.DType, kind Kind) (*Buffer, error) {
	return t.alloc(tables.StackID(t.stacks.Table.Capture(1)), 0, shape, dtype, kind)
}

// AllocOn allocates as Alloc does, but for work that runs on stream s; Alloc is for the default
// stream. The cache may return memory that earlier work on s still uses: a stream runs its work in
// order, so the new work starts after that. If other streams use the buffer too, call
// Buffer.RecordStream. The errors are those of Alloc, and errors.ErrUnsupported for
// CU_STREAM_PER_THREAD, which means a different stream on each thread.
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

// Make allocates a tensor whose elements have Go type T, as CopyIn and CopyOut take it:
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
	var x tables.Tensor // set field by field: a copy of a value built elsewhere would make the processor wait
	x.Kind, x.DType, x.Memory, x.Shape = kind, dtype, alloc.Memory(t.memory.Load()), shape
	by := asker{stack: stack, stream: on, here: t.sections.goroutine(), now: t.now()}
	var b Buffer
	if t.cache == nil || !t.fromCache(&b, &x, by) {
		var err error
		if b, err = t.enquire(&x, by); err != nil {
			return nil, err
		}
	}
	// Made when the lock is released: to take or release it would wait until the memory of a new object is fetched.
	own := new(Buffer)
	*own = b
	t.watch(own)
	if t.freed != nil {
		t.freed.handedOut(own)
	}
	return own, nil
}

// enquire is the slow way of Alloc: it checks the request, and may ask the driver.
func (t *MemTracker) enquire(x *tables.Tensor, by asker) (b Buffer, err error) {
	if err = x.Measure(); err != nil {
		return b, fmt.Errorf("alloc: %w", err)
	}
	if t.closed.Load() {
		return b, fmt.Errorf("alloc %s: tracker: %w", x.String(), alloc.ErrClosed)
	}
	by.line = t.stacks.Line(by.stack)
	if t.cache == nil {
		b, err = t.fromDevice(x, by)
	} else {
		b, err = t.fromDriver(x, by)
	}
	if errors.Is(err, alloc.ErrOutOfMemory) {
		return b, t.outOfMemory(err, by.stack, by.stream, *x)
	}
	if err != nil {
		return b, fmt.Errorf("alloc %s: %w", x.String(), err)
	}
	return b, nil
}

// asker says who asks for memory: the call stack, the stream, the goroutine (which tells the section) and the time.
// The line of code is set only where a new cell may be made, because finding it costs more than an
// Alloc from the cache.
type asker struct {
	stack  tables.StackID
	stream alloc.Stream
	here   goroutine
	now    time.Duration
	line   ledger.LineID
}

// fromCache makes b the Buffer of an inactive block if one serves the request and the ledger has its cell. Then the cache and
// the ledger change in one step, under one lock. It reports false, and has changed nothing, if the slow way is needed:
// enquire, which finds any error again. A tensor that equals one of the ledger needs no measuring.
func (t *MemTracker) fromCache(b *Buffer, x *tables.Tensor, by asker) bool {
	t.locked.LockSettled()
	ok := t.reuse(b, x, by)
	t.mu.Unlock()
	return ok
}

// reuse is fromCache for who holds the lock.
func (t *MemTracker) reuse(b *Buffer, x *tables.Tensor, by asker) bool {
	if t.ledger.Closed {
		return false
	}
	in := t.sections.at(by.here)
	place := placeOf(by.stack, in, t.ledger.Streams.At(by.stream))
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
	block, p, allocated, ok := t.locked.Alloc(c.Each, by.stream, cachelock.Owner(id))
	if !ok {
		t.ledger.Records.Put(id)
		return false
	}
	r.Ptr = p
	b.origin, b.ptr, b.seq, b.record, b.block = c.Origin, p, t.history.Next, id, block
	t.enter(r, cell, allocated, in, by.now, mem.Allocated)
	return true
}

// fromDriver allocates through the cache, which may ask the driver, and makes the cell if it is new. No lock is
// held while the driver is asked; the cache takes the lock again to enter the memory.
func (t *MemTracker) fromDriver(x *tables.Tensor, by asker) (b Buffer, err error) {
	own := x.Clone()
	t.tick(by.now)
	err = t.locked.AllocOwned(own.Each, by.stream, func(block cachelock.Block, p alloc.Ptr, allocated alloc.Bytes) (cachelock.Owner, error) {
		own.Memory = t.locked.Memory() // a cache may find that its segments cannot expand
		t.memory.Store(uint32(own.Memory))
		var err error
		b, err = t.enterNew(p, allocated, &own, by)
		b.block = block
		return cachelock.Owner(b.record), err
	})
	if err != nil && t.closed.Load() {
		t.freedAfterClose()
	}
	return b, err
}

// fromDevice allocates from a device without a cache.
func (t *MemTracker) fromDevice(x *tables.Tensor, by asker) (b Buffer, err error) {
	p, allocated, err := t.askDevice(by.stream, x.Each)
	if err != nil {
		return b, err
	}
	if p == 0 {
		return b, fmt.Errorf("%s: %w: no address", t.name, alloc.ErrBrokenDriver)
	}
	t.mu.Lock()
	other := t.ledger.At(p)
	ours := other != 0 && !t.ledger.Records.At(other).Foreign
	b, err = t.enterNew(p, allocated, x, by)
	if err == nil {
		t.ledger.Addresses.Add(uint64(p), b.record)
	}
	t.mu.Unlock()
	switch {
	case ours: // another Buffer owns this address: freeing it would free that Buffer's memory
		return b, fmt.Errorf("%s: %w: %w", t.name, alloc.ErrBrokenDriver, err)
	case err != nil:
		return b, errors.Join(err, t.device.Free(p))
	}
	return b, nil
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

// enterNew enters memory that the device gave, in a cell that may be new. If it returns an error, nothing is
// entered. The caller holds the lock.
func (t *MemTracker) enterNew(p alloc.Ptr, allocated alloc.Bytes, x *tables.Tensor, by asker) (b Buffer, err error) {
	if t.ledger.Closed {
		return b, fmt.Errorf("tracker: %w", alloc.ErrClosed)
	}
	if !t.ledger.Admits(x.Each) {
		return b, fmt.Errorf("%v: %v more than the %v in the ledger overflows 64 bits", p, x.Each, t.ledger.Current.Bytes)
	}
	if other := t.ledger.At(p); other != 0 {
		return b, t.ledger.Duplicate(other)
	}
	in := t.sections.at(by.here)
	cell := t.ledger.Cells.Make(placeOf(by.stack, in, t.ledger.Streams.At(by.stream)), by.line, x, t.ledger.Epoch)
	id, r := t.ledger.Records.Get()
	r.Ptr = p
	t.enter(r, cell, allocated, in, by.now, mem.Allocated)
	return Buffer{origin: t.ledger.Cells.At(cell).Origin, ptr: p, seq: r.Seq, record: id}, nil
}

// enter makes a record live and tells the section and the history. The caller holds the lock.
func (t *MemTracker) enter(r *ledger.Record, cell slab.ID, allocated alloc.Bytes, in *section, now time.Duration, action mem.Action) {
	r.Since, r.Seq = t.history.Moment(now), t.history.Next
	c := t.ledger.Add(r, cell, allocated)
	if in != nil && !c.Memory.OnHost() {
		t.sections.allocated(in, c.Each)
	}
	t.note(r, c, r.Since, action)
}

// watch has the collector call lose when the program can no longer reach b. The cleanup gets a copy: b itself
// would stay reachable through it.
func (t *MemTracker) watch(b *Buffer) {
	if t.findLost || t.freeLost {
		own := *b
		runtime.AddCleanup(b, (*Buffer).lose, &own)
	}
}
