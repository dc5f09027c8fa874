package tracker

import (
	"errors"
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/addrtable"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// ErrDuplicatePtr is the error of adding an address that the ledger holds live
// already: somebody freed it without telling the tracker, or registered it twice.
var ErrDuplicatePtr = errors.New("address is already live in the ledger")

// ledger is the one account of live buffers. After every call, totals are the
// sum over records and over cells alike. Its methods are not safe for concurrent
// use: the tracker's lock guards it.
type ledger struct {
	records slab.Slab[record]
	labels  slab.Slab[string]
	cells   cells
	streams streams
	// addresses finds records by address, except those in the tracker's cache:
	// that knows whose they are.
	addresses addrtable.Table

	// Of the device's memory; see also byMemory.
	current snapshot.Tally // requested
	total   snapshot.Tally // ever
	peak    snapshot.Tally // count and bytes at the moment of most bytes
	// epoch counts the moments of most bytes; see cell.peak.
	epoch uint64

	// high is the highest level since a section last began or ended.
	high alloc.Bytes

	allocated     alloc.Bytes
	allocatedPeak alloc.Bytes
	registered    alloc.Bytes // the part of allocated that is not the tracker's own

	// byMemory is current by the kind of memory, and what is live on the host.
	byMemory snapshot.ByMemory
	host     hostBytes
	buffers  int64 // records of the tracker's own, also after Close
	closed   bool

	freed []*snapshot.Lifetimes // by line; nil where nothing was freed
}

// record is what the ledger holds of live memory. It has no pointers, and so
// costs the Go collector nothing.
type record struct {
	ptr       alloc.Ptr
	allocated alloc.Bytes
	since     time.Duration // of the allocation, since the tracker's start
	seq       uint64        // of its event, which no other record has
	cell      slab.ID       // kind, shape, dtype, stack, section
	label     slab.ID       // 0 is none
	state     state
	foreign   bool // registered: other code owns the memory
	lost      bool // its Buffer was collected
}

type state uint8

const (
	unused  state = iota
	live          // counted
	leaving       // not counted: its memory is being freed, which may fail
)

func newLedger() ledger {
	return ledger{cells: newCells(), streams: newStreams(), addresses: addrtable.New(), epoch: 1}
}

// close forgets what was ever counted. The records stay, so that live buffers
// can be freed, once.
func (l *ledger) close() {
	l.cells.Reset() // snapshots may be reading them
	l.cells.retired.Reset()
	l.cells, l.addresses, l.freed = newCells(), addrtable.New(), nil
	l.current, l.total, l.peak = snapshot.Tally{}, snapshot.Tally{}, snapshot.Tally{}
	l.allocated, l.allocatedPeak, l.registered, l.high = 0, 0, 0, 0
	l.byMemory, l.host = snapshot.ByMemory{}, hostBytes{}
	l.closed = true
}

// admits reports whether one more buffer of that size can be counted.
func (l *ledger) admits(bytes alloc.Bytes) bool {
	const rounding = 4 * alloc.MiB // at most, by the cache
	return bytes <= alloc.MaxBytes-rounding-max(l.current.Bytes, l.allocated, l.host.allocated)
}

// at returns the live record at an address, or 0; see addresses.
func (l *ledger) at(p alloc.Ptr) slab.ID {
	search := l.addresses.Look(uint64(p))
	return l.next(&search, p)
}

// next moves a search on to the record at an address, and returns it, or 0.
func (l *ledger) next(search *addrtable.Search, p alloc.Ptr) slab.ID {
	for {
		id := search.Next()
		if id == 0 || l.records.At(id).ptr == p {
			return id
		}
	}
}

// forget takes the address of a record out of the table, if it is there.
func (l *ledger) forget(r *record) {
	search := l.addresses.Look(uint64(r.ptr))
	if l.next(&search, r.ptr) != 0 {
		l.addresses.Remove(&search)
	}
}

// duplicate is the error of an address that is live.
func (l *ledger) duplicate(id slab.ID) error {
	r := l.records.At(id)
	g := l.cells.At(r.cell).group
	return fmt.Errorf("%v: %w, as %v %v", r.ptr, ErrDuplicatePtr, g.Kind, g.Shape)
}

// add makes a record live that the caller has put its address, time and owner in.
func (l *ledger) add(r *record, in slab.ID, allocated alloc.Bytes) {
	r.cell, r.allocated, r.state = in, allocated, live
	if !r.foreign {
		l.buffers++
	}
	c := l.enter(r)
	c.total++
	if c.memory.OnHost() {
		return
	}
	l.total.Count++
	if l.total.Bytes += c.each; l.total.Bytes < 0 {
		l.total.Bytes = alloc.MaxBytes
	}
}

// enter counts a record in.
func (l *ledger) enter(r *record) *cell {
	c := l.change(r.cell)
	c.live++
	its := &l.byMemory[c.memory]
	its.Count++
	its.Bytes += c.each
	if c.memory.OnHost() {
		l.host.add(r, r.allocated)
		return c
	}
	l.current.Count++
	l.current.Bytes += c.each
	l.allocated += r.allocated
	if r.foreign {
		l.registered += r.allocated
	}
	l.allocatedPeak = max(l.allocatedPeak, l.allocated)
	l.high = max(l.high, l.current.Bytes)
	if l.current.Bytes > l.peak.Bytes {
		l.peak = l.current
		l.epoch++
	}
	return c
}

// leave counts a record out.
func (l *ledger) leave(r *record) {
	c := l.change(r.cell)
	c.live--
	its := &l.byMemory[c.memory]
	its.Count--
	its.Bytes -= c.each
	if c.memory.OnHost() {
		l.host.add(r, -r.allocated)
		return
	}
	l.current.Count--
	l.current.Bytes -= c.each
	l.allocated -= r.allocated
	if r.foreign {
		l.registered -= r.allocated
	}
}

// move counts a live record in another cell.
func (l *ledger) move(id slab.ID, r *record, to slab.ID) {
	l.leave(r)
	l.cells.At(r.cell).total--
	l.records.Touch(id)
	r.cell = to
	l.enter(r).total++
}

// hostBytes is what live buffers take of the host's memory.
type hostBytes struct {
	allocated  alloc.Bytes
	registered alloc.Bytes // the part of allocated that is not the tracker's own
}

func (h *hostBytes) add(r *record, bytes alloc.Bytes) {
	h.allocated += bytes
	if r.foreign {
		h.registered += bytes
	}
}

// wasFreed counts the age at which a buffer of a cell was freed.
func (l *ledger) wasFreed(c *cell, age time.Duration, event uint64) {
	for int(c.line) >= len(l.freed) {
		l.freed = append(l.freed, nil)
	}
	its := l.freed[c.line]
	if its == nil {
		its = new(snapshot.Lifetimes)
		l.freed[c.line] = its
	}
	its.Freed(age, event)
}

// change announces that a cell's count changes.
func (l *ledger) change(id slab.ID) *cell {
	c := l.cells.At(id)
	l.cells.Touch(id)
	// The count at the peak is saved before it first changes after it. A new peak
	// starts a new epoch, which forgets every saved count at once: so what was
	// live at the peak is known exactly, at the cost of a comparison.
	if c.epoch != l.epoch {
		c.epoch, c.peak = l.epoch, c.live
	}
	if c.interval != l.cells.interval {
		l.cells.note(id, c)
	}
	return c
}

// remove takes a live record out for good.
func (l *ledger) remove(id slab.ID, r *record) {
	if !l.closed {
		l.leave(r)
	}
	l.drop(id, r)
}

// drop gives the room of a record back.
func (l *ledger) drop(id slab.ID, r *record) {
	if !r.foreign {
		l.buffers--
	}
	if r.label != 0 {
		l.labels.Put(r.label)
	}
	l.records.Put(id)
}

// takeOut takes a live record out while its memory is being freed; putBack or
// settle follows.
func (l *ledger) takeOut(id slab.ID, r *record) {
	l.records.Touch(id)
	r.state = leaving
	if !l.closed {
		l.forget(r)
		l.leave(r)
		l.cells.At(r.cell).pins++
	}
}

// putBack makes a record live again whose memory could not be freed. It fails
// if the address has another owner by now; then the record is gone.
func (l *ledger) putBack(id slab.ID, r *record) error {
	if l.closed {
		l.records.Touch(id)
		r.state = live
		return nil
	}
	if other := l.at(r.ptr); other != 0 {
		err := l.duplicate(other)
		l.settle(id, r)
		return err
	}
	l.records.Touch(id)
	r.state = live
	l.addresses.Add(uint64(r.ptr), id)
	l.cells.At(r.cell).pins--
	l.enter(r)
	return nil
}

// settle forgets a record whose memory is free.
func (l *ledger) settle(id slab.ID, r *record) {
	if !l.closed {
		l.cells.At(r.cell).pins--
	}
	l.drop(id, r)
}

// resetPeak makes the present level the highest.
func (l *ledger) resetPeak() {
	l.peak = l.current
	l.allocatedPeak = l.allocated
	l.epoch++
}

// labelOf returns the name of a live record.
func (l *ledger) labelOf(r *record) string {
	if r.label == 0 {
		return ""
	}
	return *l.labels.At(r.label)
}

// label names a live record.
func (l *ledger) label(id slab.ID, r *record, name string) {
	l.records.Touch(id)
	if r.label != 0 {
		l.labels.Put(r.label)
		r.label = 0
	}
	if name != "" {
		var text *string
		r.label, text = l.labels.Get()
		*text = name
	}
}
