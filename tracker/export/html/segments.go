package html

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/kinds"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// segmentMap is the segments of a moment with most inactive bytes, and what the others come to.
type segmentMap struct {
	rows     []segment
	more     int
	moreSize alloc.Bytes
}

// segment is a segment of the cache, as the map shows it.
type segment struct {
	ptr      alloc.Ptr
	size     alloc.Bytes
	used     alloc.Bytes // allocated, after rounding
	blocks   int         // in use
	runs     []run       // cover the segment from its beginning to its end
	pins     []pin       // what keeps it from being given back, more bytes first
	morePins int         // lines of code
}

func (s *segment) equal(t *segment) bool {
	return s.size == t.size && s.used == t.used && s.blocks == t.blocks && s.morePins == t.morePins && slices.Equal(s.runs, t.runs) && slices.Equal(s.pins, t.pins)
}

// run is a part of a segment in one use; the parts of a segment add up to columns.
type run struct {
	use  owner
	part int
}

// pin is the memory that one line of code keeps in a segment.
type pin struct {
	owner
	held mem.Tally
}

const (
	columns     = 120
	maxPins     = 3
	maxSegments = 100
)

// newSegmentMap returns nil if the segments are not known.
func newSegmentMap(s *snapshot.Snapshot) *segmentMap {
	if len(s.Segments) == 0 {
		return nil
	}
	shown := slices.Clone(s.Segments)
	slices.SortStableFunc(shown, func(x, y alloc.Segment) int {
		return cmp.Or(cmp.Compare(y.Size-used(y), x.Size-used(x)), cmp.Compare(y.Size, x.Size))
	})
	m := &segmentMap{}
	for _, seg := range shown[min(len(shown), maxSegments):] {
		m.more++
		m.moreSize += seg.Size
	}
	shown = shown[:min(len(shown), maxSegments)]
	owners := ownersIn(s, shown)
	for _, seg := range shown {
		m.rows = append(m.rows, newSegment(seg, owners))
	}
	return m
}

func used(seg alloc.Segment) (sum alloc.Bytes) {
	for _, b := range seg.Blocks {
		if b.State != alloc.Inactive {
			sum += b.Size
		}
	}
	return sum
}

// owner says what a block is used for, and which line allocated it.
type owner struct {
	used bool // the zero owner stands for free memory
	kind mem.Kind
	line mem.Frame
}

// pending stands for buffers that were freed but may still be used by a stream; unnamed for blocks
// without a known buffer.
var (
	pending = owner{used: true, kind: "freed, still used"}
	unnamed = owner{used: true, kind: "not named"}
)

// ownersIn returns the owners of the buffers that lie in the segments, by address.
func ownersIn(s *snapshot.Snapshot, segments []alloc.Segment) map[alloc.Ptr]owner {
	ordered := slices.SortedStableFunc(slices.Values(segments), func(x, y alloc.Segment) int { return cmp.Compare(x.Ptr, y.Ptr) })
	owners := make(map[alloc.Ptr]owner)
	for a := range s.Allocations() {
		i, found := slices.BinarySearchFunc(ordered, a.Ptr, func(seg alloc.Segment, p alloc.Ptr) int { return cmp.Compare(seg.Ptr, p) })
		if !found {
			i--
		}
		if i >= 0 && a.Ptr < ordered[i].Ptr+alloc.Ptr(ordered[i].Size) && !a.Registered {
			owners[a.Ptr] = owner{true, a.Kind, a.CallSite}
		}
	}
	return owners
}

func newSegment(seg alloc.Segment, owners map[alloc.Ptr]owner) segment {
	out := segment{ptr: seg.Ptr, size: seg.Size, used: used(seg)}
	var cells [columns]owner
	held := make(map[owner]mem.Tally)
	for _, b := range seg.Blocks {
		if b.State == alloc.Inactive {
			continue
		}
		out.blocks++
		of, named := owners[b.Ptr]
		switch {
		case b.State == alloc.Pending:
			of = pending
		case !named:
			of = unnamed
		}
		held[of] = held[of].Add(mem.Tally{Count: 1, Bytes: b.Size})
		from, to := cell(b.Ptr-seg.Ptr, seg.Size), cell(b.Ptr-seg.Ptr+alloc.Ptr(b.Size), seg.Size)
		for i := from; i < min(columns, max(to, from+1)); i++ { // a small block is seen too
			cells[i] = of
		}
	}
	for _, use := range cells {
		if n := len(out.runs); n > 0 && out.runs[n-1].use == use {
			out.runs[n-1].part++
			continue
		}
		out.runs = append(out.runs, run{use, 1})
	}
	if out.used < out.size {
		out.pins, out.morePins = pins(held)
	}
	return out
}

// cell returns the column in which a place of a segment lies.
func cell(at alloc.Ptr, size alloc.Bytes) int {
	return int(min(columns, float64(at)/float64(max(1, size))*columns))
}

func pins(held map[owner]mem.Tally) (list []pin, more int) {
	for o, t := range held {
		list = append(list, pin{o, t})
	}
	slices.SortFunc(list, func(x, y pin) int {
		return cmp.Or(cmp.Compare(y.held.Bytes, x.held.Bytes), tables.CompareFrames(x.line, y.line), kinds.Compare(x.kind, y.kind))
	})
	return list[:min(len(list), maxPins)], max(0, len(list)-maxPins)
}
