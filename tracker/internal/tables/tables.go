// Package tables has what the sources of snapshots and histories fill in: a tracker, a process that is
// observed, a file. Entries refer to each other by index or number, so that a million live buffers
// take little memory.
//
// It never walks a stack and never asks a device. What a source does not know stays unknown: an
// amount in bytes is -1, a [Tensor] is [Untyped], a [StackID] is 0.
package tables

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Tables are the lists of a Snapshot. They refer to each other by index, to
// sections by their index in Sections, and to stacks by their numbers.
type Tables struct {
	Stacks      Stacks
	Sections    []string       // by path; the first is "", outside of all sections
	Streams     []alloc.Stream // at most MaxStreams; the first is the default stream, and nil means that one
	Sites       []SiteEntry
	Retired     []RetiredEntry
	Allocations []AllocationEntry // sorted by Seq; nil in a light snapshot
	Epoch       time.Time         // AllocationEntry.Since and the windows of Lines and Paths count from here

	// How long the freed buffers of each line of code lived, and those of the call stacks with live
	// buffers. leaks.Suspects and leaks.Growing find theirs in these. Paths is nil if the source does not count
	// them, or if they belong to another instant: then no suspect is named.
	Lines map[mem.Frame]*survival.Unit
	Paths map[StackID]*survival.Unit

	// LeftOut is what a dump of the snapshot omits.
	LeftOut LeftOut
}

// LeftOut is the detail that a dump omits because it would have been larger than
// tracker.Config.MaxDumpBytes, or because the file that it was read from is damaged. Its fields are in the order in which detail is omitted. The
// levels, and the sums of what is omitted, are always kept.
type LeftOut struct {
	Events       int64       `json:"events,omitempty"` // the oldest of the history
	Marks        int64       `json:"marks,omitempty"`  // the oldest
	Segments     int64       `json:"segments,omitempty"`
	SegmentBytes alloc.Bytes `json:"segment_bytes,omitempty"`
	// Broken is the number of segments that a file had, with blocks that do not tile them.
	Broken int64 `json:"broken_segments,omitempty"`
	// Allocations are the live buffers that are not listed one by one. Sites and groups
	// count them.
	Allocations mem.Tally `json:"allocations,omitzero"`
	// Sites is the number of omitted call sites, those with the least live memory. Unsited is the
	// sum of their memory, without host memory: the snapshot's levels count it, its call sites and
	// groups do not.
	Sites   int64  `json:"call_sites,omitempty"`
	Unsited Totals `json:"unsited,omitzero"`
}

// Totals counts the buffers of a call site or group: now, at the peak, and ever.
type Totals struct {
	Live  mem.Tally `json:"live"`  // now
	Peak  mem.Tally `json:"peak"`  // at the moment of most bytes of all
	Total mem.Tally `json:"total"` // ever
}

// Place is where in a program a buffer was allocated.
type Place struct {
	Stack   StackID
	Section uint32
}

// SiteEntry counts the buffers of one tensor that were allocated at a place.
type SiteEntry struct {
	Place
	Tensor            *Tensor
	Live, Peak, Total int64
	Stream            uint8
}

// RetiredEntry is the total ever allocated at a place, for tensors of which nothing more is known.
type RetiredEntry struct {
	Place
	Memory alloc.Memory
	Total  mem.Tally
}

// AllocationEntry is a live buffer of the site of that index.
type AllocationEntry struct {
	Site        int32
	Foreign     bool
	Unreachable bool   // the program can no longer free it
	InLine      uint16 // see survival.Buffer.Ordinal
	InPath      uint16
	Ptr         alloc.Ptr
	Allocated   alloc.Bytes
	Since       time.Duration
	Seq         uint64
	Label       string
}

// HistoryTables are a history as its source stores it.
type HistoryTables struct {
	Start    time.Time // EventEntry.Since counts from here
	First    uint64    // events that happened before the oldest that is kept
	Events   []EventEntry
	Stacks   Stacks
	Sections []string       // by path; the first is "", outside of all sections
	Streams  []alloc.Stream // at most MaxStreams; the first is the default stream, and nil means that one
	Pools    []PoolEntry    // for events of segments in private pools, in event order
	Frees    []FreeEntry    // for frees whose own stack is known, in event order
}

// Exists reports whether there is a history, though it may have no events.
func (h *HistoryTables) Exists() bool { return h.Stacks != nil }

// PoolEntry names the private pool of an event's segment.
type PoolEntry struct {
	Seq  uint64 `json:"seq"`
	Name string `json:"name"` // see alloc.Segment.Private
}

// Pool returns the private pool of the event with that number, or "".
func (h *HistoryTables) Pool(seq uint64) string {
	i, found := slices.BinarySearchFunc(h.Pools, seq, func(p PoolEntry, seq uint64) int { return cmp.Compare(p.Seq, seq) })
	if !found {
		return ""
	}
	return h.Pools[i].Name
}

// FreeEntry is the stack of a free. Most sources do not record it; EventEntry.Stack is the stack of
// the allocation.
type FreeEntry struct {
	Seq   uint64
	Stack StackID
}

// FreedAt returns the stack of the free with that number, or 0.
func (h *HistoryTables) FreedAt(seq uint64) StackID {
	i, found := slices.BinarySearchFunc(h.Frees, seq, func(f FreeEntry, seq uint64) int { return cmp.Compare(f.Seq, seq) })
	if !found {
		return 0
	}
	return h.Frees[i].Stack
}

// Site returns the call site of the event with that number, or the zero Frame if the event is no
// longer kept.
func (h *HistoryTables) Site(seq uint64) mem.Frame {
	if seq < h.First || seq-h.First >= uint64(len(h.Events)) {
		return mem.Frame{}
	}
	return h.Stacks.Site(h.Events[seq-h.First].Stack)
}

// MaxSections is how many sections the events of a history can distinguish.
const MaxSections = 1 << 16

// EventEntry is an Event as it is stored, in 40 bytes. It refers to the tables of its history.
type EventEntry struct {
	Since     time.Duration // since the history's start
	Ptr       alloc.Ptr
	Allocated alloc.Bytes // or the size that was refused, the mark's number, the section's span
	Tensor    *Tensor     // nil if there is none, or if it is unknown
	Stack     StackID
	Section   uint16
	Action    mem.Action
	Stream    uint8
}

// MaxStreams is how many streams the entries of a source can distinguish.
const MaxStreams = 1 << 8

// OtherStreams stands for the streams of a program that has used more than MaxStreams.
const OtherStreams = ^alloc.Stream(0)

// StreamOf returns the stream with index n; the default stream if the source has none.
func StreamOf(streams []alloc.Stream, n uint8) alloc.Stream {
	if int(n) >= len(streams) {
		return 0
	}
	return streams[n]
}

// CheckStreams refuses more streams than the entries can distinguish.
func CheckStreams(streams []alloc.Stream) error {
	if len(streams) > MaxStreams {
		return fmt.Errorf("%d streams, want at most %d", len(streams), MaxStreams)
	}
	return nil
}

// Snapshot is the field of a snapshot.Snapshot that holds its Tables. Its content is closed to other modules, which can
// copy it but not import this package.
type Snapshot struct{ tables Tables }

// Wrap returns the field with these tables.
func Wrap(t Tables) Snapshot { return Snapshot{t} }

// Of returns the tables in the field. Only the maker of the snapshot writes to them.
func Of(s *Snapshot) *Tables { return &s.tables }

// String says how much the tables hold: "3 buffers of 2 call stacks".
func (s Snapshot) String() string {
	return fmt.Sprintf("%d buffers of %d call stacks", len(s.tables.Allocations), len(s.tables.Sites)+len(s.tables.Retired))
}

// History is the field of a snapshot.Dump that holds its HistoryTables. Its content is closed to other modules, as that of
// Snapshot.
type History struct{ tables HistoryTables }

// WrapHistory returns the field with these tables.
func WrapHistory(t HistoryTables) History { return History{t} }

// OfHistory returns the tables in the field. Their Exists reports whether the dump has a history. Only the maker of the
// dump writes to them.
func OfHistory(h *History) *HistoryTables { return &h.tables }

// String says how many events there are: "65536 events, after 1204 that were dropped".
func (h History) String() string {
	said := fmt.Sprintf("%d events", len(h.tables.Events))
	if n := h.tables.First; n > 0 {
		said += fmt.Sprintf(", after %d that were dropped", n)
	}
	return said
}

// CompareFrames orders frames by file, line and function.
func CompareFrames(x, y mem.Frame) int {
	return cmp.Or(cmp.Compare(x.File, y.File), cmp.Compare(x.Line, y.Line), cmp.Compare(x.Function, y.Function))
}

// StackID numbers the stacks of one source. 0 is an unknown stack.
type StackID uint32

// Stacks returns the stacks of a source by their numbers. Its methods may be called from any
// goroutine.
type Stacks interface {
	Stack(StackID) mem.Stack // shared: do not write to it
	Site(StackID) mem.Frame  // the stack's call site
	Path(StackID) mem.Path   // the calls of the user's code in the stack
}

// StackTable is the Stacks of a source that has all of them in memory, such as a file. Its
// zero value is empty. Add is for one goroutine at a time, before others read.
type StackTable struct {
	Stacks []mem.Stack // the ID is the index plus one
	Sites  []mem.Frame
}

// Add adds a stack and its call site, which may be the zero Frame. Do not write to the stack
// afterwards.
func (t *StackTable) Add(stack mem.Stack, site mem.Frame) StackID {
	t.Stacks, t.Sites = append(t.Stacks, stack), append(t.Sites, site)
	return StackID(len(t.Stacks))
}

// Len returns the number of stacks: the largest ID.
func (t *StackTable) Len() int { return len(t.Stacks) }

// Stack implements Stacks.
func (t *StackTable) Stack(id StackID) mem.Stack {
	if id == 0 {
		return nil
	}
	return t.Stacks[id-1]
}

// Site implements Stacks.
func (t *StackTable) Site(id StackID) mem.Frame {
	if id == 0 {
		return mem.Frame{}
	}
	return t.Sites[id-1]
}

// Path returns the user's calls, from the call site outward: frames below the call site are
// skipped.
func (t *StackTable) Path(id StackID) mem.Path {
	p := t.Stack(id).Path()
	return p[max(0, slices.Index(p, t.Site(id))):]
}

// Numbers numbers keys in the order in which they are first asked for.
type Numbers[K comparable] map[K]int

// Of returns the number of a key, and whether it is new.
func (n Numbers[K]) Of(key K) (number int, isNew bool) {
	number, known := n[key]
	if !known {
		number = len(n)
		n[key] = number
	}
	return number, !known
}

// ByMemory counts buffers by their type of memory.
type ByMemory [alloc.ImportedMemory + 1]mem.Tally

// Map returns the types that have buffers; nil if none has.
func (b *ByMemory) Map() (types map[alloc.Memory]mem.Tally) {
	for m, t := range b {
		if t == (mem.Tally{}) {
			continue
		}
		if types == nil {
			types = make(map[alloc.Memory]mem.Tally)
		}
		types[alloc.Memory(m)] = t
	}
	return types
}

// MemoryLines returns a line for each type of memory that has live buffers, except plain device memory:
//
//	Managed memory:     96.0 MiB in 1 buffer, part of the device's
//	Pinned host memory: 8.0 MiB in 2 buffers, none of the device's
func MemoryLines(live map[alloc.Memory]mem.Tally) (lines []string) {
	for _, m := range alloc.Memories() {
		t := live[m]
		if m == alloc.DeviceMemory || t.IsZero() {
			continue
		}
		plural := "s"
		if t.Count == 1 {
			plural = ""
		}
		part := "part of the device's"
		if m.OnHost() {
			part = "none of the device's"
		}
		lines = append(lines, fmt.Sprintf("%-20s%v in %d buffer%s, %s", memoryTitle(m)+":", t.Bytes, t.Count, plural, part))
	}
	return lines
}

// memoryTitle returns the words of a report: "Pinned host memory".
func memoryTitle(m alloc.Memory) string {
	name := m.String()
	name = strings.ToUpper(name[:1]) + name[1:]
	if m.OnHost() {
		name += " host"
	}
	return name + " memory"
}
