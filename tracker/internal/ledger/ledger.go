// Package ledger is the account of live buffers: a record of each, counted by group, call site,
// stream and section, with the latest events. It is exact after every call. It knows no device
// and prints nothing. Its caller, package tracker, holds the lock under which it is changed.
package ledger

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/addrtable"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// ErrDuplicatePtr says that the ledger already has a live buffer at this address: it was freed
// without telling the tracker, or registered twice.
var ErrDuplicatePtr = errors.New("address is already live in the ledger")

// Ledger is the one account of live buffers. After every call, totals are the
// sum over records and over cells alike. Its methods are not safe for concurrent
// use: the tracker's lock guards it.
//
// Owner is the type of the value by which a caller gets from a buffer back to the ledger that counts it, such as
// *tracker.MemTracker: see Origin.
type Ledger[Owner any] struct {
	Records slab.Slab[Record]
	Labels  slab.Slab[string]
	Cells   cells[Owner]
	Streams streams
	// addresses finds records by address, except those of the tracker's cache, which knows their
	// owners.
	Addresses addrtable.Table

	// Of the device's memory; see also byMemory.
	Current mem.Tally // requested
	Total   mem.Tally // ever
	Peak    mem.Tally // count and bytes at the moment of most bytes
	// epoch counts the moments of most bytes; see cell.peak.
	Epoch uint64

	// high is the highest level since a section last began or ended.
	High alloc.Bytes

	Allocated     alloc.Bytes
	allocatedPeak alloc.Bytes
	Registered    alloc.Bytes // the part of allocated that is not the tracker's own

	// byMemory is current by the type of memory, and what is live on the host.
	ByMemory tables.ByMemory
	Host     hostBytes
	Buffers  int64 // records of the tracker's own, also after Close
	Closed   bool
}

// Record is what the ledger knows about live memory. It has no pointers, and so costs the Go
// collector nothing.
type Record struct {
	Ptr       alloc.Ptr
	Allocated alloc.Bytes
	Since     time.Duration // time of the allocation, since the tracker's start
	Seq       uint64        // number of its event; no other record has it
	Cell      slab.ID       // kind, shape, dtype, stack, section
	Label     slab.ID       // 0 means none
	State     state
	Foreign   bool   // registered: other code owns the memory
	Lost      bool   // its Buffer was collected
	Stream    uint8  // the cell's: the record outlives it
	InLine    uint16 // see survival.Buffer.Birth
	InPath    uint16
}

type state uint8

const (
	unused  state = iota
	Live          // counted
	leaving       // not counted: its memory is being freed, which may still fail
)

// NewLedger returns an empty ledger. The origin of each cell names its owner.
func NewLedger[Owner any](owner Owner) Ledger[Owner] {
	return Ledger[Owner]{Cells: newCells(owner), Streams: newStreams(), Addresses: addrtable.New(), Epoch: 1}
}

// Close forgets what was ever counted. The records stay, so that live buffers
// can be freed, once.
func (l *Ledger[Owner]) Close() {
	l.Cells.Reset() // snapshots may be reading them
	l.Cells.Retired.Reset()
	l.Cells, l.Addresses = newCells(l.Cells.owner), addrtable.New()
	l.Current, l.Total, l.Peak = mem.Tally{}, mem.Tally{}, mem.Tally{}
	l.Allocated, l.allocatedPeak, l.Registered, l.High = 0, 0, 0, 0
	l.ByMemory, l.Host = tables.ByMemory{}, hostBytes{}
	l.Closed = true
}

// Admits reports whether one more buffer of that size can be counted without overflow.
func (l *Ledger[Owner]) Admits(bytes alloc.Bytes) bool {
	const rounding = 4 * alloc.MiB // the most that the cache rounds up
	return bytes <= math.MaxInt64-rounding-max(l.Current.Bytes, l.Allocated, l.Host.Allocated)
}

// At returns the live record at an address, or 0; see addresses.
func (l *Ledger[Owner]) At(p alloc.Ptr) slab.ID {
	search := l.Addresses.Look(uint64(p))
	return l.next(&search, p)
}

// next moves a search on to the record at an address, and returns it, or 0.
func (l *Ledger[Owner]) next(search *addrtable.Search, p alloc.Ptr) slab.ID {
	for {
		id := search.Next()
		if id == 0 || l.Records.At(id).Ptr == p {
			return id
		}
	}
}

// Forget removes a record's address from the table, if it is there.
func (l *Ledger[Owner]) Forget(r *Record) {
	search := l.Addresses.Look(uint64(r.Ptr))
	if l.next(&search, r.Ptr) != 0 {
		l.Addresses.Remove(&search)
	}
}

// Duplicate is the error of an address that is live.
func (l *Ledger[Owner]) Duplicate(id slab.ID) error {
	r := l.Records.At(id)
	g := l.Cells.At(r.Cell).Group
	return fmt.Errorf("%v: %w, as %v %v", r.Ptr, ErrDuplicatePtr, g.Kind, g.Shape)
}

// Add makes a record live, and returns its cell. The caller has already set its address, time and owner.
func (l *Ledger[Owner]) Add(r *Record, in slab.ID, allocated alloc.Bytes) *Cell[Owner] {
	r.Cell, r.Allocated, r.State = in, allocated, Live
	if !r.Foreign {
		l.Buffers++
	}
	c := l.Enter(r)
	c.Total++
	r.InLine, r.InPath = c.inLine.Births, c.inPath.Births
	r.Stream = c.Stream
	c.inLine.Births++
	c.inPath.Births++
	if c.Memory.OnHost() {
		return c
	}
	l.Total.Count++
	if l.Total.Bytes += c.Each; l.Total.Bytes < 0 {
		l.Total.Bytes = math.MaxInt64
	}
	return c
}

// Enter counts a record in.
func (l *Ledger[Owner]) Enter(r *Record) *Cell[Owner] {
	c := l.change(r.Cell)
	c.Live++
	its := &l.ByMemory[c.Memory]
	its.Count++
	its.Bytes += c.Each
	if c.Memory.OnHost() {
		l.Host.add(r, r.Allocated)
		return c
	}
	l.Current.Count++
	l.Current.Bytes += c.Each
	l.Allocated += r.Allocated
	if r.Foreign {
		l.Registered += r.Allocated
	}
	l.allocatedPeak = max(l.allocatedPeak, l.Allocated)
	l.High = max(l.High, l.Current.Bytes)
	if l.Current.Bytes > l.Peak.Bytes {
		l.Peak = l.Current
		l.Epoch++
	}
	return c
}

// leave counts a record out.
func (l *Ledger[Owner]) leave(r *Record) {
	c := l.change(r.Cell)
	c.Live--
	its := &l.ByMemory[c.Memory]
	its.Count--
	its.Bytes -= c.Each
	if c.Memory.OnHost() {
		l.Host.add(r, -r.Allocated)
		return
	}
	l.Current.Count--
	l.Current.Bytes -= c.Each
	l.Allocated -= r.Allocated
	if r.Foreign {
		l.Registered -= r.Allocated
	}
}

// Move counts a live record in another cell.
func (l *Ledger[Owner]) Move(id slab.ID, r *Record, to slab.ID) {
	l.leave(r)
	l.Cells.At(r.Cell).Total--
	l.Records.Touch(id)
	r.Cell = to
	l.Enter(r).Total++
}

// hostBytes counts the host memory of live buffers.
type hostBytes struct {
	Allocated  alloc.Bytes
	Registered alloc.Bytes // the part of allocated that is not the tracker's own
}

func (h *hostBytes) add(r *Record, bytes alloc.Bytes) {
	h.Allocated += bytes
	if r.Foreign {
		h.Registered += bytes
	}
}

// change announces that a cell's count changes.
func (l *Ledger[Owner]) change(id slab.ID) *Cell[Owner] {
	c := l.Cells.At(id)
	l.Cells.Touch(id)
	// The count at the peak is saved when the count first changes after the peak. A new peak starts
	// a new epoch, which makes every saved count invalid at once. So what was live at the peak is
	// known exactly, for the price of one comparison.
	if c.epoch != l.Epoch {
		c.epoch, c.peak = l.Epoch, c.Live
	}
	if c.interval != l.Cells.interval {
		l.Cells.note(id, c)
	}
	return c
}

// Remove takes a live record out for good.
func (l *Ledger[Owner]) Remove(id slab.ID, r *Record) {
	if !l.Closed {
		l.leave(r)
	}
	l.drop(id, r)
}

// drop gives the room of a record back.
func (l *Ledger[Owner]) drop(id slab.ID, r *Record) {
	if !r.Foreign {
		l.Buffers--
	}
	if r.Label != 0 {
		l.Labels.Put(r.Label)
	}
	l.Records.Put(id)
}

// TakeOut takes a live record out while its memory is being freed; putBack or
// settle follows.
func (l *Ledger[Owner]) TakeOut(id slab.ID, r *Record) {
	l.Records.Touch(id)
	r.State = leaving
	if !l.Closed {
		l.Forget(r)
		l.leave(r)
		l.Cells.At(r.Cell).pins++
	}
}

// PutBack makes a record live again whose memory could not be freed. It fails
// if the address has another owner by now; then the record is gone.
func (l *Ledger[Owner]) PutBack(id slab.ID, r *Record) error {
	if l.Closed {
		l.Records.Touch(id)
		r.State = Live
		return nil
	}
	if other := l.At(r.Ptr); other != 0 {
		err := l.Duplicate(other)
		l.Settle(id, r)
		return err
	}
	l.Records.Touch(id)
	r.State = Live
	l.Addresses.Add(uint64(r.Ptr), id)
	l.Cells.At(r.Cell).pins--
	l.Enter(r)
	return nil
}

// Settle forgets a record whose memory is free.
func (l *Ledger[Owner]) Settle(id slab.ID, r *Record) {
	if !l.Closed {
		l.Cells.At(r.Cell).pins--
	}
	l.drop(id, r)
}

// ResetPeak makes the present level the highest.
func (l *Ledger[Owner]) ResetPeak() {
	l.Peak = l.Current
	l.allocatedPeak = l.Allocated
	l.Epoch++
}

// LabelOf returns the name of a live record.
func (l *Ledger[Owner]) LabelOf(r *Record) string {
	if r.Label == 0 {
		return ""
	}
	return *l.Labels.At(r.Label)
}

// Label names a live record.
func (l *Ledger[Owner]) Label(id slab.ID, r *Record, name string) {
	l.Records.Touch(id)
	if r.Label != 0 {
		l.Labels.Put(r.Label)
		r.Label = 0
	}
	if name != "" {
		var text *string
		r.Label, text = l.Labels.Get()
		*text = name
	}
}

// streams numbers the streams that buffers were allocated for: records and events have room
// for no handle. Numbers are not given back.
type streams struct {
	Handles []alloc.Stream // only ever appended to, so that a copy of the slice stays good
	numbers map[alloc.Stream]uint8
}

func newStreams() streams { return streams{Handles: []alloc.Stream{0}} }

// At returns the number of a stream. The streams that are too many are one.
func (s *streams) At(handle alloc.Stream) uint8 {
	if handle == 0 {
		return 0
	}
	if n, ok := s.numbers[handle]; ok {
		return n
	}
	const others = tables.MaxStreams - 1
	switch len(s.Handles) {
	case tables.MaxStreams:
		return others
	case others:
		handle = tables.OtherStreams
	}
	if s.numbers == nil {
		s.numbers = make(map[alloc.Stream]uint8)
	}
	n := uint8(len(s.Handles))
	s.Handles = append(s.Handles, handle)
	s.numbers[handle] = n
	return n
}
