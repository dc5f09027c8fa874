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
	here, now := t.sections.goroutine(), t.clock.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.admit(ptr, x.Each); err != nil {
		return fmt.Errorf("register %s: %w", x.String(), err)
	}
	in := t.sections.at(here)
	bucket := t.ledger.Buckets.GetOrMake(placeOf(stack, in, 0), line, &x, t.ledger.Epoch)
	id, r := t.ledger.Records.Get()
	r.Ptr, r.Foreign = ptr, true
	t.insert(r, bucket, x.Each, in, now, mem.Registered)
	t.ledger.Addresses.Add(uint64(ptr), id)
	return nil
}

// Unregister takes memory that Register entered out of the ledger. Call it before the memory is freed:
// from then on the driver may hand the address out again. If the free fails, putBack enters the
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
// That of putBack is ErrDuplicatePtr if other live memory has the address by then, and alloc.ErrClosed after Close.
func (t *MemTracker) Unregister(ptr alloc.Ptr) (putBack func() error, err error) {
	w, err := t.withdraw(ptr)
	if err != nil {
		return nil, err
	}
	return func() error { return t.reinsert(&w) }, nil
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
	return newOutOfMemory(t, err, stack, 0, x)
}

// request is what an allocation asks for beside the tensor.
type request struct {
	stack     tables.StackID
	stream    alloc.Stream
	goroutine goroutine // determines the section
	now       time.Duration
	line      ledger.LineID // of the stack, if hasLine: a new bucket needs it
	hasLine   bool
}

// alloc is Alloc with the call stack that the exported function has captured, which knows how many frames its caller is
// away.
//
// It has two paths. The fast one serves a request from an inactive block of the cache, unless its call stack is new. All
// others take the slow one, which also finds the errors. A tensor is checked and measured only if no bucket was found lately: a
// tensor that equals one of the ledger is valid.
func (t *MemTracker) alloc(stack tables.StackID, on alloc.Stream, shape alloc.Shape, dtype alloc.DType, kind Kind) (*Buffer, error) {
	var x tables.Tensor // set field by field: a copy of a value built elsewhere would make the processor wait
	x.Kind, x.DType, x.Memory, x.Shape = kind, dtype, alloc.Memory(t.memory.Load()), shape
	by := request{stack: stack, stream: on, goroutine: t.sections.goroutine(), now: t.clock.now()}
	var b Buffer
	if t.cache == nil || !t.allocFast(&b, &x, by) {
		var err error
		if b, err = t.allocSlow(&x, by); err != nil {
			return nil, err
		}
	}
	// Made when the lock is released: to take or release it would wait until the memory of a new object is fetched.
	own := new(Buffer)
	*own = b
	t.watch(own)
	if t.lateWrites != nil {
		t.lateWrites.checkReused(own.ptr, own.Allocation().Allocated, stack)
	}
	return own, nil
}

// allocFast reports whether the cache and the ledger have all that the request needs. Then b is the new Buffer; otherwise
// nothing has changed.
func (t *MemTracker) allocFast(b *Buffer, x *tables.Tensor, by request) bool {
	t.locked.PollAndLock()
	ok := t.allocCached(b, x, by)
	t.mu.Unlock()
	return ok
}

// allocSlow serves any request. With a cache it asks the driver only if no inactive block serves, so that a request with a
// new shape or call stack waits for no driver call of others.
func (t *MemTracker) allocSlow(x *tables.Tensor, by request) (b Buffer, err error) {
	if err := x.Measure(); err != nil {
		return b, fmt.Errorf("alloc: %w", err)
	}
	if t.closed.Load() {
		return b, fmt.Errorf("alloc %s: tracker: %w", x.String(), alloc.ErrClosed)
	}
	by.line, by.hasLine = t.stacks.Line(by.stack), true
	if t.cache == nil {
		b, err = t.allocDevice(x, by)
	} else {
		t.locked.PollAndLock()
		cached := t.allocCached(&b, x, by)
		if !cached {
			t.history.Advance(by.now) // events of the cache have this time: see addCacheEvent
		}
		t.mu.Unlock()
		if cached {
			return b, nil
		}
		b, err = t.allocDriver(x, by)
	}
	if errors.Is(err, alloc.ErrOutOfMemory) {
		return b, newOutOfMemory(t, err, by.stack, by.stream, *x)
	}
	if err != nil {
		return b, fmt.Errorf("alloc %s: %w", x.String(), err)
	}
	return b, nil
}

// allocCached makes b the Buffer of an inactive block, if one serves the request. The cache and the ledger change in one
// step; if it reports false, neither has changed. If the tensor's bucket is new, the request must have its line, or the line
// must be known already: to find it takes long. The caller holds the lock.
func (t *MemTracker) allocCached(b *Buffer, x *tables.Tensor, by request) bool {
	if t.ledger.Closed {
		return false
	}
	in := t.sections.at(by.goroutine)
	place := placeOf(by.stack, in, t.ledger.Streams.At(by.stream))
	bucket := t.ledger.Buckets.Recent(place, x)
	if bucket == 0 {
		return t.allocCachedNew(b, x, by, in, place)
	}
	n := t.ledger.Buckets.At(bucket).Each
	if !t.ledger.Fits(n) {
		return false
	}
	id, r := t.ledger.Records.Get()
	block, p, allocated, ok := t.locked.Alloc(n, by.stream, cachelock.Owner(id))
	if !ok {
		t.ledger.Records.Put(id)
		return false
	}
	r.Ptr = p
	b.origin, b.ptr, b.seq, b.record, b.block = t.ledger.Buckets.At(bucket).Origin, p, t.history.Next, id, block
	t.insert(r, bucket, allocated, in, by.now, mem.Allocated)
	return true
}

// allocCachedNew is allocCached for a bucket that was not found lately.
func (t *MemTracker) allocCachedNew(b *Buffer, x *tables.Tensor, by request, in *section, place ledger.Place) bool {
	if !by.hasLine {
		by.line, by.hasLine = t.stacks.KnownLine(by.stack)
	}
	if !by.hasLine || x.Measure() != nil || !t.ledger.Fits(x.Each) {
		return false
	}
	x.Memory = t.cacheMemory()
	id, r := t.ledger.Records.Get()
	block, p, allocated, ok := t.locked.Alloc(x.Each, by.stream, cachelock.Owner(id))
	if ok && t.ledger.Lookup(p) != 0 { // it is registered: allocDriver returns the error
		_, _ = t.locked.Free(block, p, cachelock.Owner(id))
		ok = false
	}
	if !ok {
		t.ledger.Records.Put(id)
		return false
	}
	bucket := t.ledger.Buckets.GetOrMake(place, by.line, x, t.ledger.Epoch)
	r.Ptr = p
	b.origin, b.ptr, b.seq, b.record, b.block = t.ledger.Buckets.At(bucket).Origin, p, t.history.Next, id, block
	t.insert(r, bucket, allocated, in, by.now, mem.Allocated)
	return true
}

// allocDriver allocates through the cache, which may ask the driver. No lock is held while the driver is asked; the cache
// takes the lock again to insert the memory.
func (t *MemTracker) allocDriver(x *tables.Tensor, by request) (b Buffer, err error) {
	own := x.Clone()
	err = t.locked.AllocSlow(own.Each, by.stream, func(block cachelock.Block, p alloc.Ptr, allocated alloc.Bytes) (cachelock.Owner, error) {
		own.Memory = t.cacheMemory()
		var err error
		b, err = t.insertNew(p, allocated, &own, by)
		b.block = block
		return cachelock.Owner(b.record), err
	})
	if err != nil && t.closed.Load() {
		releaseAfterClose(t)
	}
	return b, err
}

// cacheMemory returns the type of memory that the cache allocates, and stores it for the fast path. It changes when the
// cache finds that its segments cannot expand, for any of the trackers that share it. The caller holds the lock.
func (t *MemTracker) cacheMemory() alloc.Memory {
	memory := t.locked.Memory()
	t.memory.Store(uint32(memory))
	return memory
}

// allocDevice allocates from a device without a cache.
func (t *MemTracker) allocDevice(x *tables.Tensor, by request) (b Buffer, err error) {
	p, allocated, err := t.callDevice(by.stream, x.Each)
	if err != nil {
		return b, err
	}
	if p == 0 {
		return b, fmt.Errorf("%s: %w: no address", t.name, alloc.ErrBrokenDriver)
	}
	t.mu.Lock()
	other := t.ledger.Lookup(p)
	ours := other != 0 && !t.ledger.Records.At(other).Foreign
	b, err = t.insertNew(p, allocated, x, by)
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

// callDevice allocates from a device that has no cache over it. A device that does not say how much it took
// took n.
func (t *MemTracker) callDevice(on alloc.Stream, n alloc.Bytes) (p alloc.Ptr, allocated alloc.Bytes, err error) {
	switch {
	case t.streamed != nil:
		return t.streamed.AllocOn(n, on)
	case t.sized != nil:
		return t.sized.AllocSized(n)
	}
	p, err = t.device.Alloc(n)
	return p, n, err
}

// insertNew inserts memory that the device gave, in a bucket that may be new. If it returns an error, nothing is
// inserted. The caller holds the lock.
func (t *MemTracker) insertNew(p alloc.Ptr, allocated alloc.Bytes, x *tables.Tensor, by request) (b Buffer, err error) {
	if t.ledger.Closed {
		return b, fmt.Errorf("tracker: %w", alloc.ErrClosed)
	}
	if !t.ledger.Fits(x.Each) {
		return b, fmt.Errorf("%v: %v more than the %v in the ledger overflows 64 bits", p, x.Each, t.ledger.Current.Bytes)
	}
	if other := t.ledger.Lookup(p); other != 0 {
		return b, t.ledger.DuplicateError(other)
	}
	in := t.sections.at(by.goroutine)
	bucket := t.ledger.Buckets.GetOrMake(placeOf(by.stack, in, t.ledger.Streams.At(by.stream)), by.line, x, t.ledger.Epoch)
	id, r := t.ledger.Records.Get()
	r.Ptr = p
	t.insert(r, bucket, allocated, in, by.now, mem.Allocated)
	return Buffer{origin: t.ledger.Buckets.At(bucket).Origin, ptr: p, seq: r.Seq, record: id}, nil
}

// insert makes a record live, and adds it to its section and to the history. The caller holds the lock.
func (t *MemTracker) insert(r *ledger.Record, bucket slab.ID, allocated alloc.Bytes, in *section, now time.Duration, action mem.Action) {
	r.Since, r.Seq = t.history.Advance(now), t.history.Next
	b := t.ledger.Insert(r, bucket, allocated)
	if in != nil && !b.Memory.OnHost() {
		t.sections.allocated(in, b.Each)
	}
	t.addEvent(r, b, r.Since, action)
}

// countFree subtracts a record, which the ledger has still, from its section, and adds the free to the history. The
// caller holds the lock.
func (t *MemTracker) countFree(r *ledger.Record, here goroutine, now time.Duration, action mem.Action) {
	if t.ledger.Closed {
		return // the ledger is gone, the memory is not
	}
	b := t.ledger.Buckets.At(r.Bucket)
	if (here != 0 || b.Section != noPath) && !b.Memory.OnHost() {
		t.sections.freed(here, b.Section, 1, b.Each)
	}
	now = t.history.Advance(now)
	t.ledger.Buckets.CountFree(b, now-r.Since, now, t.history.Next)
	t.addEvent(r, b, now, action)
}

// uncountFree undoes countFree for a record whose memory could not be freed.
func (t *MemTracker) uncountFree(r *ledger.Record, here goroutine, now time.Duration) {
	b := t.ledger.Buckets.At(r.Bucket)
	if (here != 0 || b.Section != noPath) && !b.Memory.OnHost() {
		t.sections.freed(here, b.Section, -1, b.Each)
	}
	t.addEvent(r, b, t.history.Advance(now), mem.FreeFailed)
}

// addEvent adds an event about a record of a bucket to the history. The caller holds the lock.
func (t *MemTracker) addEvent(r *ledger.Record, b *ledger.Bucket[*MemTracker], now time.Duration, action mem.Action) {
	e := t.history.Slot(&b.InHistory, &b.Group.Tensor)
	e.Since, e.Action, e.Ptr, e.Allocated = now, action, r.Ptr, r.Allocated
	e.Stack, e.Section, e.Stream = b.Stack, uint16(b.Section), b.Stream
}

// watch has the collector call unreachable when the program can no longer reach b. The cleanup gets a copy: b itself
// would stay reachable through it.
func (t *MemTracker) watch(b *Buffer) {
	if t.findUnreachable || t.freeUnreachable {
		own := *b
		runtime.AddCleanup(b, (*Buffer).unreachable, &own)
	}
}

// admit returns why an address cannot be registered. The caller holds the lock.
func (t *MemTracker) admit(ptr alloc.Ptr, bytes alloc.Bytes) error {
	switch {
	case t.ledger.Closed:
		return fmt.Errorf("tracker: %w", alloc.ErrClosed)
	case !t.ledger.Fits(bytes):
		return fmt.Errorf("%v: %v more than the %v in the ledger overflows 64 bits", ptr, bytes, t.ledger.Current.Bytes)
	}
	if id := t.find(ptr); id != 0 {
		return t.ledger.DuplicateError(id)
	}
	return nil
}

// withdraw removes registered memory from the ledger.
func (t *MemTracker) withdraw(ptr alloc.Ptr) (w ledger.Withdrawn, err error) {
	here, now := t.sections.goroutine(), t.clock.now()
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
	t.countFree(r, here, now, mem.Unregistered)
	return t.ledger.Withdraw(id, r), nil
}

// reinsert undoes withdraw.
func (t *MemTracker) reinsert(w *ledger.Withdrawn) error {
	here, now := t.sections.goroutine(), t.clock.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.ledger.Closed {
		return fmt.Errorf("put back %v: tracker: %w", w.Ptr(), alloc.ErrClosed)
	}
	if other := t.find(w.Ptr()); other != 0 {
		return fmt.Errorf("put back %w", t.ledger.DuplicateError(other))
	}
	t.uncountFree(t.ledger.Reinsert(w), here, now)
	return nil
}

// setKind sets the kind of the record that find returns. It calls find with the lock held.
func (t *MemTracker) setKind(ptr alloc.Ptr, kind Kind, find func() slab.ID) error {
	asked, err := tables.Untyped(kind, 0)
	if err != nil {
		return fmt.Errorf("set the kind of %v: %w", ptr, err)
	}
	kind = asked.Clone().Kind
	now := t.clock.now()
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
	b := t.ledger.Buckets.At(r.Bucket)
	if b.Group.Kind == kind {
		return nil
	}
	end, begin := mem.Freed, mem.Allocated
	if r.Foreign {
		end, begin = mem.Unregistered, mem.Registered
	}
	x := b.Group.Tensor
	x.Kind = kind
	now = t.history.Advance(now)
	t.addEvent(r, b, now, end)
	t.ledger.Move(id, r, t.ledger.Buckets.GetOrMake(b.Place, b.Line, &x, t.ledger.Epoch))
	t.addEvent(r, t.ledger.Buckets.At(r.Bucket), now, begin)
	return nil
}

// find returns the live record at an address, or 0. The caller holds the lock.
func (t *MemTracker) find(ptr alloc.Ptr) slab.ID {
	if id := t.ledger.Lookup(ptr); id != 0 || t.cache == nil || t.ledger.Closed {
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
