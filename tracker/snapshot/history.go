package snapshot

import (
	"cmp"
	"fmt"
	"iter"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// History is the events before a snapshot in the form in which their source keeps them; the zero History is none. A
// program reads it by Dump.Events; it can copy it, but not look inside.
type History = tables.History

// Events iterates over the history up to the snapshot: the latest events, oldest first. The history begins with the
// program if the first has the Seq 0. There are none if the dump has no history.
func (d *Dump) Events() iter.Seq[Event] {
	return func(yield func(Event) bool) {
		h := tables.OfHistory(&d.History)
		for i := range d.kept() {
			if !yield(eventOf(h, i)) {
				return
			}
		}
	}
}

// kept returns the number of events up to the snapshot.
func (d *Dump) kept() int {
	h := tables.OfHistory(&d.History)
	if d.Snapshot == nil || h.First > d.Snapshot.Events {
		return 0
	}
	return int(min(uint64(len(h.Events)), d.Snapshot.Events-h.First))
}

// eventOf returns the event at index i, counted from the oldest kept one.
func eventOf(h *tables.HistoryTables, i int) Event {
	e := &h.Events[i]
	out := Event{
		Seq:     h.First + uint64(i),
		Time:    h.Start.Add(e.Since),
		Action:  e.Action,
		Ptr:     e.Ptr,
		Section: h.Sections[e.Section],
		Stream:  tables.StreamOf(h.Streams, e.Stream),
		Stack:   h.Stacks.Stack(e.Stack),
		FreedAt: h.Stacks.Stack(h.FreedAt(h.First + uint64(i))),
	}
	switch e.Action {
	case mem.Marked:
		out.Mark = int(e.Allocated)
	case mem.SectionBegan, mem.SectionEnded:
		out.Span = uint64(e.Allocated)
	case mem.OutOfMemory, mem.Retried:
		out.Requested = e.Allocated
	case mem.SegmentAllocated, mem.SegmentFreed:
		out.Allocated, out.Private = e.Allocated, h.Pool(out.Seq)
	default:
		out.Allocated = e.Allocated
	}
	if g := e.Tensor; g != nil {
		out.Group, out.Requested = groupOf(g), g.Each
	}
	return out
}

// Event is one thing that happened to device memory. Fields that do not belong
// to its action are zero.
type Event struct {
	Seq       uint64      `json:"seq"` // position in the whole history, from 0
	Time      time.Time   `json:"time"`
	Action    mem.Action  `json:"action"`
	Ptr       alloc.Ptr   `json:"address,omitzero"`
	Requested alloc.Bytes `json:"requested_bytes,omitzero"`
	Allocated alloc.Bytes `json:"allocated_bytes,omitzero"`
	Group
	Section string       `json:"section,omitzero"` // path of the section; for a free, the section of the allocation
	Stream  alloc.Stream `json:"stream,omitzero"`
	Span    uint64       `json:"span,omitzero"`      // SectionBegan and SectionEnded: the same number for both of one section
	Mark    int          `json:"mark,omitzero"`      // Marked: the mark's number
	Private string       `json:"private,omitzero"`   // private pool of a segment, as in alloc.Segment; "" means none, or unknown
	Stack   mem.Stack    `json:"stack,omitempty"`    // stack of the allocation, also for a free; for a mark or a section, the caller's
	FreedAt mem.Stack    `json:"freed_at,omitempty"` // stack of a free, if the source has it and it differs from the allocation's
}

// String says what happened, to what, and in which line of code: "alloc Parameter (512,) float32, 2.0 KiB at
// 0x40000000000, main.go:82 main.load"; "segment_alloc 2.0 MiB at 0x40000000000"; "section_begin step, main.go:90
// main.train".
func (e Event) String() string {
	b := []byte(e.Action.String())
	switch e.Action {
	case mem.Marked:
		b = fmt.Appendf(b, " %d", e.Mark)
	case mem.SectionBegan, mem.SectionEnded:
		b = text.Printable(fmt.Appendf(b, " %s", e.Section), len(b))
	default:
		if e.DType != 0 || e.Shape != nil {
			b = append(appendGroup(append(b, ' '), &e.Group), ',')
		}
		b = fmt.Appendf(b, " %v", cmp.Or(e.Requested, e.Allocated))
	}
	if e.Ptr != 0 {
		b = fmt.Appendf(b, " at %v", e.Ptr)
	}
	stack := e.Stack
	if e.FreedAt != nil {
		stack = e.FreedAt
	}
	if stack != nil {
		b = fmt.Appendf(b, ", %s", text.Line(stack.CallSite().String()))
	}
	return string(b)
}
