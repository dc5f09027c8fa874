package torch

import (
	"fmt"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// traces writes the history, in the list of the snapshot's device.
//
// The page shows it by going back from the segments at its end, so every event
// of a segment must fit those that remain: w.open follows them.
func (w *writer) traces() {
	w.openFirst()
	w.name("device_traces")
	devices := w.beginList()
	for range w.record.Snapshot.Ordinal {
		devices.next()
		w.op(opEmptyList)
	}
	devices.next()
	l := w.beginList()
	for e := range w.record.Events() {
		w.event(l, e)
	}
	// There is always one event of category "unknown".
	w.plainEvent(l, "snapshot", w.record.Snapshot.Time, nil, "")
	l.end()
	devices.end()
}

// openFirst fills w.open with what was there before the first event: the
// segments at the end that no event made, those that an event gives back first, and
// a segment for each buffer of that time that is in none of them.
func (w *writer) openFirst() {
	made := make(map[int64]bool)  // segments, by an event or by add
	newer := make(map[int64]bool) // live buffers that the history began
	var older []block             // buffers that it only ended
	add := func(addr, size int64, pool alloc.Pool) {
		if !made[addr] && w.open.at(addr) == nil {
			w.open.insert(span{addr: addr, size: size, pool: pool})
		}
		made[addr] = true
	}
	for e := range w.record.Events() {
		addr := address(e.Ptr)
		switch e.Action {
		case tracker.SegmentAllocated:
			made[addr] = true
		case tracker.SegmentFreed:
			add(addr, int64(e.Allocated), alloc.LargePool)
		case tracker.Allocated, tracker.Registered, tracker.FreeFailed:
			newer[addr] = true
		case tracker.Freed, tracker.Unregistered:
			if !newer[addr] {
				older = append(older, block{addr: addr, size: int64(e.Allocated)})
			}
			delete(newer, addr)
		}
	}
	for _, s := range w.record.Snapshot.Segments {
		add(address(s.Ptr), int64(s.Size), s.Pool)
	}
	for _, b := range older {
		w.cover(b.addr, b.size)
	}
	for _, b := range w.live.sorted {
		if !newer[b.addr] {
			w.cover(b.addr, b.size)
		}
	}
}

func (w *writer) event(l *list, e tracker.Event) {
	switch e.Action {
	case tracker.Allocated, tracker.Registered, tracker.FreeFailed:
		if size := w.cover(address(e.Ptr), int64(e.Allocated)); size > 0 {
			w.memoryEvent(l, "segment_alloc", e, alloc.Bytes(size))
		}
		w.memoryEvent(l, "alloc", e, e.Requested)
	case tracker.Freed, tracker.Unregistered:
		w.memoryEvent(l, "free_requested", e, e.Requested)
		w.memoryEvent(l, "free_completed", e, e.Requested)
		w.uncover(l, e)
	case tracker.SegmentAllocated:
		if addr := address(e.Ptr); w.open.at(addr) == nil {
			w.open.insert(span{addr: addr, size: int64(e.Allocated), pool: alloc.LargePool})
			w.memoryEvent(l, "segment_alloc", e, e.Allocated)
		}
	case tracker.SegmentFreed:
		addr := address(e.Ptr)
		if s := w.open.at(addr); s != nil && s.addr == addr && !s.own {
			w.open.remove(addr)
			w.memoryEvent(l, "segment_free", e, e.Allocated)
		}
	case tracker.OutOfMemory:
		w.outOfMemory(l, e)
	case tracker.Marked:
		w.plainEvent(l, "snapshot", e.Time, e.Stack, fmt.Sprintf("mark %d", e.Mark))
	}
}

// cover makes a segment for a buffer that is in none, and returns its size; 0
// if the buffer is in one.
func (w *writer) cover(addr, size int64) int64 {
	if s := w.open.at(addr); s != nil {
		s.users++
		return 0
	}
	return w.open.insert(span{addr: addr, size: size, pool: alloc.LargePool, own: true, users: 1}).size
}

// uncover takes the segment that cover made away with its last buffer.
func (w *writer) uncover(l *list, e tracker.Event) {
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

func (w *writer) memoryEvent(l *list, action string, e tracker.Event, size alloc.Bytes) {
	l.next()
	w.beginDict()
	w.nameItem("action", action)
	w.intItem("addr", address(e.Ptr))
	w.eventRest(e.Time, size, e.Stack, categories[e.Kind])
	if action == "alloc" {
		w.name("user_metadata")
		w.describe(e)
	}
	w.endDict()
}

// plainEvent writes an event that is not about memory.
func (w *writer) plainEvent(l *list, action string, at time.Time, stack tracker.Stack, metadata string) {
	l.next()
	w.beginDict()
	w.nameItem("action", action)
	w.intItem("addr", 0)
	w.eventRest(at, 0, stack, categories[tracker.Unspecified])
	if metadata != "" {
		w.name("user_metadata")
		w.text(metadata)
	}
	w.endDict()
}

func (w *writer) outOfMemory(l *list, e tracker.Event) {
	l.next()
	w.beginDict()
	w.nameItem("action", "oom")
	w.intItem("device_free", int64(w.freeThen()))
	w.eventRest(e.Time, e.Requested, e.Stack, categories[e.Kind])
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

func (w *writer) eventRest(at time.Time, size alloc.Bytes, stack tracker.Stack, category string) {
	w.intItem("size", int64(size))
	w.intItem("stream", 0)
	w.intItem("time_us", at.UnixMicro())
	w.name("frames")
	w.stack(stack)
	w.nameItem("category", category)
}

// describe writes what a buffer is: "Parameter (64, 3, 3, 3) float32 in load".
func (w *writer) describe(e tracker.Event) {
	g := groupOf(e.Kind, e.DType, e.Shape, e.Section)
	if m, ok := w.about[g]; ok {
		w.get(m)
		return
	}
	text := fmt.Sprintf("%v %v %v", e.Kind, e.Shape, e.DType)
	if e.Section != "" {
		text += " in " + e.Section
	}
	w.text(text)
	if len(w.about) < maxGroups {
		w.about[g] = w.memoize()
	}
}
