package snapshot

import (
	"cmp"
	"io"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

const (
	// MinAllocationJSON is the least that an allocation takes in a dump, in bytes.
	MinAllocationJSON = 80

	// What a dump that has to be smaller keeps, first of much and then of little.
	manyEvents, manyMarks = 1 << 12, 16
	fewEvents             = 1 << 8
)

// Shrink leaves out more detail, that of least use first. It returns false when
// there is none left.
func (d *Record) Shrink() bool {
	s := d.Snapshot
	switch {
	case d.History.Len() > manyEvents || len(d.Marks) > manyMarks:
		d.keepEvents(manyEvents, manyMarks)
	case len(s.Segments) > 0:
		d.dropSegments()
	case len(s.Tables.Allocations) > 0:
		d.dropAllocations()
	case d.History.Len() > fewEvents || len(d.Marks) > 0:
		d.keepEvents(fewEvents, 0)
	case len(s.Tables.Sites)+len(s.Tables.Retired) > 0:
		d.keepSites(len(s.Tables.Sites)/2, len(s.Tables.Retired)/2)
	case d.History.Len() > 0:
		d.keepEvents(0, 0)
	default:
		return false
	}
	return true
}

// keepEvents keeps the latest events and marks, up to so many.
func (d *Record) keepEvents(events, marks int) {
	if drop := d.History.Len() - events; drop > 0 {
		d.History.Tables.Events = d.History.Tables.Events[drop:]
		d.History.Tables.First += uint64(drop)
		d.LeftOut.Events += int64(drop)
	}
	if drop := len(d.Marks) - marks; drop > 0 {
		d.Marks = d.Marks[drop:]
		d.LeftOut.Marks += int64(drop)
	}
}

func (d *Record) dropSegments() {
	for _, segment := range d.Snapshot.Segments {
		d.LeftOut.Segments++
		d.LeftOut.SegmentBytes += segment.Size
	}
	d.Snapshot.Segments = nil
}

func (d *Record) dropAllocations() {
	d.Snapshot.Tables.Allocations = nil
	d.LeftOut.Allocations = d.Snapshot.Live.Add(d.Snapshot.Memory.Host())
}

// keepSites keeps the sites with most live bytes and, of those that the ledger has
// dropped, the ones with most bytes ever. There must be no allocations, which refer to them.
func (d *Record) keepSites(sites, retired int) {
	s := d.Snapshot
	slices.SortFunc(s.Tables.Sites, func(x, y tables.SiteEntry) int {
		return cmp.Or(
			cmp.Compare(y.Tensor.Tally(y.Live).Bytes, x.Tensor.Tally(x.Live).Bytes),
			cmp.Compare(y.Tensor.Tally(y.Total).Bytes, x.Tensor.Tally(x.Total).Bytes))
	})
	slices.SortFunc(s.Tables.Retired, func(x, y tables.RetiredEntry) int { return cmp.Compare(y.Total.Bytes, x.Total.Bytes) })
	sum := &d.LeftOut.Unsited
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
	d.LeftOut.Sites += int64(len(s.Tables.Sites) - sites + len(s.Tables.Retired) - retired)
	s.Tables.Sites, s.Tables.Retired = s.Tables.Sites[:sites], s.Tables.Retired[:retired]
}

// Size guesses the size of the dump's JSON form from a sample of each table.
func (d *Record) Size() alloc.Bytes {
	out := jsonstream.NewWriter(io.Discard)
	out.Sample = 64
	d.writeTo(out)
	return alloc.Bytes(out.Size)
}
