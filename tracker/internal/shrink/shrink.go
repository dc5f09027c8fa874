// Package shrink makes a dump smaller by leaving out detail, the least useful first. Levels, and
// the sums of what is left out, stay. It writes nothing: it estimates the size of the dump.
package shrink

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

const (
	// MinAllocation is the smallest size of an allocation in a dump, in bytes.
	MinAllocation = 80

	// What a dump that has to be smaller keeps, first of much and then of little.
	manyEvents, manyMarks = 1 << 12, 16
	fewEvents             = 1 << 8
)

// Once leaves out the next least useful detail. It returns false if there is nothing more to leave
// out.
func Once(d *snapshot.Dump) bool {
	s, lists, events := d.Snapshot, tables.Of(&d.Snapshot.Tables), len(tables.OfHistory(&d.History).Events)
	switch {
	case events > manyEvents || len(d.Marks) > manyMarks:
		keepEvents(d, manyEvents, manyMarks)
	case len(s.Segments) > 0:
		dropSegments(d)
	case len(lists.Allocations) > 0:
		dropAllocations(d)
	case events > fewEvents || len(d.Marks) > 0:
		keepEvents(d, fewEvents, 0)
	case len(lists.Sites)+len(lists.Retired) > 0:
		keepSites(lists, len(lists.Sites)/2, len(lists.Retired)/2)
	case events > 0:
		keepEvents(d, 0, 0)
	default:
		return false
	}
	return true
}

// keepEvents keeps at most this many of the latest events and marks.
func keepEvents(d *snapshot.Dump, events, marks int) {
	h, leftOut := tables.OfHistory(&d.History), &tables.Of(&d.Snapshot.Tables).LeftOut
	if drop := len(h.Events) - events; drop > 0 {
		h.Events = h.Events[drop:]
		h.First += uint64(drop)
		leftOut.Events += int64(drop)
	}
	if drop := len(d.Marks) - marks; drop > 0 {
		d.Marks = d.Marks[drop:]
		leftOut.Marks += int64(drop)
	}
}

func dropSegments(d *snapshot.Dump) {
	leftOut := &tables.Of(&d.Snapshot.Tables).LeftOut
	for _, segment := range d.Snapshot.Segments {
		leftOut.Segments++
		leftOut.SegmentBytes += segment.Size
	}
	d.Snapshot.Segments = nil
}

func dropAllocations(d *snapshot.Dump) {
	lists := tables.Of(&d.Snapshot.Tables)
	lists.Allocations, lists.Paths = nil, nil // without both, no suspect is named
	lists.LeftOut.Allocations = d.Snapshot.Live.Add(d.Snapshot.Host())
}

// keepSites keeps the call sites with the most live bytes and, among those that the ledger has
// dropped, the ones with the most bytes ever. The lists must have no allocations left, because they
// refer to call sites.
func keepSites(lists *tables.Tables, sites, retired int) {
	slices.SortFunc(lists.Sites, func(x, y tables.SiteEntry) int {
		return cmp.Or(
			cmp.Compare(y.Tensor.Tally(y.Live).Bytes, x.Tensor.Tally(x.Live).Bytes),
			cmp.Compare(y.Tensor.Tally(y.Total).Bytes, x.Tensor.Tally(x.Total).Bytes))
	})
	slices.SortFunc(lists.Retired, func(x, y tables.RetiredEntry) int { return cmp.Compare(y.Total.Bytes, x.Total.Bytes) })
	sum := &lists.LeftOut.Unsited
	for _, e := range lists.Sites[sites:] {
		if e.Tensor.Memory.OnHost() {
			continue
		}
		sum.Live = sum.Live.Add(e.Tensor.Tally(e.Live))
		sum.Peak = sum.Peak.Add(e.Tensor.Tally(e.Peak))
		sum.Total = sum.Total.Add(e.Tensor.Tally(e.Total))
	}
	for _, e := range lists.Retired[retired:] {
		if !e.Memory.OnHost() {
			sum.Total = sum.Total.Add(e.Total)
		}
	}
	lists.LeftOut.Sites += int64(len(lists.Sites) - sites + len(lists.Retired) - retired)
	lists.Sites, lists.Retired = lists.Sites[:sites], lists.Retired[:retired]
}

// Size guesses the size of the dump's JSON form from a sample of each table.
func Size(d *snapshot.Dump) alloc.Bytes {
	sample := &jsonstream.Sample{Of: 64}
	if err := d.WriteJSON(sample); err != nil {
		return 0 // writing it returns the error
	}
	return alloc.Bytes(sample.Size)
}

// Light adds to the dump's LeftOut what its light snapshot leaves out.
func Light(s *snapshot.Snapshot) {
	l := &tables.Of(&s.Tables).LeftOut
	l.Allocations = s.Live.Add(s.Host())
	if s.Cache != nil {
		l.Segments, l.SegmentBytes = s.Cache.Reserved.Count.Current, s.Cache.Reserved.Bytes.Current
	}
}
