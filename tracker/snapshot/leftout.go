package snapshot

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// LeftOut is the detail that a dump omits because it would have been larger than
// tracker.Config.MaxDumpBytes. Its fields are in the order in which detail is omitted. The
// levels, and the sums of what is omitted, are always kept.
type LeftOut struct {
	Events       int64       `json:"events,omitempty"` // the oldest of the history
	Marks        int64       `json:"marks,omitempty"`  // the oldest
	Segments     int64       `json:"segments,omitempty"`
	SegmentBytes alloc.Bytes `json:"segment_bytes,omitempty"`
	// Allocations are the live buffers that are not listed one by one. Sites and groups
	// count them.
	Allocations mem.Tally `json:"allocations,omitzero"`
	// Sites is the number of those that had least memory live, and Unsited what they
	// add up to: the snapshot's levels count it, its sites and groups do not.
	Sites   int64   `json:"sites,omitempty"`
	Unsited Unsited `json:"unsited,omitzero"`
}

// Unsited is the sum of call sites of which nothing else is known, except those in host memory.
type Unsited struct {
	Live  mem.Tally `json:"live"`  // now
	Peak  mem.Tally `json:"peak"`  // at the moment of most bytes of all
	Total mem.Tally `json:"total"` // ever
}

// Light adds what a light snapshot omits.
func (l *LeftOut) Light(s *Snapshot) {
	l.Allocations = s.Live.Add(s.Memory.Host())
	if s.Cache != nil {
		l.Segments, l.SegmentBytes = s.Cache.Reserved.Count.Current, s.Cache.Reserved.Bytes.Current
	}
}
