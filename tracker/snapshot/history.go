package snapshot

import (
	"bytes"
	"cmp"
	"fmt"
	"iter"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tablejson"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// History is the latest events up to an instant. It does not change; any
// goroutine may read it.
type History struct {
	tables tables.HistoryTables // the events as their source keeps them; see tables.OfHistory
}

// String says how many events there are: "65536 events, after 1204 that were dropped".
func (h *History) String() string {
	said := fmt.Sprintf("%d events", h.Len())
	if n := h.Dropped(); n > 0 {
		said += fmt.Sprintf(", after %d that were dropped", n)
	}
	return said
}

// Dropped returns how many events happened before the oldest kept one. It is 0 for a nil
// History, which a dump may have.
func (h *History) Dropped() uint64 {
	if h == nil {
		return 0
	}
	return h.tables.First
}

// Len returns the number of events kept; 0 of a nil History.
func (h *History) Len() int {
	if h == nil {
		return 0
	}
	return len(h.tables.Events)
}

// Events iterates over the events, oldest first. It holds no lock. A nil History has none.
func (h *History) Events() iter.Seq[Event] {
	return func(yield func(Event) bool) {
		if h == nil {
			return
		}
		for i := range h.tables.Events {
			if !yield(h.event(i)) {
				return
			}
		}
	}
}

// event returns the event at index i, counted from the oldest kept one.
func (h *History) event(i int) Event {
	e := &h.tables.Events[i]
	out := Event{
		Seq:     h.tables.First + uint64(i),
		Time:    h.tables.Start.Add(e.Since),
		Action:  e.Action,
		Ptr:     e.Ptr,
		Section: h.tables.Sections[e.Section],
		Stream:  tables.StreamOf(h.tables.Streams, e.Stream),
		Stack:   h.tables.Stacks.Stack(e.Stack),
		FreedAt: h.tables.Stacks.Stack(h.tables.FreedAt(h.tables.First + uint64(i))),
	}
	switch e.Action {
	case mem.Marked:
		out.Mark = int(e.Allocated)
	case mem.SectionBegan, mem.SectionEnded:
		out.Span = uint64(e.Allocated)
	case mem.OutOfMemory, mem.Retried:
		out.Requested = e.Allocated
	case mem.SegmentAllocated, mem.SegmentFreed:
		out.Allocated, out.Private = e.Allocated, h.tables.Pool(out.Seq)
	default:
		out.Allocated = e.Allocated
	}
	if g := e.Tensor; g != nil {
		out.Group, out.Requested = groupOf(g), g.Each
	}
	return out
}

// Events iterates over the history up to the snapshot, oldest first; over
// nothing if there is no history.
func (d *Dump) Events() iter.Seq[Event] {
	return func(yield func(Event) bool) {
		for i := range d.kept() {
			if !yield(d.History.event(i)) {
				return
			}
		}
	}
}

// kept returns the number of events up to the snapshot.
func (d *Dump) kept() int {
	if d.History == nil || d.History.Dropped() > d.Snapshot.Events {
		return 0
	}
	return int(min(uint64(d.History.Len()), d.Snapshot.Events-d.History.Dropped()))
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

func (h *History) writeTo(out *jsonstream.Writer) { tablejson.WriteHistory(out, &h.tables) }

// MarshalJSON writes the events, and the stacks, groups and sections that they refer to.
func (h *History) MarshalJSON() ([]byte, error) {
	var text bytes.Buffer
	out := jsonstream.NewWriter(&text)
	h.writeTo(out)
	if err := out.Flush(); err != nil {
		return nil, fmt.Errorf("write history: %w", err)
	}
	return text.Bytes(), nil
}

// UnmarshalJSON reads what MarshalJSON wrote.
func (h *History) UnmarshalJSON(text []byte) error {
	in, err := jsonstream.NewReader(bytes.NewReader(text))
	if err != nil {
		return err
	}
	read, err := readHistory(in)
	if err == nil && read != nil {
		*h = *read
	}
	return err
}

// readHistory reads a history; nil if it is null.
func readHistory(in *jsonstream.Reader) (*History, error) {
	lists, err := tablejson.ReadHistory(in)
	if lists == nil || err != nil {
		return nil, err
	}
	return &History{tables: *lists}, nil
}
