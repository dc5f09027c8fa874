// Package shrink makes a dump smaller by leaving out detail, the least useful first. Levels, and
// the sums of what is left out, stay. It writes nothing: it estimates the size of the dump.
package shrink

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
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
	s, events := d.Snapshot, len(tables.OfHistory(d).Events)
	switch {
	case events > manyEvents || len(d.Marks) > manyMarks:
		keepEvents(d, manyEvents, manyMarks)
	case len(s.Segments) > 0:
		dropSegments(d)
	case len(tables.Of(s).Allocations) > 0:
		dropAllocations(d)
	case events > fewEvents || len(d.Marks) > 0:
		keepEvents(d, fewEvents, 0)
	case len(tables.Of(s).Sites)+len(tables.Of(s).Retired) > 0:
		keepSites(d, len(tables.Of(s).Sites)/2, len(tables.Of(s).Retired)/2)
	case events > 0:
		keepEvents(d, 0, 0)
	default:
		return false
	}
	return true
}

// keepEvents keeps at most this many of the latest events and marks.
func keepEvents(d *snapshot.Dump, events, marks int) {
	h := tables.OfHistory(d)
	if drop := len(h.Events) - events; drop > 0 {
		h.Events = h.Events[drop:]
		h.First += uint64(drop)
		tables.Of(d.Snapshot).LeftOut.Events += int64(drop)
	}
	if drop := len(d.Marks) - marks; drop > 0 {
		d.Marks = d.Marks[drop:]
		tables.Of(d.Snapshot).LeftOut.Marks += int64(drop)
	}
}

func dropSegments(d *snapshot.Dump) {
	for _, segment := range d.Snapshot.Segments {
		tables.Of(d.Snapshot).LeftOut.Segments++
		tables.Of(d.Snapshot).LeftOut.SegmentBytes += segment.Size
	}
	d.Snapshot.Segments = nil
}

func dropAllocations(d *snapshot.Dump) {
	tables.Of(d.Snapshot).Allocations, tables.Of(d.Snapshot).Paths = nil, nil // and so nobody is named
	tables.Of(d.Snapshot).LeftOut.Allocations = d.Snapshot.Live.Add(d.Snapshot.Host())
}

// keepSites keeps the call sites with the most live bytes and, among those that the ledger has
// dropped, the ones with the most bytes ever. The dump must have no allocations left, because they
// refer to call sites.
func keepSites(d *snapshot.Dump, sites, retired int) {
	s := d.Snapshot
	slices.SortFunc(tables.Of(s).Sites, func(x, y tables.SiteEntry) int {
		return cmp.Or(
			cmp.Compare(y.Tensor.Tally(y.Live).Bytes, x.Tensor.Tally(x.Live).Bytes),
			cmp.Compare(y.Tensor.Tally(y.Total).Bytes, x.Tensor.Tally(x.Total).Bytes))
	})
	slices.SortFunc(tables.Of(s).Retired, func(x, y tables.RetiredEntry) int { return cmp.Compare(y.Total.Bytes, x.Total.Bytes) })
	sum := &tables.Of(d.Snapshot).LeftOut.Unsited
	for _, e := range tables.Of(s).Sites[sites:] {
		if e.Tensor.Memory.OnHost() {
			continue
		}
		sum.Live = sum.Live.Add(e.Tensor.Tally(e.Live))
		sum.Peak = sum.Peak.Add(e.Tensor.Tally(e.Peak))
		sum.Total = sum.Total.Add(e.Tensor.Tally(e.Total))
	}
	for _, e := range tables.Of(s).Retired[retired:] {
		if !e.Memory.OnHost() {
			sum.Total = sum.Total.Add(e.Total)
		}
	}
	tables.Of(d.Snapshot).LeftOut.Sites += int64(len(tables.Of(s).Sites) - sites + len(tables.Of(s).Retired) - retired)
	tables.Of(s).Sites, tables.Of(s).Retired = tables.Of(s).Sites[:sites], tables.Of(s).Retired[:retired]
}

// Size guesses the size of the dump's JSON form from a sample of each table.
func Size(d *snapshot.Dump) alloc.Bytes {
	sample := &jsonstream.Sample{Of: 64}
	if err := d.WriteJSON(sample); err != nil {
		return 0 // who writes it finds the error
	}
	return alloc.Bytes(sample.Size)
}

// Light adds to the dump's LeftOut what its light snapshot leaves out.
func Light(s *snapshot.Snapshot) {
	l := &tables.Of(s).LeftOut
	l.Allocations = s.Live.Add(s.Host())
	if s.Cache != nil {
		l.Segments, l.SegmentBytes = s.Cache.Reserved.Count.Current, s.Cache.Reserved.Bytes.Current
	}
}
