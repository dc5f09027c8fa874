package bands

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
)

// State is what a block is at a moment.
type State uint8

// The states.
const (
	Inactive State = iota
	Live
	Pending
	Merged // several neighbours that are smaller than the map can show
	Hidden // live, and not in the layer
)

// Block is a part of a segment.
type Block struct {
	Offset, Bytes int64
	State         State
	ID            uint32 // of the allocation, or of the largest in it; None if there is none
	Count         int    // of allocations
	Used          int64  // live and pending bytes in it
}

// Segment is a range of addresses that the allocator held from the driver.
type Segment struct {
	walk.Span
	Used        int64 // live and pending bytes
	LargestFree int64
	Blocks      []Block // by address; they tile the segment
}

// Map is the segments of a moment, by address.
type Map struct {
	Reserved, Live, Pending int64
	Inactive                int64 // of the segments, neither live nor pending
	Known                   bool  // the recording has segments; otherwise there is one for each run of neighbours
	Segments                []Segment
	More                    int // the smallest segments, which are left out
	MoreBytes               int64
}

// MapOf returns the segments and blocks at a moment. It keeps the largest segments, at most a number of them, and merges
// neighbouring blocks that are smaller than a part in width of their segment, or a larger part, until there are not more than
// a number of them. Blocks of allocations that are not in the layer are Hidden.
//
// Segments come from their events, backwards from the end; where these do not agree with the snapshot's segments, what fits
// is kept.
func MapOf(x *Index, l *Layer, moment uint32, segments, width, most int) Map {
	m := Map{}
	blocks := blocksAt(x, l, moment)
	spans := spansAt(x, moment)
	m.Known = len(spans) > 0
	if !m.Known {
		spans = runs(blocks)
	}
	all := make([]Segment, len(spans))
	at := 0
	for i, span := range spans {
		m.Reserved += int64(span.Size)
		for at < len(blocks) && blocks[at].ptr < span.Ptr {
			at++ // in no segment: memory of other code
		}
		end := at
		for end < len(blocks) && blocks[end].ptr < span.End() {
			end++
		}
		all[i] = tiled(span, blocks[at:end])
		m.Inactive += int64(span.Size) - all[i].Used
		at = end
	}
	for _, b := range blocks {
		if b.State == Pending {
			m.Pending += b.Bytes
		} else {
			m.Live += b.Used
		}
	}
	m.keep(all, segments, width, most)
	return m
}

// keep keeps the largest segments, with as many blocks as a map can show.
func (m *Map) keep(all []Segment, segments, width, most int) {
	if len(all) > segments {
		slices.SortStableFunc(all, func(a, b Segment) int { return cmp.Compare(b.Size, a.Size) })
		for _, s := range all[segments:] {
			m.More++
			m.MoreBytes += int64(s.Size)
		}
		all = all[:segments]
		slices.SortFunc(all, func(a, b Segment) int { return cmp.Compare(a.Ptr, b.Ptr) })
	}
	for n := most + 1; n > most; width = max(1, width/2) {
		n = 0
		for i := range all {
			all[i].Blocks = merged(all[i].Blocks, int64(all[i].Size)/int64(width))
			n += len(all[i].Blocks)
		}
		if width == 1 {
			break
		}
	}
	m.Segments = all
}

// addressed is a block at its address.
type addressed struct {
	Block
	ptr alloc.Ptr
}

// blocksAt returns the live and pending blocks at a moment, by address.
func blocksAt(x *Index, l *Layer, moment uint32) []addressed {
	var out []addressed
	add := func(id uint32, state State) {
		n := int64(allocatedBytes(x, id))
		out = append(out, addressed{Block{Bytes: n, State: state, ID: id, Count: 1, Used: n}, x.ptrs[id]})
	}
	x.All.eachLive(moment, func(i int) bool {
		state := Live
		if l != x.All {
			if _, ok := l.place(uint32(i)); !ok {
				state = Hidden
			}
		}
		add(uint32(i), state)
		return true
	})
	for _, p := range x.pending {
		if p.from <= moment && moment < p.to {
			add(p.id, Pending)
		}
	}
	slices.SortFunc(out, func(a, b addressed) int { return cmp.Or(cmp.Compare(a.ptr, b.ptr), cmp.Compare(b.Bytes, a.Bytes)) })
	return out
}

// spansAt returns the segments at a moment.
func spansAt(x *Index, moment uint32) []walk.Span {
	if x.host {
		return nil
	}
	var s walk.Reserved
	for i := range x.Dump.Snapshot.Segments {
		segment := &x.Dump.Snapshot.Segments[i]
		s.Expandable = s.Expandable || segment.Expandable
		s.Add(walk.SpanOf(segment), false)
	}
	first := x.First()
	for _, i := range slices.Backward(x.segmentEvents) {
		if i < moment {
			break
		}
		s.Undo(x.past, first+uint64(i), &x.events[i])
	}
	var out []walk.Span
	for span := range s.All {
		out = append(out, *span)
	}
	return out
}

// runs makes a span of each run of neighbours.
func runs(blocks []addressed) (spans []walk.Span) {
	for _, b := range blocks {
		if n := len(spans) - 1; n >= 0 && b.ptr <= spans[n].End() {
			spans[n].Size = max(spans[n].Size, alloc.Bytes(b.ptr-spans[n].Ptr)+alloc.Bytes(b.Bytes))
			continue
		}
		spans = append(spans, walk.Span{Ptr: b.ptr, Size: alloc.Bytes(max(1, b.Bytes))})
	}
	return spans
}

// tiled returns a segment with its blocks and the free ones between them. A block that reaches into the next one is cut.
func tiled(span walk.Span, blocks []addressed) Segment {
	s := Segment{Span: span, Blocks: make([]Block, 0, 2*len(blocks)+1)}
	var at int64
	free := func(to int64) {
		if to > at {
			s.LargestFree = max(s.LargestFree, to-at)
			s.Blocks = append(s.Blocks, Block{Offset: at, Bytes: to - at, ID: None})
			at = to
		}
	}
	for i, b := range blocks {
		from, to := int64(b.ptr-span.Ptr), int64(span.Size)
		if i+1 < len(blocks) {
			to = int64(blocks[i+1].ptr - span.Ptr)
		}
		if from < at {
			continue // inside another one
		}
		free(from)
		b.Offset, b.Bytes = from, min(b.Bytes, to-from)
		if b.Bytes <= 0 {
			continue
		}
		b.Used = b.Bytes
		s.Used += b.Bytes
		s.Blocks = append(s.Blocks, b.Block)
		at = from + b.Bytes
	}
	free(int64(span.Size))
	return s
}

// merged merges neighbours that are smaller than the least.
func merged(blocks []Block, least int64) []Block {
	out := blocks[:0]
	small := false // the last block may take more
	for _, b := range blocks {
		if b.Bytes >= least {
			out, small = append(out, b), false
			continue
		}
		if !small || out[len(out)-1].Bytes >= least {
			out, small = append(out, b), true
			continue
		}
		last := &out[len(out)-1]
		if b.ID != None && (last.ID == None || b.Used > last.Used) {
			last.ID = b.ID
		}
		last.Bytes, last.Used, last.Count, last.State = last.Bytes+b.Bytes, last.Used+b.Used, last.Count+b.Count, Merged
	}
	return out
}
