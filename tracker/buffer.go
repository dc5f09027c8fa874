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
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Buffer is device memory that a MemTracker allocated. Its methods may be called from any
// goroutine.
type Buffer struct {
	origin *ledger.Origin[*MemTracker] // the tracker, the group and the call stack
	ptr    alloc.Ptr
	seq    uint64 // sequence number of its record
	record slab.ID
	block  cachelock.Block // the cache's; 0 without a cache
}

// Ptr returns the buffer's address on the device.
func (b *Buffer) Ptr() alloc.Ptr { return b.ptr }

// Shape returns the shape of the allocation; the caller must not write to it.
func (b *Buffer) Shape() alloc.Shape { return b.group().Shape }

// DType returns the element type.
func (b *Buffer) DType() alloc.DType { return b.group().DType }

// Bytes returns the requested bytes.
func (b *Buffer) Bytes() alloc.Bytes { return b.group().Each }

// Allocation returns what a Snapshot says of the buffer: its kind, label, stream and call stack, and
// its size after rounding. Of a freed buffer it has what does not change, and Allocated is 0.
func (b *Buffer) Allocation() snapshot.Allocation {
	t, g := b.tracker(), b.group()
	a := snapshot.Allocation{
		Seq: b.seq, Ptr: b.ptr, Requested: g.Each,
		Group: snapshot.Group{Kind: g.Kind, Memory: g.Memory, DType: g.DType, Shape: g.Shape},
		Place: snapshot.Place{Stack: t.stacks.Stack(b.stack()), CallSite: t.stacks.Site(b.stack())},
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	r := b.live()
	if r == nil {
		return a
	}
	a.Allocated, a.Label, a.Unreachable, a.Stream = r.Allocated, t.ledger.LabelOf(r), r.Unreachable, t.ledger.Streams.Handles[r.Stream]
	a.Time = t.start.Add(r.Since)
	if !t.ledger.Closed {
		c := t.ledger.Buckets.At(r.Bucket)
		a.Kind, a.Section = c.Group.Kind, t.sections.paths.names[c.Section]
	}
	return a
}

// String describes the buffer on one line.
func (b *Buffer) String() string {
	if b.origin == nil {
		return "no buffer: a MemTracker makes them"
	}
	return fmt.Sprintf("%v %v %v, %v at %v", b.Allocation().Kind, b.group().Shape, b.group().DType, b.group().Each, b.ptr)
}

// SetLabel names the buffer, for snapshots: "layer1.0.conv1.weight". It has no effect on a
// freed buffer.
func (b *Buffer) SetLabel(label string) {
	t := b.tracker()
	t.mu.Lock()
	defer t.mu.Unlock()
	if r := b.live(); r != nil {
		t.ledger.Label(b.record, r, label)
	}
}

// SetKind says what a live buffer is for, where that was not known when it was allocated. The
// buffer counts for its new kind from now on; the peak stays what it was. The history shows a free
// and an allocation at the same time. The error is alloc.ErrUnknownPtr for a freed buffer,
// alloc.ErrClosed after the tracker's Close, or says that the kind is not valid.
func (b *Buffer) SetKind(kind Kind) error {
	return b.tracker().setKind(b.ptr, kind, func() slab.ID {
		if b.live() == nil {
			return 0
		}
		return b.record
	})
}

// RecordStream says that work on a stream uses the buffer, in addition to work on the stream that it was
// allocated for. When the buffer is freed, its memory is pending until the work
// that is queued on such streams by then is done; only then it is handed out again. Call
// it before Free. The stream must live until the memory is no longer pending.
//
// The error is alloc.ErrDoubleFree for a buffer that is freed, and errors.ErrUnsupported if the
// device has no events (RecordEvent of alloc.Device): there, wait for the stream before Free. It is
// also errors.ErrUnsupported for CU_STREAM_PER_THREAD, which is a different stream on each thread.
// Without a cache, on a device that knows no streams, RecordStream does nothing: the driver's own
// free waits for all work.
func (b *Buffer) RecordStream(s alloc.Stream) error {
	t := b.tracker()
	t.mu.Lock()
	var err error
	live := b.live() != nil
	if live && t.cache != nil {
		err = t.locked.RecordStream(b.block, s)
	}
	t.mu.Unlock()
	switch {
	case !live:
		return fmt.Errorf("record stream %#x for %v: %w", uint64(s), b, alloc.ErrDoubleFree)
	case t.cache == nil && t.streamed != nil:
		return t.streamed.RecordStream(b.ptr, s)
	case err == nil && t.lateWrites != nil:
		t.lateWrites.recordStream(b.seq, s)
	}
	return err
}

// Free gives the memory back to the cache and forgets the buffer. The memory may be handed out
// again at once, for work on the stream that it was allocated for. Work on other streams that uses
// it must be done, or be named by RecordStream or FreeOn. A second Free returns
// alloc.ErrDoubleFree. If the device refuses, the buffer stays live and the error says why. Free of
// a nil Buffer does nothing.
func (b *Buffer) Free() error {
	if b == nil {
		return nil
	}
	err := error(nil)
	if t := b.tracker(); t.lateWrites == nil {
		err = b.free(nil)
	} else {
		err = b.freeChecked(nil, tables.StackID(t.stacks.Table.Capture(1)))
	}
	runtime.KeepAlive(b) // it is reachable while it is being freed
	return err
}

// FreeOn calls RecordStream and then Free. Use it for a buffer whose last work was queued on
// another stream than its own. If there is an error, the buffer stays live. FreeOn of a nil Buffer
// does nothing.
func (b *Buffer) FreeOn(s alloc.Stream) error {
	if b == nil {
		return nil
	}
	err := error(nil)
	if t := b.tracker(); t.lateWrites == nil {
		err = b.free(&s)
	} else {
		err = b.freeChecked(&s, tables.StackID(t.stacks.Table.Capture(1)))
	}
	runtime.KeepAlive(b)
	return err
}

// free frees the buffer. on is a stream that may still use it, as in RecordStream; it is nil if
// there is no such stream.
func (b *Buffer) free(on *alloc.Stream) error {
	t := b.tracker()
	here, now := t.sections.goroutine(), t.clock.now()
	t.mu.Lock()
	r := b.live()
	if r == nil {
		t.mu.Unlock()
		return fmt.Errorf("free %v: %w", b, alloc.ErrDoubleFree)
	}
	if t.cache == nil {
		return b.freeOnDevice(r, on, here, now)
	}
	needsPoll, err := b.freeInCache(on)
	if err != nil {
		t.mu.Unlock()
		return fmt.Errorf("free %v: %w", b, err)
	}
	t.countFree(r, here, now, mem.Freed)
	t.ledger.Remove(b.record, r)
	closed := t.ledger.Closed
	t.mu.Unlock()
	if needsPoll {
		t.locked.Poll()
	}
	if closed {
		releaseAfterClose(t)
	}
	return nil
}

// freeChecked is free with Config.FindLateWrites: it fills the memory with the pattern first. The call stack is that of
// the free.
func (b *Buffer) freeChecked(on *alloc.Stream, stack tables.StackID) error {
	f := b.tracker().lateWrites
	streams, first := f.begin(b.seq, on)
	if !first {
		return fmt.Errorf("free %v: %w", b, alloc.ErrDoubleFree)
	}
	defer f.end(b.seq)
	if !b.isLive() || f.t.closed.Load() {
		return b.free(on)
	}
	a := b.Allocation()
	p := piece{b.ptr, a.Allocated, b.stack(), stack}
	filled := f.fill(p, a.Stream, streams)
	if filled {
		f.add(p)
	}
	err := b.free(on)
	if err != nil && filled {
		f.take(p.ptr, p.size)
	}
	return err
}

// freeInCache gives the memory to the cache. The caller holds the lock. If needsPoll is set, the caller polls the
// cache once it has released the lock: the memory still lacks the events by which the cache knows that its streams are done.
func (b *Buffer) freeInCache(on *alloc.Stream) (needsPoll bool, err error) {
	t := b.tracker()
	if on != nil {
		if err := t.locked.RecordStream(b.block, *on); err != nil {
			return false, err
		}
	}
	return t.locked.Free(b.block, b.ptr, cachelock.Owner(b.record))
}

// freeOnDevice frees memory of a device without a cache. It removes the record first: once the
// memory is free, the driver may give its address to another goroutine. The caller holds the lock,
// which freeOnDevice releases.
func (b *Buffer) freeOnDevice(r *ledger.Record, on *alloc.Stream, here goroutine, now time.Duration) error {
	t := b.tracker()
	t.countFree(r, here, now, mem.Freed)
	t.ledger.Detach(b.record, r)
	t.mu.Unlock()
	returned := false
	defer func() {
		if !returned { // the device has panicked: whether the memory is free is not known
			_ = b.reattach(r, here)
		}
	}()
	err := b.callFree(on)
	returned = true
	if err != nil {
		return errors.Join(fmt.Errorf("free %v: %w", b, err), b.reattach(r, here))
	}
	t.mu.Lock()
	t.ledger.Discard(b.record, r)
	closed := t.ledger.Closed
	t.mu.Unlock()
	if closed {
		releaseAfterClose(t)
	}
	return nil
}

// reattach makes the record of a buffer live again whose memory the device did not free.
func (b *Buffer) reattach(r *ledger.Record, here goroutine) error {
	t := b.tracker()
	now := t.clock.now()
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.ledger.Reattach(b.record, r); err != nil {
		return err
	}
	if !t.ledger.Closed {
		t.uncountFree(r, here, now)
	}
	return nil
}

// callFree calls the device, without a lock.
func (b *Buffer) callFree(on *alloc.Stream) error {
	t := b.tracker()
	if on != nil && t.streamed != nil {
		if err := t.streamed.RecordStream(b.ptr, *on); err != nil {
			return err
		}
	}
	return t.device.Free(b.ptr)
}

// unreachable is called with a copy of a Buffer that the program can no longer reach. Most were freed before.
func (b *Buffer) unreachable() {
	t := b.tracker()
	now := t.clock.now()
	t.mu.Lock()
	r := b.live()
	if r == nil || t.ledger.Closed && !t.freeUnreachable {
		t.mu.Unlock()
		return
	}
	t.ledger.Records.Touch(b.record)
	r.Unreachable = true
	first := !t.foundUnreachable
	t.foundUnreachable = true
	if !t.ledger.Closed {
		t.addEvent(r, t.ledger.Buckets.At(r.Bucket), t.history.Advance(now), mem.Unreachable)
	}
	t.mu.Unlock()
	if first {
		t.report.Log.Warn("gpumemtrack: a buffer was never freed and nothing refers to it any more; see Leaks",
			"buffer", b.String(), "call_site", t.stacks.Site(b.stack()).String())
	}
	if !t.freeUnreachable {
		return
	}
	if err := b.Free(); err != nil {
		t.report.Log.Warn("gpumemtrack: an unreachable buffer could not be freed", "err", err)
	}
}

func (b *Buffer) tracker() *MemTracker { return b.origin.Owner }

func (b *Buffer) group() *ledger.Group { return b.origin.Group }

func (b *Buffer) stack() tables.StackID { return b.origin.Stack }

// live returns the record of a Buffer, or nil if it was freed. The ID alone is not enough, because it is used again when the record
// is free. Seq is unique. The caller holds the lock.
func (b *Buffer) live() *ledger.Record {
	r := b.tracker().ledger.Records.At(b.record)
	if r.State != ledger.Live || r.Seq != b.seq {
		return nil
	}
	return r
}

func (b *Buffer) isLive() bool {
	t := b.tracker()
	t.mu.Lock()
	defer t.mu.Unlock()
	return b.live() != nil
}
