package sections

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Profile is the sections that have ended, added up by path, and sorted as a tree: a section's
// parts follow it. It is a copy: later sections do not change it.
type Profile []Row

// SetEstimates sets the Estimate of the rows whose path is a key of e. Other rows keep theirs. The
// error names an Estimate whose Of is none of its words.
func (p Profile) SetEstimates(e map[string]Estimate) error {
	for path, expected := range e {
		if !slices.Contains([]string{"", byAllocated, byKept, byPeak, byOwnPeak, byLive}, expected.Of) {
			return fmt.Errorf("estimate for %q: of %q: want one of %s, %s, %s, %s, %s", path, expected.Of, byAllocated, byKept, byPeak, byOwnPeak, byLive)
		}
	}
	for i := range p {
		r := &p[i]
		found, ok := e[r.Path]
		if !ok {
			continue
		}
		found.Of = cmp.Or(found.Of, byTree)
		r.Estimate = &found
	}
	return nil
}

// Sorted returns a copy, ordered by a column of its table: larger numbers first, texts alphabetically, equal
// ones as they were. The columns are "path", "calls", "time", "gpu-time", "cpu-time", "rss", "heap", "allocated",
// "kept", "estimate", "difference", "peak", "own-peak", "live", "flops", "params", "inputs" and "line"; "tree" keeps
// the order. The error lists them.
func (p Profile) Sorted(by string) (Profile, error) {
	if err := checkColumn(by); err != nil {
		return nil, err
	}
	rows := slices.Clone(p)
	columns := columns()
	if i := slices.IndexFunc(columns, func(c column) bool { return c.name == by }); i >= 0 {
		slices.SortStableFunc(rows, func(x, y Row) int { return columns[i].compare(&x, &y) })
	}
	return rows, nil
}

// Row is all ended sections of one path. Calls, times, RSS, Heap, Allocated and Freed
// are sums over the calls. Peak and OwnPeak are maxima. Live is the present level. Sums and
// levels include the sections' parts.
type Row struct {
	Measured
	Calls int64        // 0 if only parts of it are known
	RSS   *alloc.Bytes // resident set, consumed; nil if it is not known
	Heap  *alloc.Bytes // Go's heap, consumed; nil if it is not known
	Peak  alloc.Bytes  // the highest of Data.GPU.Peak
	Live  mem.Tally    // allocated there and alive now

	Estimate *Estimate
}

// Kept returns what an average call allocated minus what it freed, in bytes.
func (r *Row) Kept() alloc.Bytes {
	if r.Calls == 0 {
		return 0
	}
	return (r.Allocated.Bytes - r.Freed.Bytes) / alloc.Bytes(r.Calls)
}

// Difference returns the measured amount minus the estimated one; 0 without an Estimate.
func (r *Row) Difference() alloc.Bytes {
	if r.Estimate == nil {
		return 0
	}
	return r.measured(r.Estimate.Of) - r.Estimate.Bytes
}

// measured is the amount of a call that a column shows.
func (r *Row) measured(of string) alloc.Bytes {
	switch of {
	case byAllocated:
		return r.Allocated.Bytes / alloc.Bytes(max(1, r.Calls))
	case byKept:
		return r.Kept()
	case byPeak:
		return r.Peak
	case byOwnPeak:
		return r.OwnPeak
	case byLive:
		return r.Live.Bytes
	}
	return 0
}

// Estimate is what is expected of one call of a section, and the work that the call does; what is not known of that is
// zero. Of a layer in a report of
// package estimate it is
//
//	sections.Estimate{
//		Inputs: []alloc.Shape{row.Input}, FLOPs: row.FLOPs, Params: row.Params,
//		Of: "allocated", Bytes: row.Allocated,
//	}
type Estimate struct {
	Inputs []alloc.Shape `json:"inputs,omitempty"`
	FLOPs  int64         `json:"flops,omitempty"` // floating-point operations
	Params int64         `json:"params,omitempty"`
	// Of says which measured amount it is an estimate of: "allocated", "kept", "peak", "own-peak"
	// or "live".
	Of    string      `json:"of"`
	Bytes alloc.Bytes `json:"bytes"`
}
