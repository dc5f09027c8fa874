// Package rewind goes back from a snapshot through the history before it: what there was before each event, and at
// the moment of most allocated bytes.
//
//	peak, _, err := rewind.To(dump, "peak")
//	fmt.Print(peak)
//
// It asks no device and runs nothing again. It does not make up what a history has lost.
package rewind

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/survival"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Moment is an instant of a dump's history.
type Moment struct {
	At    string      `json:"at"`              // "end", "peak", "oom", or "event"
	Event uint64      `json:"event,omitempty"` // the events that had happened
	Asked alloc.Bytes `json:"failed_request_bytes,omitempty"`
}

// String names the moment: "the error".
func (m Moment) String() string {
	switch m.At {
	case "event":
		return "event " + strconv.FormatUint(m.Event, 10)
	case "oom":
		return "the error"
	}
	return "the " + m.At
}

// To returns the state of a dump at a moment. word is "end" for its snapshot, "peak" for the most
// allocated bytes, "oom" for the latest out of memory error, or a number for the state before that
// event. An empty word means the error if the dump was written because of one, otherwise the end.
// The errors are those of At, or say that the dump has no such moment.
func To(d *snapshot.Dump, word string) (*snapshot.Snapshot, Moment, error) {
	end := Moment{At: "end", Event: d.Snapshot.Events}
	switch word {
	case "":
		if d.OOM == nil {
			return d.Snapshot, end, nil
		}
		if s, at, err := toError(d); err == nil {
			return s, at, nil
		}
		return d.Snapshot, end, nil // what came before the end is not known
	case "end":
		return d.Snapshot, end, nil
	case "peak":
		s, err := atPeak(d)
		if err != nil {
			return nil, Moment{}, err
		}
		return s, Moment{At: "peak", Event: s.Events}, nil
	case "oom":
		return toError(d)
	}
	event, err := strconv.ParseUint(word, 10, 64)
	if err != nil {
		return nil, Moment{}, fmt.Errorf("no moment %q: want end, peak, oom, or the number of an event", word)
	}
	s, err := At(d, event)
	return s, Moment{At: "event", Event: event}, err
}

// toError goes to the latest out of memory event. A dump that was written because of an error but
// has no event of it ends at the error: then its snapshot is the state.
func toError(d *snapshot.Dump) (*snapshot.Snapshot, Moment, error) {
	changed := false
	for e := range walk.Backward(d) {
		if e.Action != mem.OutOfMemory {
			changed = changed || walk.Of(e.Action) != walk.None
			continue
		}
		m := Moment{At: "oom", Event: e.Seq, Asked: e.Requested}
		if !changed {
			return d.Snapshot, m, nil
		}
		s, err := At(d, e.Seq)
		return s, m, err
	}
	if d.OOM == nil {
		return nil, Moment{}, fmt.Errorf("no out of memory error among its %d events", len(tables.OfHistory(&d.History).Events))
	}
	return d.Snapshot, Moment{At: "oom", Event: d.Snapshot.Events, Asked: max(0, d.OOM.Requested)}, nil
}

// atPeak returns the state with the most allocated bytes in the history, right after the event that
// led to it; the snapshot itself if that has the most, and the state before the first event if nothing after it has as much. The errors are those of At, or say that there is no history.
func atPeak(r *snapshot.Dump) (*snapshot.Snapshot, error) {
	s, source := r.Snapshot, walk.SourceOf(r.Snapshot)
	if kept, _ := walk.Events(r); len(kept) == 0 && (source != walk.Tracker || s.Peak.Bytes > s.Live.Bytes) {
		return nil, source.NoHistory()
	}
	most, at := alloc.Bytes(0), r.Snapshot.Events
	level := walk.BeginningOf(r).Levels
	beginning := level.Allocated
	for e := range r.Events() {
		if level = level.Add(walk.Change(&e)); level.Allocated > most {
			most, at = level.Allocated, e.Seq+1
		}
	}
	switch kept, first := walk.Events(r); {
	case beginning > most && len(kept) > 0:
		return At(r, first)
	case at == first+uint64(len(kept)):
		return r.Snapshot, nil
	}
	return At(r, at)
}

// At returns the state of a dump before the event with that number. It starts from the snapshot and
// undoes each event from the last to that one. For a buffer that was freed since, only what its
// allocation's event says is known.
//
// Segments come from their events. The result has no Segments if these do not agree with the
// snapshot's, as in a torn history, or if the dump has none. A block in a large segment may be up
// to 1 MiB larger than its request, as in PyTorch's scheme. Its end is where the next block begins,
// or the first block made there later. Peak and Cache are unknown. The error says that there is no
// history, that the dump does not have the event, or that the snapshot does not list its live
// buffers.
func At(r *snapshot.Dump, event uint64) (at *snapshot.Snapshot, err error) {
	err = Each(r, []uint64{event}, func(s *snapshot.Snapshot) { at = s })
	return at, err
}

// Each calls show with the state before each of the events, latest first, in one walk back through
// the history. The states, the numbers and the errors are those of At.
func Each(r *snapshot.Dump, events []uint64, show func(*snapshot.Snapshot)) error {
	events = slices.Sorted(slices.Values(events))
	for _, event := range events {
		if err := reachable(r, event); err != nil {
			return err
		}
	}
	var w *rewind
	at := r.Snapshot.Events
	for _, event := range slices.Backward(events) {
		if event == r.Snapshot.Events {
			show(r.Snapshot)
			continue
		}
		if w == nil {
			w = newRewind(r)
			at = w.first + uint64(len(w.events))
		}
		for ; at > event; at-- {
			w.undo(at-1, &w.events[at-1-w.first])
		}
		w.setTimes(w.events[:event-w.first])
		show(w.result(event))
	}
	return nil
}

// reachable returns why the state before an event is not known.
func reachable(r *snapshot.Dump, event uint64) error {
	s := r.Snapshot
	if event == s.Events {
		return nil
	}
	kept, first := walk.Events(r)
	if len(kept) == 0 {
		return walk.SourceOf(s).NoHistory()
	}
	if event < first || event >= first+uint64(len(kept)) {
		return fmt.Errorf("no event %d: the dump has %d from %d on", event, len(kept), first)
	}
	if tables.Of(&s.Tables).Allocations == nil && s.Live.Count > 0 {
		return fmt.Errorf("the %d live buffers are not told one by one: the state before them is not known", s.Live.Count)
	}
	return nil
}

// rewind goes back from a dump's snapshot.
type rewind struct {
	of       *snapshot.Dump
	lists    *tables.Tables        // of its snapshot
	past     *tables.HistoryTables // its history
	events   []tables.EventEntry
	first    uint64
	live     map[alloc.Ptr]buffer
	reserved walk.Reserved
	total    alloc.Bytes                  // reserved bytes, from the events
	lines    map[mem.Frame]*survival.Unit // lifetimes in the complete history, made when first needed
}

// buffer is a buffer that was live at the moment that the walk has reached.
type buffer struct {
	tables.AllocationEntry              // its Site is not known yet
	place                  tables.Place // its stack's number is doubled; see twoStacks
	section                string
	tensor                 *tables.Tensor // nil of a block that no buffer is known of
	requested              alloc.Bytes
	stream                 alloc.Stream
	pending                bool
}

// twoStacks are the stacks of two sources: even numbers are the first one's.
type twoStacks [2]tables.Stacks

func (t twoStacks) Stack(id tables.StackID) mem.Stack { return t[id&1].Stack(id >> 1) }

func (t twoStacks) Site(id tables.StackID) mem.Frame { return t[id&1].Site(id >> 1) }

func (t twoStacks) Path(id tables.StackID) mem.Path { return t[id&1].Path(id >> 1) }

func newRewind(r *snapshot.Dump) *rewind {
	s := r.Snapshot
	events, first := walk.Events(r)
	t := tables.Of(&s.Tables)
	w := &rewind{of: r, lists: t, past: tables.OfHistory(&r.History), events: events, first: first, total: s.Reserved, live: make(map[alloc.Ptr]buffer, len(t.Allocations))}
	for i := range s.Segments {
		segment := &s.Segments[i]
		w.reserved.Expandable = w.reserved.Expandable || segment.Expandable
		w.reserved.Add(walk.SpanOf(segment), false)
		for _, b := range segment.Blocks {
			if b.State != alloc.Inactive {
				w.live[b.Ptr] = buffer{
					AllocationEntry: tables.AllocationEntry{Allocated: b.Size}, requested: b.Requested,
					stream: segment.Stream, pending: b.State == alloc.Pending,
				}
			}
		}
	}
	for _, a := range t.Allocations {
		site := t.Sites[a.Site]
		w.live[a.Ptr] = buffer{
			a, tables.Place{Stack: site.Stack << 1}, t.Sections[site.Section], site.Tensor,
			site.Tensor.Each, tables.StreamOf(t.Streams, site.Stream), w.live[a.Ptr].pending,
		}
	}
	return w
}

// undo reverts the event with that number. An event that does not fit those after it is skipped.
func (w *rewind) undo(seq uint64, e *tables.EventEntry) {
	switch walk.Of(e.Action) {
	case walk.Begin:
		delete(w.live, e.Ptr)
	case walk.End:
		w.live[e.Ptr] = w.freed(e)
	case walk.Complete:
		w.live[e.Ptr] = buffer{AllocationEntry: tables.AllocationEntry{Allocated: e.Allocated}, stream: w.stream(e), pending: true}
	case walk.Grow:
		w.reserved.Undo(w.past, seq, e)
		w.total -= e.Allocated
	case walk.Shrink:
		w.reserved.Undo(w.past, seq, e)
		w.total += e.Allocated
	}
}

// freed returns the buffer that an event freed.
func (w *rewind) freed(e *tables.EventEntry) buffer {
	b := buffer{
		// setTimes adds when it was allocated.
		AllocationEntry: tables.AllocationEntry{Ptr: e.Ptr, Allocated: e.Allocated, Foreign: e.Action == mem.Unregistered, Since: w.since(e)},
		place:           tables.Place{Stack: e.Stack<<1 | 1}, section: w.past.Sections[e.Section], tensor: e.Tensor, stream: w.stream(e),
	}
	if b.tensor == nil {
		b.tensor = &tables.Tensor{Kind: "", Each: e.Allocated}
	}
	b.requested = b.tensor.Each
	return b
}

// setTimes sets the allocation times of buffers that later events freed, if the allocation is among
// the events before.
func (w *rewind) setTimes(before []tables.EventEntry) {
	for i := range before {
		e := &before[i]
		if e.Action != mem.Allocated && e.Action != mem.Registered {
			continue
		}
		if b, ok := w.live[e.Ptr]; ok && b.tensor != nil && b.Allocated == e.Allocated {
			b.Seq, b.Since = w.first+uint64(i), w.since(e)
			w.live[e.Ptr] = b
		}
	}
}

func (w *rewind) stream(e *tables.EventEntry) alloc.Stream {
	return tables.StreamOf(w.past.Streams, e.Stream)
}

func (w *rewind) since(e *tables.EventEntry) time.Duration {
	return w.past.Start.Add(e.Since).Sub(w.lists.Epoch)
}

// result makes a snapshot of the state that the walk has reached.
func (w *rewind) result(event uint64) *snapshot.Snapshot {
	s := w.of.Snapshot
	at := &snapshot.Snapshot{
		Time: w.past.Start.Add(w.events[event-w.first].Since), Origin: s.Origin, Device: s.Device, Ordinal: s.Ordinal, UUID: s.UUID,
		Events: event, Settings: s.Settings,
	}
	at.DriverUsed, at.DriverTotal = -1, s.DriverTotal
	at.Memory = make(map[alloc.Memory]mem.Tally)
	buffers := make([]alloc.Ptr, 0, len(w.live))
	for p := range w.live {
		buffers = append(buffers, p)
	}
	slices.Sort(buffers)
	w.bound(buffers, w.events[event-w.first:])
	at.Segments = w.segments(buffers)
	*tables.Of(&at.Tables) = w.tables(at, buffers)
	if at.Reserved = max(0, w.total); len(s.Segments) == 0 && w.reserved.Bytes == 0 {
		at.Reserved = at.Allocated - at.Registered // there is no cache
	}
	return at
}

// tables returns the tables of the buffers, with what the snapshot knows of lifetimes. It counts
// the buffers in at.
func (w *rewind) tables(at *snapshot.Snapshot, buffers []alloc.Ptr) tables.Tables {
	t := tables.Tables{
		Stacks: twoStacks{w.lists.Stacks, w.past.Stacks}, Sections: []string{""}, Epoch: w.lists.Epoch,
		Streams: []alloc.Stream{0}, Lines: w.lists.Lines, Allocations: make([]tables.AllocationEntry, 0, len(buffers)),
	}
	if t.Lines == nil {
		if w.lines == nil {
			w.lines = w.lifetimes()
		}
		t.Lines = w.lines
	}
	type key struct {
		tables.Place
		tensor *tables.Tensor
		stream uint8
	}
	sections, streams := map[string]uint32{"": 0}, map[alloc.Stream]uint8{0: 0}
	sites := make(map[key]int32)
	for _, p := range buffers {
		b := w.live[p]
		if b.tensor == nil {
			continue
		}
		k := key{b.place, b.tensor, indexOf(streams, &t.Streams, b.stream, tables.MaxStreams)}
		k.Section = indexOf(sections, &t.Sections, b.section, tables.MaxSections)
		site, ok := sites[k]
		if !ok {
			site = int32(len(t.Sites))
			sites[k] = site
			t.Sites = append(t.Sites, tables.SiteEntry{Place: k.Place, Tensor: b.tensor, Stream: k.stream})
		}
		t.Sites[site].Live++
		t.Sites[site].Total++
		count(at, b)
		b.Site = site
		t.Allocations = append(t.Allocations, b.AllocationEntry)
	}
	slices.SortFunc(t.Allocations, func(a, b tables.AllocationEntry) int { return cmp.Compare(a.Seq, b.Seq) })
	return t
}

// count adds a buffer to the levels.
func count(s *snapshot.Snapshot, b buffer) {
	one := mem.Tally{Count: 1, Bytes: b.requested}
	s.Memory[b.tensor.Memory] = s.Memory[b.tensor.Memory].Add(one)
	if b.tensor.Memory.OnHost() {
		s.HostReserved += b.Allocated
		return
	}
	s.Live = s.Live.Add(one)
	s.Allocated += b.Allocated
	if b.Foreign {
		s.Registered += b.Allocated
	}
}

// indexOf returns a value's index in a list, and adds the value if there is room. If there is none,
// it returns 0.
func indexOf[T comparable, N ~uint8 | ~uint32](of map[T]N, list *[]T, value T, limit int) N {
	n, ok := of[value]
	if !ok && len(*list) < limit {
		n = N(len(*list))
		of[value] = n
		*list = append(*list, value)
	}
	return n
}

// lifetimes returns the lifetimes of buffers, as far as the events show them.
func (w *rewind) lifetimes() map[mem.Frame]*survival.Unit {
	found := make(map[mem.Frame]*survival.Unit)
	born := make(map[alloc.Ptr]time.Duration)
	for i := range w.events {
		e := &w.events[i]
		switch e.Action {
		case mem.Allocated:
			born[e.Ptr] = e.Since
		case mem.Freed:
			since, ok := born[e.Ptr]
			if !ok || e.Stack == 0 {
				continue
			}
			delete(born, e.Ptr)
			site := w.past.Stacks.Site(e.Stack)
			unit := found[site]
			if unit == nil {
				unit = &survival.Unit{Ages: new(survival.Ages)}
				found[site] = unit
			}
			unit.Ages.Add(e.Since - since)
		}
	}
	return found
}
