package html

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// segment is a segment of the cache, as the map shows it.
type segment struct {
	Size     alloc.Bytes `json:"size"`
	Used     alloc.Bytes `json:"used"`     // allocated, after rounding
	Largest  alloc.Bytes `json:"largest"`  // the largest inactive block
	Blocks   int         `json:"blocks"`   // in use
	Runs     []run       `json:"runs"`     // from its begin to its end
	Pins     []string    `json:"pins"`     // what keeps it from being given back, more bytes first
	MorePins int         `json:"morePins"` // lines of code
}

// run is a part of a segment in one use; the parts of a segment add up to columns.
type run struct {
	Use  string `json:"use"` // a kind; "" is inactive
	Part int    `json:"part"`
}

const (
	columns = 120
	maxPins = 3
)

// segmentMap is the segments with most inactive bytes, and what the others come
// to.
type segmentMap struct {
	Rows     []segment   `json:"rows"`
	More     int         `json:"more"`
	MoreSize alloc.Bytes `json:"moreSize"`
}

func (w *writing) segments(s *snapshot.Snapshot, most int) *segmentMap {
	if len(s.Segments) == 0 {
		return nil
	}
	shown := slices.Clone(s.Segments)
	slices.SortStableFunc(shown, func(x, y alloc.Segment) int {
		return cmp.Or(cmp.Compare(y.Size-used(y), x.Size-used(x)), cmp.Compare(y.Size, x.Size))
	})
	m := &segmentMap{Rows: []segment{}}
	for _, seg := range shown[min(len(shown), most):] {
		m.More++
		m.MoreSize += seg.Size
	}
	shown = shown[:min(len(shown), most)]
	owners := ownersIn(s, shown)
	for _, seg := range shown {
		m.Rows = append(m.Rows, w.segment(seg, owners))
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

// owner is what a block is used for, and the line that allocated it.
type owner struct {
	kind mem.Kind
	line mem.Frame
}

// pending stands for buffers that were freed and may still be used.
var pending = owner{kind: "freed, still used"}

// ownersIn returns the owners of the buffers that lie in the segments, by address.
func ownersIn(s *snapshot.Snapshot, segments []alloc.Segment) map[alloc.Ptr]owner {
	ordered := slices.SortedFunc(slices.Values(segments), func(x, y alloc.Segment) int { return cmp.Compare(x.Ptr, y.Ptr) })
	owners := make(map[alloc.Ptr]owner)
	for a := range s.Allocations() {
		i, found := slices.BinarySearchFunc(ordered, a.Ptr, func(seg alloc.Segment, p alloc.Ptr) int { return cmp.Compare(seg.Ptr, p) })
		if !found {
			i--
		}
		if i >= 0 && a.Ptr < ordered[i].Ptr+alloc.Ptr(ordered[i].Size) && !a.Registered {
			owners[a.Ptr] = owner{a.Kind, a.Site}
		}
	}
	return owners
}

func (w *writing) segment(seg alloc.Segment, owners map[alloc.Ptr]owner) segment {
	out := segment{Size: seg.Size, Used: used(seg), Pins: []string{}}
	var cells [columns]string
	pins := make(map[owner]mem.Tally)
	for _, b := range seg.Blocks {
		if b.State == alloc.Inactive {
			out.Largest = max(out.Largest, b.Size)
			continue
		}
		out.Blocks++
		of := owners[b.Ptr]
		if b.State == alloc.Pending {
			of = pending
		}
		pins[of] = pins[of].Add(mem.Tally{Count: 1, Bytes: b.Size})
		from, to := cell(b.Ptr-seg.Ptr, seg.Size), cell(b.Ptr-seg.Ptr+alloc.Ptr(b.Size), seg.Size)
		for i := from; i < min(columns, max(to, from+1)); i++ { // a small block is seen too
			cells[i] = w.text(of.kind.String())
		}
	}
	for _, use := range cells {
		if n := len(out.Runs); n > 0 && out.Runs[n-1].Use == use {
			out.Runs[n-1].Part++
			continue
		}
		out.Runs = append(out.Runs, run{use, 1})
	}
	if out.Used < out.Size {
		out.Pins, out.MorePins = w.pins(pins)
	}
	return out
}

// cell returns in which of the columns a place of a segment lies.
func cell(at alloc.Ptr, size alloc.Bytes) int {
	return int(min(columns, float64(at)/float64(max(1, size))*columns))
}

func (w *writing) pins(held map[owner]mem.Tally) (pins []string, more int) {
	var owners []owner
	for o := range held {
		owners = append(owners, o)
	}
	slices.SortFunc(owners, func(x, y owner) int {
		return cmp.Or(cmp.Compare(held[y].Bytes, held[x].Bytes), x.line.Compare(y.line), x.kind.Compare(y.kind))
	})
	pins = []string{}
	for _, o := range owners[:min(len(owners), maxPins)] {
		if o == pending {
			pins = append(pins, held[o].String()+" freed, but work on another stream may still use it")
			continue
		}
		if o.line.IsZero() {
			pins = append(pins, held[o].String()+" that the dump does not name")
			continue
		}
		pins = append(pins, held[o].String()+" of "+w.text(o.kind.String())+" from "+w.line(o.line))
	}
	return pins, max(0, len(owners)-maxPins)
}
