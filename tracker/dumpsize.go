package tracker

import (
	"cmp"
	"io"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// LeftOut is the detail that a dump lacks because it would have been larger than
// Config.MaxDumpBytes. What comes first is left out first; the levels, and the sums
// of what is left out, always stay.
type LeftOut struct {
	Events       int64       `json:"events,omitempty"` // the oldest of the history
	Marks        int64       `json:"marks,omitempty"`  // the oldest
	Segments     int64       `json:"segments,omitempty"`
	SegmentBytes alloc.Bytes `json:"segment_bytes,omitempty"`
	// Allocations are the live buffers that are not told one by one. Sites and groups
	// count them.
	Allocations Tally `json:"allocations,omitzero"`
	// Sites is the number of those that had least memory live, and Unsited what they
	// add up to: the snapshot's levels count it, its sites and groups do not.
	Sites   int64   `json:"sites,omitempty"`
	Unsited Unsited `json:"unsited,omitzero"`
}

// Unsited is the sum of call sites of which no more is known.
type Unsited struct {
	Live  Tally `json:"live"`  // now
	Peak  Tally `json:"peak"`  // at the moment of most bytes of all
	Total Tally `json:"total"` // ever
}

// ofLight enters what a light snapshot lacks.
func (l *LeftOut) ofLight(s *Snapshot) {
	l.Allocations = s.Live
	if s.Cache != nil {
		l.Segments, l.SegmentBytes = s.Cache.Reserved.Count.Current, s.Cache.Reserved.Bytes.Current
	}
}

const (
	// leastAllocationJSON is the least that an allocation takes in a dump.
	leastAllocationJSON = 80

	// What a dump that has to be smaller keeps, first of much and then of little.
	manyEvents, manyMarks = 1 << 12, 16
	fewEvents             = 1 << 8
)

// shrink leaves out more detail, that of least use first. It returns false when
// there is none left.
func (d *Dump) shrink() bool {
	s := d.Snapshot
	switch {
	case d.History.Len() > manyEvents || len(d.Marks) > manyMarks:
		d.keepEvents(manyEvents, manyMarks)
	case len(s.Segments) > 0:
		d.dropSegments()
	case len(s.allocations) > 0:
		d.dropAllocations()
	case d.History.Len() > fewEvents || len(d.Marks) > 0:
		d.keepEvents(fewEvents, 0)
	case len(s.sites)+len(s.retired) > 0:
		d.keepSites(len(s.sites)/2, len(s.retired)/2)
	case d.History.Len() > 0:
		d.keepEvents(0, 0)
	default:
		return false
	}
	return true
}

// keepEvents keeps the latest events and marks, up to so many.
func (d *Dump) keepEvents(events, marks int) {
	if drop := d.History.Len() - events; drop > 0 {
		d.History.events = d.History.events[drop:]
		d.History.first += uint64(drop)
		d.LeftOut.Events += int64(drop)
	}
	if drop := len(d.Marks) - marks; drop > 0 {
		d.Marks = d.Marks[drop:]
		d.LeftOut.Marks += int64(drop)
	}
}

func (d *Dump) dropSegments() {
	for _, segment := range d.Snapshot.Segments {
		d.LeftOut.Segments++
		d.LeftOut.SegmentBytes += segment.Size
	}
	d.Snapshot.Segments = nil
}

func (d *Dump) dropAllocations() {
	d.Snapshot.allocations = nil
	d.LeftOut.Allocations = d.Snapshot.Live
}

// keepSites keeps the sites with most live bytes and, of those that the ledger has
// dropped, the ones with most bytes ever. There must be no allocations, which refer to them.
func (d *Dump) keepSites(sites, retired int) {
	s := d.Snapshot
	slices.SortFunc(s.sites, func(x, y siteEntry) int {
		return cmp.Or(
			cmp.Compare(y.group.tally(y.live).Bytes, x.group.tally(x.live).Bytes),
			cmp.Compare(y.group.tally(y.total).Bytes, x.group.tally(x.total).Bytes))
	})
	slices.SortFunc(s.retired, func(x, y retiredEntry) int { return cmp.Compare(y.total.Bytes, x.total.Bytes) })
	sum := &d.LeftOut.Unsited
	for _, e := range s.sites[sites:] {
		sum.Live = sum.Live.Add(e.group.tally(e.live))
		sum.Peak = sum.Peak.Add(e.group.tally(e.peak))
		sum.Total = sum.Total.Add(e.group.tally(e.total))
	}
	for _, e := range s.retired[retired:] {
		sum.Total = sum.Total.Add(e.total)
	}
	d.LeftOut.Sites += int64(len(s.sites) - sites + len(s.retired) - retired)
	s.sites, s.retired = s.sites[:sites], s.retired[:retired]
}

// size guesses the size of the dump's JSON form from a sample of each table.
func (d *Dump) size() alloc.Bytes {
	out := newTableWriter(io.Discard)
	out.sample = 64
	d.writeTo(out)
	return alloc.Bytes(out.size)
}
