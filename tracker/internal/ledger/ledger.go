// Package ledger is the account of live buffers. A [Ledger] has a [Record] of each, and counts them in buckets: one
// for each tensor, call stack, section and stream. It is exact after every call. [History] has the latest events,
// [Stacks] the call stacks. The package knows no device and prints nothing. Its caller, package tracker, holds the
// lock under which a ledger is changed.
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
// sum over records and over buckets alike. Its methods are not safe for concurrent
// use: the tracker's lock guards it.
//
// Owner is the type of the value by which a caller gets from a buffer back to the ledger that counts it, such as
// *tracker.MemTracker: see Origin.
type Ledger[Owner any] struct {
	Records slab.Slab[Record]
	Labels  slab.Slab[string]
	Buckets buckets[Owner]
	Streams streams
	// Addresses finds records by address, except those of the tracker's cache, which knows their
	// owners.
	Addresses addrtable.Table

	// Of the device's memory; see also ByMemory.
	Current mem.Tally // requested
	Total   mem.Tally // ever
	Peak    mem.Tally // count and bytes at the moment of most bytes
	// Epoch is the number of peaks so far; see Bucket.peak.
	Epoch uint64

	// High is the highest level since a section last began or ended.
	High alloc.Bytes

	Allocated  alloc.Bytes
	Registered alloc.Bytes // the part of Allocated that other code owns

	// ByMemory is Current by the type of memory, with what is live on the host.
	ByMemory tables.ByMemory
	Host     hostBytes
	Buffers  int64 // records of the tracker's own, also after Close
	Closed   bool
}

// Record is what the ledger knows about live memory. It has no pointers, and so costs the Go
// collector nothing.
type Record struct {
	Ptr         alloc.Ptr
	Allocated   alloc.Bytes
	Since       time.Duration // time of the allocation, since the tracker's start
	Seq         uint64        // number of its event; no other record has it
	Bucket      slab.ID       // kind, shape, dtype, stack, section
	Label       slab.ID       // 0 means none
	State       state
	Foreign     bool   // registered: other code owns the memory
	Unreachable bool   // the program can no longer reach its Buffer
	Stream      uint8  // the bucket's, which does not outlive Close
	InLine      uint16 // see survival.Buffer.Ordinal
	InPath      uint16
}

type state uint8

const (
	unused   state = iota
	Live           // counted
	detached       // not counted: its memory is being freed, which may still fail
)

// NewLedger returns an empty ledger. The origin of each bucket refers to the owner.
func NewLedger[Owner any](owner Owner) Ledger[Owner] {
	return Ledger[Owner]{Buckets: newBuckets(owner), Streams: newStreams(), Addresses: addrtable.New(), Epoch: 1}
}

// Close forgets what was ever counted. The records stay, so that live buffers
// can be freed, once.
func (l *Ledger[Owner]) Close() {
	l.Buckets.Reset() // snapshots may be reading them
	l.Buckets.Retired.Reset()
	l.Buckets, l.Addresses = newBuckets(l.Buckets.owner), addrtable.New()
	l.Current, l.Total, l.Peak = mem.Tally{}, mem.Tally{}, mem.Tally{}
	l.Allocated, l.Registered, l.High = 0, 0, 0
	l.ByMemory, l.Host = tables.ByMemory{}, hostBytes{}
	l.Closed = true
}

// Fits reports whether one more buffer of that size can be counted without overflow.
func (l *Ledger[Owner]) Fits(bytes alloc.Bytes) bool {
	const rounding = 4 * alloc.MiB // the most that the cache rounds up
	return bytes <= math.MaxInt64-rounding-max(l.Current.Bytes, l.Allocated, l.Host.Allocated)
}

// Lookup returns the live record at an address, or 0; see Addresses.
func (l *Ledger[Owner]) Lookup(p alloc.Ptr) slab.ID {
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

// DuplicateError is the error of an address at which that record is live.
func (l *Ledger[Owner]) DuplicateError(id slab.ID) error {
	r := l.Records.At(id)
	g := l.Buckets.At(r.Bucket).Group
	return fmt.Errorf("%v: %w, as %v %v", r.Ptr, ErrDuplicatePtr, g.Kind, g.Shape)
}

// Insert makes a new record live in a bucket, and returns the bucket. The caller has set its address, time and event
// number, and whether it is Foreign.
func (l *Ledger[Owner]) Insert(r *Record, in slab.ID, allocated alloc.Bytes) *Bucket[Owner] {
	r.Bucket, r.Allocated, r.State = in, allocated, Live
	if !r.Foreign {
		l.Buffers++
	}
	b := l.count(r)
	b.Total++
	r.InLine, r.InPath = b.lineUnit.Allocated, b.pathUnit.Allocated
	r.Stream = b.Stream
	b.lineUnit.Allocated++
	b.pathUnit.Allocated++
	if b.Memory.OnHost() {
		return b
	}
	l.Total.Count++
	if l.Total.Bytes += b.Each; l.Total.Bytes < 0 {
		l.Total.Bytes = math.MaxInt64
	}
	return b
}

// Remove forgets a live record.
func (l *Ledger[Owner]) Remove(id slab.ID, r *Record) {
	if !l.Closed {
		l.uncount(r)
	}
	l.release(id, r)
}

// Detach stops counting a live record whose memory is about to be freed. From then on its address may belong to
// another record. Discard or Reattach follows.
func (l *Ledger[Owner]) Detach(id slab.ID, r *Record) {
	l.Records.Touch(id)
	r.State = detached
	if !l.Closed {
		l.removeAddress(r)
		l.uncount(r)
		l.Buckets.At(r.Bucket).detached++
	}
}

// Discard forgets a detached record: its memory is free.
func (l *Ledger[Owner]) Discard(id slab.ID, r *Record) {
	if !l.Closed {
		l.Buckets.At(r.Bucket).detached--
	}
	l.release(id, r)
}

// Reattach makes a detached record live again: its memory could not be freed. If another record has the address by
// now, that is the error, and the detached record is discarded.
func (l *Ledger[Owner]) Reattach(id slab.ID, r *Record) error {
	if l.Closed {
		l.Records.Touch(id)
		r.State = Live
		return nil
	}
	if other := l.Lookup(r.Ptr); other != 0 {
		err := l.DuplicateError(other)
		l.Discard(id, r)
		return err
	}
	l.Records.Touch(id)
	r.State = Live
	l.Addresses.Add(uint64(r.Ptr), id)
	l.Buckets.At(r.Bucket).detached--
	l.count(r)
	return nil
}

// Withdrawn is a record that Withdraw removed, with all that Reinsert needs to undo that.
type Withdrawn struct {
	record Record
	group  *Group
	place  Place
	line   LineID
	label  string
}

// Ptr returns the address of the memory.
func (w *Withdrawn) Ptr() alloc.Ptr { return w.record.Ptr }

// Withdraw removes a foreign record, whose memory its owner is about to free. Unlike a detached record it takes no
// memory here: the owner may never say how the free ended.
func (l *Ledger[Owner]) Withdraw(id slab.ID, r *Record) Withdrawn {
	b := l.Buckets.At(r.Bucket)
	w := Withdrawn{*r, b.Group, b.Place, b.Line, l.LabelOf(r)}
	l.removeAddress(r)
	l.Remove(id, r)
	return w
}

// Reinsert makes a withdrawn record live again, and returns it. No record may be live at its address.
func (l *Ledger[Owner]) Reinsert(w *Withdrawn) *Record {
	id, r := l.Records.Get()
	*r = w.record
	r.Label = 0
	l.Label(id, r, w.label)
	r.Bucket = l.Buckets.getOrMakeAgain(w.place, w.line, &w.group.Tensor, l.Epoch)
	l.Addresses.Add(uint64(r.Ptr), id)
	l.count(r)
	return r
}

// Move counts a live record in another bucket.
func (l *Ledger[Owner]) Move(id slab.ID, r *Record, to slab.ID) {
	l.uncount(r)
	l.Buckets.At(r.Bucket).Total--
	l.Records.Touch(id)
	r.Bucket = to
	l.count(r).Total++
}

// count adds a live record to all sums, and returns its bucket.
func (l *Ledger[Owner]) count(r *Record) *Bucket[Owner] {
	b := l.willChange(r.Bucket)
	b.Live++
	sum := &l.ByMemory[b.Memory]
	sum.Count++
	sum.Bytes += b.Each
	if b.Memory.OnHost() {
		l.Host.add(r, r.Allocated)
		return b
	}
	l.Current.Count++
	l.Current.Bytes += b.Each
	l.Allocated += r.Allocated
	if r.Foreign {
		l.Registered += r.Allocated
	}
	l.High = max(l.High, l.Current.Bytes)
	if l.Current.Bytes > l.Peak.Bytes {
		l.Peak = l.Current
		l.Epoch++
	}
	return b
}

// uncount subtracts a record from the sums to which count added it.
func (l *Ledger[Owner]) uncount(r *Record) {
	b := l.willChange(r.Bucket)
	b.Live--
	sum := &l.ByMemory[b.Memory]
	sum.Count--
	sum.Bytes -= b.Each
	if b.Memory.OnHost() {
		l.Host.add(r, -r.Allocated)
		return
	}
	l.Current.Count--
	l.Current.Bytes -= b.Each
	l.Allocated -= r.Allocated
	if r.Foreign {
		l.Registered -= r.Allocated
	}
}

// willChange announces that a bucket's count changes, and returns the bucket.
func (l *Ledger[Owner]) willChange(id slab.ID) *Bucket[Owner] {
	b := l.Buckets.At(id)
	l.Buckets.Touch(id)
	// The count at the peak is saved when the count first changes after the peak. A new peak starts
	// a new epoch, which makes every saved count invalid at once. So what was live at the peak is
	// known exactly, for the price of one comparison.
	if b.epoch != l.Epoch {
		b.epoch, b.peak = l.Epoch, b.Live
	}
	if b.interval != l.Buckets.interval {
		l.Buckets.markChanged(id, b)
	}
	return b
}

// removeAddress removes a record's address from the table, if it is there.
func (l *Ledger[Owner]) removeAddress(r *Record) {
	search := l.Addresses.Look(uint64(r.Ptr))
	if l.next(&search, r.Ptr) != 0 {
		l.Addresses.Remove(&search)
	}
}

// release gives back the slots of a record and its label.
func (l *Ledger[Owner]) release(id slab.ID, r *Record) {
	if !r.Foreign {
		l.Buffers--
	}
	if r.Label != 0 {
		l.Labels.Put(r.Label)
	}
	l.Records.Put(id)
}

// hostBytes counts the host memory of live buffers.
type hostBytes struct {
	Allocated  alloc.Bytes
	Registered alloc.Bytes // the part of Allocated that other code owns
}

func (h *hostBytes) add(r *Record, bytes alloc.Bytes) {
	h.Allocated += bytes
	if r.Foreign {
		h.Registered += bytes
	}
}

// ResetPeak makes the present level the highest.
func (l *Ledger[Owner]) ResetPeak() {
	l.Peak = l.Current
	l.Epoch++
}

// LabelOf returns the label of a live record, or "".
func (l *Ledger[Owner]) LabelOf(r *Record) string {
	if r.Label == 0 {
		return ""
	}
	return *l.Labels.At(r.Label)
}

// Label sets or clears the label of a live record.
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

// streams numbers the streams that buffers were allocated for, because a record or an event has no room for a
// handle. Numbers are not given back.
type streams struct {
	Handles []alloc.Stream // only ever appended to, so that a copy of the slice stays good
	numbers map[alloc.Stream]uint8
}

func newStreams() streams { return streams{Handles: []alloc.Stream{0}} }

// At returns the number of a stream. All streams beyond tables.MaxStreams share the last number.
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
