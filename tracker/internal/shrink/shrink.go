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
	s := d.Snapshot
	switch {
	case d.History.Len() > manyEvents || len(d.Marks) > manyMarks:
		keepEvents(d, manyEvents, manyMarks)
	case len(s.Segments) > 0:
		dropSegments(d)
	case len(s.Tables.Allocations) > 0:
		dropAllocations(d)
	case d.History.Len() > fewEvents || len(d.Marks) > 0:
		keepEvents(d, fewEvents, 0)
	case len(s.Tables.Sites)+len(s.Tables.Retired) > 0:
		keepSites(d, len(s.Tables.Sites)/2, len(s.Tables.Retired)/2)
	case d.History.Len() > 0:
		keepEvents(d, 0, 0)
	default:
		return false
	}
	return true
}

// keepEvents keeps at most this many of the latest events and marks.
func keepEvents(d *snapshot.Dump, events, marks int) {
	if drop := d.History.Len() - events; drop > 0 {
		d.History.Tables.Events = d.History.Tables.Events[drop:]
		d.History.Tables.First += uint64(drop)
		d.Snapshot.Tables.LeftOut.Events += int64(drop)
	}
	if drop := len(d.Marks) - marks; drop > 0 {
		d.Marks = d.Marks[drop:]
		d.Snapshot.Tables.LeftOut.Marks += int64(drop)
	}
}

func dropSegments(d *snapshot.Dump) {
	for _, segment := range d.Snapshot.Segments {
		d.Snapshot.Tables.LeftOut.Segments++
		d.Snapshot.Tables.LeftOut.SegmentBytes += segment.Size
	}
	d.Snapshot.Segments = nil
}

func dropAllocations(d *snapshot.Dump) {
	d.Snapshot.Tables.Allocations, d.Snapshot.Tables.Paths = nil, nil // and so nobody is named
	d.Snapshot.Tables.LeftOut.Allocations = d.Snapshot.Live.Add(d.Snapshot.Memory.Host())
}

// keepSites keeps the call sites with the most live bytes and, among those that the ledger has
// dropped, the ones with the most bytes ever. The dump must have no allocations left, because they
// refer to call sites.
func keepSites(d *snapshot.Dump, sites, retired int) {
	s := d.Snapshot
	slices.SortFunc(s.Tables.Sites, func(x, y tables.SiteEntry) int {
		return cmp.Or(
			cmp.Compare(y.Tensor.Tally(y.Live).Bytes, x.Tensor.Tally(x.Live).Bytes),
			cmp.Compare(y.Tensor.Tally(y.Total).Bytes, x.Tensor.Tally(x.Total).Bytes))
	})
	slices.SortFunc(s.Tables.Retired, func(x, y tables.RetiredEntry) int { return cmp.Compare(y.Total.Bytes, x.Total.Bytes) })
	sum := &d.Snapshot.Tables.LeftOut.Unsited
	for _, e := range s.Tables.Sites[sites:] {
		if e.Tensor.Memory.OnHost() {
			continue
		}
		sum.Live = sum.Live.Add(e.Tensor.Tally(e.Live))
		sum.Peak = sum.Peak.Add(e.Tensor.Tally(e.Peak))
		sum.Total = sum.Total.Add(e.Tensor.Tally(e.Total))
	}
	for _, e := range s.Tables.Retired[retired:] {
		if !e.Memory.OnHost() {
			sum.Total = sum.Total.Add(e.Total)
		}
	}
	d.Snapshot.Tables.LeftOut.Sites += int64(len(s.Tables.Sites) - sites + len(s.Tables.Retired) - retired)
	s.Tables.Sites, s.Tables.Retired = s.Tables.Sites[:sites], s.Tables.Retired[:retired]
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
	l := &s.Tables.LeftOut
	l.Allocations = s.Live.Add(s.Memory.Host())
	if s.Cache != nil {
		l.Segments, l.SegmentBytes = s.Cache.Reserved.Count.Current, s.Cache.Reserved.Bytes.Current
	}
}
