package tracker

import (
	"fmt"
	"runtime"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Buffer is a piece of device memory that a MemTracker gave out. Its methods may
// be called from any goroutine.
type Buffer struct {
	record *record
}

// record is what the ledger holds of live memory. It does not refer to the
// Buffer, so that the Go collector can find that nobody else does.
type record struct {
	tracker   *MemTracker
	cell      *cell // kind, shape, dtype, stack, section
	ptr       alloc.Ptr
	allocated alloc.Bytes
	since     time.Duration // of the allocation, since the tracker's start
	seq       uint64
	label     string
	state     state
	foreign   bool // registered: other code owns the memory
	lost      bool // its Buffer was collected
}

// state is guarded by the tracker's mutex, as are label and lost.
type state uint8

const (
	live state = iota
	freed
)

// newBuffer returns a Buffer and its record, as one Go allocation unless the
// Buffer must be one of its own for the collector to find it.
func (t *MemTracker) newBuffer() *Buffer {
	if t.lost != IgnoreLost {
		return &Buffer{&record{tracker: t}}
	}
	both := new(struct {
		Buffer
		record
	})
	both.Buffer.record = &both.record
	both.tracker = t
	return &both.Buffer
}

// Ptr returns the buffer's address on the device.
func (b *Buffer) Ptr() alloc.Ptr { return b.record.ptr }

// Shape returns the shape it was allocated with; the caller must not write to it.
func (b *Buffer) Shape() alloc.Shape { return b.record.cell.group.shape }

// DType returns the type of its elements.
func (b *Buffer) DType() alloc.DType { return b.record.cell.group.dtype }

// Kind returns what it is for.
func (b *Buffer) Kind() Kind { return b.record.cell.group.kind }

// Bytes returns the memory that was asked for.
func (b *Buffer) Bytes() alloc.Bytes { return b.record.cell.group.each }

// Allocated returns the memory that the device took for it, after rounding.
func (b *Buffer) Allocated() alloc.Bytes { return b.record.allocated }

// Stack returns the calls that led to the allocation.
func (b *Buffer) Stack() Stack { return b.record.tracker.stacks.resolve(b.record.cell.stack) }

// Label returns the name that SetLabel gave.
func (b *Buffer) Label() string {
	b.record.tracker.mu.Lock()
	defer b.record.tracker.mu.Unlock()
	return b.record.label
}

// SetLabel names the buffer, for snapshots: "layer1.0.conv1.weight".
func (b *Buffer) SetLabel(label string) {
	b.record.tracker.mu.Lock()
	defer b.record.tracker.mu.Unlock()
	b.record.label = label
}

// String describes the buffer on one line.
func (b *Buffer) String() string { return b.record.String() }

func (r *record) String() string {
	g := r.cell.group
	return fmt.Sprintf("%v %v %v, %v at %v", g.kind, g.shape, g.dtype, g.each, r.ptr)
}

// Free gives the memory back to the cache, and forgets the buffer. The memory
// may be handed out again at once: work that the device still has queued on it
// must be done. A second Free is alloc.ErrDoubleFree. If the device refuses,
// the buffer stays live and the error says why. To free a nil Buffer does nothing.
func (b *Buffer) Free() error {
	if b == nil {
		return nil
	}
	defer runtime.KeepAlive(b) // it is not lost while it is being freed
	return b.record.free()
}

func (r *record) free() error {
	t := r.tracker
	if err := t.forget(r, Freed); err != nil {
		return err
	}
	if err := t.device.Free(r.ptr); err != nil {
		t.restore(r)
		return fmt.Errorf("free %v: %w", r, err)
	}
	return t.emptyIfClosed()
}
