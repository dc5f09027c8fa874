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

// SetKind says what memory that was entered by Register is for, by its address, as Buffer.SetKind
// does. If no live memory has that address, the error is alloc.ErrUnknownPtr; other errors are
// those of Buffer.SetKind.
func (t *MemTracker) SetKind(ptr alloc.Ptr, kind Kind) error {
	return t.setKind(ptr, kind, func() slab.ID { return t.find(ptr) })
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

// fromCache makes b the Buffer of an inactive block if one serves the request and the ledger has its cell. Then the cache and
// the ledger change in one step, under one lock. It reports false, and has changed nothing, if the slow way is needed:
// enquire, which finds any error again. A tensor that equals one of the ledger needs no measuring.
func (t *MemTracker) fromCache(b *Buffer, x *tables.Tensor, by asker) bool {
	t.locked.PollAndLock()
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

// fromDriver allocates through the cache, which may ask the driver, and makes the cell if it is new. No lock is
// held while the driver is asked; the cache takes the lock again to enter the memory.
func (t *MemTracker) fromDriver(x *tables.Tensor, by asker) (b Buffer, err error) {
	own := x.Clone()
	t.tick(by.now)
	err = t.locked.AllocSlow(own.Each, by.stream, func(block cachelock.Block, p alloc.Ptr, allocated alloc.Bytes) (cachelock.Owner, error) {
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

// sizedAllocator is a device that takes more for a request than was asked, and says how much.
type sizedAllocator interface {
	AllocSized(n alloc.Bytes) (p alloc.Ptr, allocated alloc.Bytes, err error)
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

// leave tells the section and the history that a record leaves the ledger. The
// caller holds the lock.
func (t *MemTracker) leave(r *ledger.Record, here goroutine, now time.Duration, action mem.Action) {
	if t.ledger.Closed {
		return // the ledger is gone, the memory is not
	}
	c := t.ledger.Cells.At(r.Cell)
	if (here != 0 || c.Section != noPath) && !c.Memory.OnHost() {
		t.sections.freed(here, c.Section, 1, c.Each)
	}
	now = t.history.Moment(now)
	t.ledger.Cells.WasFreed(c, now-r.Since, now, t.history.Next)
	t.note(r, c, now, action)
}

// unleave undoes leave for a record whose memory could not be freed.
func (t *MemTracker) unleave(r *ledger.Record, here goroutine, now time.Duration) {
	c := t.ledger.Cells.At(r.Cell)
	if (here != 0 || c.Section != noPath) && !c.Memory.OnHost() {
		t.sections.freed(here, c.Section, -1, c.Each)
	}
	t.note(r, c, t.history.Moment(now), mem.FreeFailed)
}

// note adds an event about a record of a cell to the history. The caller holds the lock.
func (t *MemTracker) note(r *ledger.Record, c *ledger.Cell[*MemTracker], now time.Duration, action mem.Action) {
	e := t.history.Slot()
	e.Since, e.Action, e.Ptr, e.Allocated = now, action, r.Ptr, r.Allocated
	e.Tensor, e.Stack, e.Section, e.Stream = &c.Group.Tensor, c.Stack, uint16(c.Section), c.Stream
}

// watch has the collector call lose when the program can no longer reach b. The cleanup gets a copy: b itself
// would stay reachable through it.
func (t *MemTracker) watch(b *Buffer) {
	if t.findLost || t.freeLost {
		own := *b
		runtime.AddCleanup(b, (*Buffer).lose, &own)
	}
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

// setKind sets the kind of the record that find returns. It calls find with the lock held.
func (t *MemTracker) setKind(ptr alloc.Ptr, kind Kind, find func() slab.ID) error {
	asked, err := tables.Untyped(kind, 0)
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
	leaves, comes := mem.Freed, mem.Allocated
	if r.Foreign {
		leaves, comes = mem.Unregistered, mem.Registered
	}
	x := c.Group.Tensor
	x.Kind = kind
	now = t.history.Moment(now)
	t.note(r, c, now, leaves)
	t.ledger.Move(id, r, t.ledger.Cells.Make(c.Place, c.Line, &x, t.ledger.Epoch))
	t.note(r, t.ledger.Cells.At(r.Cell), now, comes)
	return nil
}

// find returns the live record at an address, or 0. The caller holds the lock.
func (t *MemTracker) find(ptr alloc.Ptr) slab.ID {
	if id := t.ledger.At(ptr); id != 0 || t.cache == nil || t.ledger.Closed {
		return id
	}
	// A cache that several trackers share knows the numbers of all of them.
	id := slab.ID(t.locked.Owner(ptr))
	if id < t.ledger.Records.Bound() {
		if r := t.ledger.Records.At(id); r.State == ledger.Live && r.Ptr == ptr {
			return id
		}
	}
	return 0
}
