package torch

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// traces writes the histories, each in the list of its device.
//
// The page rebuilds the segments at each moment by going back from those at the end. So every event
// about a segment must fit the segments that exist at that moment: w.open has these.
func (w *writer) traces(parts []*part) {
	w.name("device_traces")
	devices := w.beginList()
	ordinal := 0
	for _, w.part = range parts {
		for ; ordinal < w.ordinal(); ordinal++ {
			devices.next()
			w.op(opEmptyList)
		}
		devices.next()
		w.trace()
		ordinal++
	}
	devices.end()
}

// trace writes the history of a device.
func (w *writer) trace() {
	w.coverFirst()
	l := w.beginList()
	for e := range w.dump.Events() {
		w.event(l, e)
	}
	// There is always one event of category "unknown".
	w.plainEvent(l, "snapshot", w.dump.Snapshot.Time, nil, "")
	l.end()
}

func (w *writer) event(l *list, e snapshot.Event) {
	if e.Memory.OnHost() {
		return
	}
	switch walk.Of(e.Action) {
	case walk.Begin:
		if size := w.cover(address(e.Ptr), e.Allocated, e.Stream); size > 0 {
			w.memoryEvent(l, "segment_alloc", e, size)
		}
		w.memoryEvent(l, "alloc", e, e.Requested)
	case walk.End:
		w.free(l, e)
	case walk.Complete:
		w.complete(l, e)
	case walk.Grow:
		w.grow(l, e)
	case walk.Shrink:
		w.shrink(l, e)
	}
	switch e.Action {
	case mem.FreeRequested:
		w.pending[address(e.Ptr)] = true
		w.memoryEvent(l, "free_requested", e, e.Requested)
	case mem.OutOfMemory:
		w.outOfMemory(l, e)
	case mem.Marked:
		w.plainEvent(l, "snapshot", e.Time, e.Stack, fmt.Sprintf("mark %d", e.Mark))
	}
}

// free writes a free. If its completion is an event of the history, it is written there.
func (w *writer) free(l *list, e snapshot.Event) {
	addr := address(e.Ptr)
	if w.pending[addr] {
		delete(w.pending, addr)
	} else {
		w.memoryEvent(l, "free_requested", e, e.Requested)
	}
	if w.late[e.Seq] {
		w.freed[addr] = e
		return
	}
	w.memoryEvent(l, "free_completed", e, e.Requested)
	w.uncover(l, e)
}

// complete writes the event that a free is completed. For a block from before the history, no event
// has its free's request, so complete writes that first.
func (w *writer) complete(l *list, e snapshot.Event) {
	addr := address(e.Ptr)
	freed, ok := w.freed[addr]
	if !ok {
		e.Requested = e.Allocated
		w.memoryEvent(l, "free_requested", e, e.Requested)
		freed = e
	}
	delete(w.freed, addr)
	freed.Time = e.Time
	w.memoryEvent(l, "free_completed", freed, freed.Requested)
	w.uncover(l, freed)
}

// grow writes that the cache allocated a segment, unless one is there already.
func (w *writer) grow(l *list, e snapshot.Event) {
	addr := address(e.Ptr)
	if w.open.At(addr) != nil {
		return
	}
	w.open.Insert(walk.Span{Ptr: addr, Size: e.Allocated, Pool: "large", Stream: e.Stream})
	w.memoryEvent(l, w.action("segment_alloc", "segment_map"), e, e.Allocated)
}

// shrink writes that memory was released to the driver.
func (w *writer) shrink(l *list, e snapshot.Event) {
	addr := address(e.Ptr)
	s := w.open.At(addr)
	if s == nil || s.Own || s.Ptr != addr && !w.expandable {
		return
	}
	if w.expandable {
		w.open.Cut(addr, e.Allocated)
	} else {
		w.open.Remove(addr)
	}
	w.memoryEvent(l, w.action("segment_free", "segment_unmap"), e, e.Allocated)
}

// action chooses the name of an event about a segment. Pieces of expandable segments are mapped and unmapped, and the page
// joins and splits them.
func (w *writer) action(whole, piece string) string {
	if w.expandable {
		return piece
	}
	return whole
}

// cover makes a segment for a buffer that is in none, and returns its size; 0
// if the buffer is in one.
func (w *writer) cover(addr alloc.Ptr, size alloc.Bytes, stream alloc.Stream) alloc.Bytes {
	if s := w.open.At(addr); s != nil {
		s.Users++
		return 0
	}
	return w.open.Insert(walk.Span{Ptr: addr, Size: size, Pool: "large", Stream: stream, Own: true, Users: 1}).Size
}

// uncover removes the segment that cover made when its last buffer is freed.
func (w *writer) uncover(l *list, e snapshot.Event) {
	s := w.open.At(address(e.Ptr))
	if s == nil { // registered memory at the address of a segment that is gone
		w.memoryEvent(l, "segment_free", e, max(e.Allocated, 1))
		return
	}
	if s.Users--; s.Own && s.Users == 0 {
		gone := *s
		w.open.Remove(gone.Ptr)
		e.Ptr = gone.Ptr
		w.memoryEvent(l, "segment_free", e, gone.Size)
	}
}

func (w *writer) memoryEvent(l *list, action string, e snapshot.Event, size alloc.Bytes) {
	l.next()
	w.beginDict()
	w.nameItem("action", action)
	w.intItem("addr", int64(address(e.Ptr)))
	stack := e.Stack
	if e.FreedAt != nil {
		stack = e.FreedAt
	}
	w.eventRest(e.Time, size, e.Stream, stack, category(e.Kind))
	if action == "alloc" {
		w.metadata(e)
	}
	if e.Private != "" {
		w.name("pool_id")
		w.pool(e.Private)
	}
	w.endDict()
}

// plainEvent writes an event that is not about memory.
func (w *writer) plainEvent(l *list, action string, at time.Time, stack mem.Stack, metadata string) {
	l.next()
	w.beginDict()
	w.nameItem("action", action)
	w.intItem("addr", 0)
	w.eventRest(at, 0, 0, stack, category(""))
	if metadata != "" {
		w.name("user_metadata")
		w.text(metadata)
	}
	w.endDict()
}

func (w *writer) outOfMemory(l *list, e snapshot.Event) {
	l.next()
	w.beginDict()
	w.nameItem("action", "oom")
	w.intItem("device_free", int64(w.freeThen()))
	w.eventRest(e.Time, e.Requested, e.Stream, e.Stack, category(e.Kind))
	w.endDict()
}

// freeThen estimates the device's free memory at an event. It assumes that all others used as much
// as at the end.
func (w *writer) freeThen() alloc.Bytes {
	s := w.dump.Snapshot
	if s.DriverTotal < 0 || s.Untracked() < 0 {
		return 0
	}
	return max(0, s.DriverTotal-s.Untracked()-w.open.Bytes)
}

func (w *writer) eventRest(at time.Time, size alloc.Bytes, stream alloc.Stream, stack mem.Stack, category string) {
	w.intItem("size", int64(size))
	w.intItem("stream", streamNumber(stream))
	w.intItem("time_us", at.UnixMicro())
	w.name("frames")
	w.stack(stack)
	w.nameItem("category", category)
}

// metadata writes what a buffer is, and the label of one that is live at the end.
func (w *writer) metadata(e snapshot.Event) {
	label := w.labels[e.Seq]
	unknown := e.DType.Bits() == 0 && e.Kind == "" && e.Memory == w.memory && e.Section == ""
	switch {
	case label != "":
		w.name("user_metadata")
		if !unknown {
			label = w.description(e) + ": " + label
		}
		w.text(label)
	case !unknown:
		w.name("user_metadata")
		w.describe(e)
	}
}

// describe writes the description of a buffer, the same text once.
func (w *writer) describe(e snapshot.Event) {
	g := groupOf(e.Kind, e.DType, e.Memory, e.Shape, e.Section)
	if m, ok := w.about[g]; ok {
		w.get(m)
		return
	}
	w.text(w.description(e))
	if len(w.about) < maxGroups {
		w.about[g] = w.memoize()
	}
}

// description is what is known of a buffer: "Parameter (64, 3, 3, 3) float32 in load", with "of managed
// memory" after the dtype if it is not of w.memory.
func (w *writer) description(e snapshot.Event) string {
	text := e.Kind.String()
	if e.DType.Bits() > 0 {
		text += fmt.Sprintf(" %v %v", e.Shape, e.DType)
	}
	if e.Memory != w.memory {
		text += fmt.Sprintf(" of %v memory", e.Memory)
	}
	if e.Section != "" {
		text += " in " + e.Section
	}
	return text
}

// before is the result of going back from the end of a history: the buffers that were live before the first event, and
// the frees that left memory pending. PyTorch has two events for a free, its request and
// its completion. A tracker has the event Freed, and FreeCompleted only if that came later.
type before struct {
	buffers walk.Reverse[piece]
	late    map[uint64]bool              // frees that completed later, by the number of their event Freed
	left    map[alloc.Ptr]snapshot.Event // frees that are not completed at the end
}

// piece is the memory of a buffer, as an event has it.
type piece struct {
	ptr    alloc.Ptr
	size   alloc.Bytes
	stream alloc.Stream
	seq    uint64 // the number of the event
}

// atEnd is piece.seq of the blocks that are pending at the end.
const atEnd = math.MaxUint64

// goBack goes back over a history. It leaves the segments before the first event in open.
func (p *part) goBack() {
	s := p.dump.Snapshot
	for i := range s.Segments {
		if x := spanOf(&s.Segments[i]); p.open.At(x.Ptr) == nil {
			p.open.Insert(x)
		}
	}
	p.before = before{make(walk.Reverse[piece]), make(map[uint64]bool), make(map[alloc.Ptr]snapshot.Event)}
	for ptr := range pendingIn(s) {
		p.buffers.Set(address(ptr), walk.Pending, piece{seq: atEnd})
	}
	for e := range walk.Backward(p.dump) {
		if !e.Memory.OnHost() {
			p.undo(&e)
		}
	}
}

// spanOf returns a segment's span, at the address that the file gives it.
func spanOf(s *alloc.Segment) walk.Span {
	x := walk.SpanOf(s)
	x.Ptr = address(s.Ptr)
	return x
}

func (p *part) undo(e *snapshot.Event) {
	addr := address(e.Ptr)
	switch effect := walk.Of(e.Action); effect {
	case walk.Begin, walk.End, walk.Complete:
		after := p.buffers.Undo(effect, addr, piece{addr, e.Allocated, e.Stream, e.Seq})
		if after.State == walk.Pending && e.Action == mem.Freed {
			p.late[e.Seq] = true
			if after.Value.seq == atEnd {
				p.left[e.Ptr] = *e
			}
		}
	case walk.Grow:
		p.open.Cut(addr, e.Allocated)
	case walk.Shrink:
		if p.open.At(addr) == nil {
			p.open.Insert(walk.Span{Ptr: addr, Size: e.Allocated, Pool: "large", Stream: e.Stream, Expandable: p.expandable})
		}
	}
}

// coverFirst makes segments for the buffers before the first event that lie in none.
func (w *writer) coverFirst() {
	var bare []piece
	for _, b := range w.buffers {
		if x := b.Value; b.State >= walk.Live && x.seq != atEnd && w.open.At(x.ptr) == nil {
			bare = append(bare, x)
		}
	}
	slices.SortFunc(bare, func(x, y piece) int { return cmp.Compare(x.seq, y.seq) })
	for _, b := range bare {
		w.cover(b.ptr, b.size, b.stream)
	}
	for _, b := range w.live.sorted {
		if first := w.buffers[b.addr]; first.State == walk.Unknown || first.Value.seq == atEnd {
			w.cover(b.addr, b.size, b.stream)
		}
	}
	w.buffers = nil
}
