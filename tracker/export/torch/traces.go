package torch

import (
	"fmt"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// traces writes the histories, each in the list of its device.
//
// The page rebuilds the segments of each moment by going back from those at the end. So every
// event about a segment must fit the segments of then: w.open holds these.
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
	w.openFirst()
	l := w.beginList()
	for e := range w.record.Events() {
		w.event(l, e)
	}
	// There is always one event of category "unknown".
	w.plainEvent(l, "snapshot", w.record.Snapshot.Time, nil, "")
	l.end()
}

// openFirst fills w.open with the segments before the first event. These are the segments at the
// end that no event made, and those whose first event gives them back. A buffer of that time that
// lies in none of them gets a segment of its own.
func (w *writer) openFirst() {
	if w.expandable {
		w.openPieces()
	}
	made := make(map[int64]bool)    // segments, by an event or by add
	newer := make(map[int64]bool)   // live buffers that the history began
	waiting := make(map[int64]bool) // blocks freed, and still to be completed
	var older []block               // buffers that it only ended
	add := func(s span) {
		if !w.expandable && !made[s.addr] && w.open.at(s.addr) == nil {
			w.open.insert(s)
		}
		made[s.addr] = true
	}
	for e := range w.record.Events() {
		if e.Memory.OnHost() {
			continue
		}
		addr := address(e.Ptr)
		switch e.Action {
		case mem.SegmentAllocated:
			made[addr] = true
		case mem.SegmentFreed:
			add(span{addr: addr, size: int64(e.Allocated), pool: alloc.LargePool, stream: e.Stream})
		case mem.Allocated, mem.Registered, mem.FreeFailed:
			newer[addr] = true
		case mem.Freed, mem.Unregistered:
			if !newer[addr] {
				older = append(older, block{addr: addr, size: int64(e.Allocated), stream: e.Stream})
			}
			delete(newer, addr)
			if w.frees.late[e.Seq] {
				waiting[addr] = true
			}
		case mem.FreeCompleted:
			if !waiting[addr] {
				older = append(older, block{addr: addr, size: int64(e.Allocated), stream: e.Stream})
			}
			delete(waiting, addr)
		}
	}
	for _, s := range w.record.Snapshot.Segments {
		add(span{addr: address(s.Ptr), size: int64(s.Size), pool: s.Pool, stream: s.Stream, expandable: s.Expandable, private: s.Private})
	}
	for _, b := range older {
		w.cover(b.addr, b.size, b.stream)
	}
	for _, b := range w.live.sorted {
		if !newer[b.addr] && !waiting[b.addr] {
			w.cover(b.addr, b.size, b.stream)
		}
	}
}

// openPieces fills w.open with the pieces of expandable segments before the first event. It goes
// back from the end, since one event may give back parts that several events made.
func (w *writer) openPieces() {
	type change struct {
		addr, size int64
		stream     alloc.Stream
		grew       bool
	}
	var changes []change
	for e := range w.record.Events() {
		if e.Action == mem.SegmentAllocated || e.Action == mem.SegmentFreed {
			changes = append(changes, change{address(e.Ptr), int64(e.Allocated), e.Stream, e.Action == mem.SegmentAllocated})
		}
	}
	for _, s := range w.record.Snapshot.Segments {
		w.open.insert(span{addr: address(s.Ptr), size: int64(s.Size), pool: s.Pool, stream: s.Stream, expandable: s.Expandable, private: s.Private})
	}
	for _, c := range slices.Backward(changes) {
		switch {
		case c.grew:
			w.open.cut(c.addr, c.size)
		case w.open.at(c.addr) == nil:
			w.open.insert(span{addr: c.addr, size: c.size, pool: alloc.LargePool, stream: c.stream, expandable: true})
		}
	}
}

func (w *writer) event(l *list, e snapshot.Event) {
	if e.Memory.OnHost() {
		return
	}
	switch e.Action {
	case mem.Allocated, mem.Registered, mem.FreeFailed:
		if size := w.cover(address(e.Ptr), int64(e.Allocated), e.Stream); size > 0 {
			w.memoryEvent(l, "segment_alloc", e, alloc.Bytes(size))
		}
		w.memoryEvent(l, "alloc", e, e.Requested)
	case mem.Freed, mem.Unregistered:
		w.freed(l, e)
	case mem.FreeCompleted:
		w.completed(l, e)
	case mem.FreeRequested:
		w.pending[address(e.Ptr)] = true
		w.memoryEvent(l, "free_requested", e, e.Requested)
	case mem.SegmentAllocated:
		w.grow(l, e)
	case mem.SegmentFreed:
		w.shrink(l, e)
	case mem.OutOfMemory:
		w.outOfMemory(l, e)
	case mem.Marked:
		w.plainEvent(l, "snapshot", e.Time, e.Stack, fmt.Sprintf("mark %d", e.Mark))
	}
}

// grow writes that memory came from the driver, if it is not there already.
func (w *writer) grow(l *list, e snapshot.Event) {
	addr := address(e.Ptr)
	if w.open.at(addr) != nil {
		return
	}
	w.open.insert(span{addr: addr, size: int64(e.Allocated), pool: alloc.LargePool, stream: e.Stream})
	w.memoryEvent(l, w.action("segment_alloc", "segment_map"), e, e.Allocated)
}

// shrink writes that memory went back to the driver.
func (w *writer) shrink(l *list, e snapshot.Event) {
	addr := address(e.Ptr)
	s := w.open.at(addr)
	if s == nil || s.own || s.addr != addr && !w.expandable {
		return
	}
	if w.expandable {
		w.open.cut(addr, int64(e.Allocated))
	} else {
		w.open.remove(addr)
	}
	w.memoryEvent(l, w.action("segment_free", "segment_unmap"), e, e.Allocated)
}

// action chooses how the page is told of a segment. Pieces of expandable segments are
// mapped, and the page joins and splits them.
func (w *writer) action(whole, piece string) string {
	if w.expandable {
		return piece
	}
	return whole
}

// cover makes a segment for a buffer that is in none, and returns its size; 0
// if the buffer is in one.
func (w *writer) cover(addr, size int64, stream alloc.Stream) int64 {
	if s := w.open.at(addr); s != nil {
		s.users++
		return 0
	}
	return w.open.insert(span{addr: addr, size: size, pool: alloc.LargePool, stream: stream, own: true, users: 1}).size
}

// uncover removes the segment that cover made when its last buffer is freed.
func (w *writer) uncover(l *list, e snapshot.Event) {
	s := w.open.at(address(e.Ptr))
	if s == nil { // registered memory in a segment of the cache, which is gone
		w.memoryEvent(l, "segment_free", e, max(e.Allocated, 1))
		return
	}
	if s.users--; s.own && s.users == 0 {
		e.Ptr = alloc.Ptr(s.addr)
		size := alloc.Bytes(s.size)
		w.open.remove(s.addr)
		w.memoryEvent(l, "segment_free", e, size)
	}
}

func (w *writer) memoryEvent(l *list, action string, e snapshot.Event, size alloc.Bytes) {
	l.next()
	w.beginDict()
	w.nameItem("action", action)
	w.intItem("addr", address(e.Ptr))
	w.eventRest(e.Time, size, e.Stream, e.Stack, category(e.Kind))
	if action == "alloc" {
		w.name("user_metadata")
		w.describe(e)
	}
	w.endDict()
}

// plainEvent writes an event that is not about memory.
func (w *writer) plainEvent(l *list, action string, at time.Time, stack mem.Stack, metadata string) {
	l.next()
	w.beginDict()
	w.nameItem("action", action)
	w.intItem("addr", 0)
	w.eventRest(at, 0, 0, stack, category(mem.Unspecified))
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

// freeThen estimates the device's free memory at an event, from what all others
// hold at the end.
func (w *writer) freeThen() alloc.Bytes {
	s := w.record.Snapshot
	if s.DriverTotal < 0 || s.Untracked() < 0 {
		return 0
	}
	return max(0, s.DriverTotal-s.Untracked()-alloc.Bytes(w.open.bytes))
}

func (w *writer) eventRest(at time.Time, size alloc.Bytes, stream alloc.Stream, stack mem.Stack, category string) {
	w.intItem("size", int64(size))
	w.intItem("stream", streamNumber(stream))
	w.intItem("time_us", at.UnixMicro())
	w.name("frames")
	w.stack(stack)
	w.nameItem("category", category)
}

// describe writes what a buffer is: "Parameter (64, 3, 3, 3) float32 in load", with "of managed
// memory" after the dtype if it is not of w.memory.
func (w *writer) describe(e snapshot.Event) {
	g := groupOf(e.Kind, e.DType, e.Memory, e.Shape, e.Section)
	if m, ok := w.about[g]; ok {
		w.get(m)
		return
	}
	text := fmt.Sprintf("%v %v %v", e.Kind, e.Shape, e.DType)
	if e.Memory != w.memory {
		text += fmt.Sprintf(" of %v memory", e.Memory)
	}
	if e.Section != "" {
		text += " in " + e.Section
	}
	w.text(text)
	if len(w.about) < maxGroups {
		w.about[g] = w.memoize()
	}
}
