package snapshot

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// StackStats is the memory that one call stack allocated in one section, with one kind and type of memory, in
// buffers of any shape.
type StackStats struct {
	Kind   mem.Kind     `json:"kind"`
	Memory alloc.Memory `json:"memory"`
	Place
	mem.Tally
}

// LargestStacks returns the call stacks with the most bytes by one of the Totals, at most that many of them: by bytes, then by
// buffers, then by frames, innermost first. others is the number of those left out, and rest their sum. Call stacks that
// have no buffers by it do not count.
//
// It takes some 30 bytes for each call site, whereas CallSites makes the frames of each.
func (s *Snapshot) LargestStacks(of func(Totals) mem.Tally, most int) (largest []StackStats, others int, rest mem.Tally) {
	t := tables.Of(&s.Tables)
	type sum struct {
		site int32 // the first one, by its index in the tables
		mem.Tally
	}
	var sums []sum
	for i := range int32(len(t.Sites) + len(t.Retired)) {
		if tally := of(s.callSite(i).Totals); !tally.IsZero() {
			sums = append(sums, sum{i, tally})
		}
	}
	compare := func(a, b sum, stacks func(a, b tables.StackID) int) int {
		x, y, inX, inY := s.callSite(a.site), s.callSite(b.site), s.placeOf(a.site), s.placeOf(b.site)
		return cmp.Or(stacks(inX.Stack, inY.Stack), cmp.Compare(t.Sections[inX.Section], t.Sections[inY.Section]), cmp.Compare(x.Kind, y.Kind), cmp.Compare(x.Memory, y.Memory))
	}
	slices.SortFunc(sums, func(a, b sum) int { return compare(a, b, cmp.Compare[tables.StackID]) })
	merged := sums[:0]
	for _, x := range sums {
		if n := len(merged); n > 0 && compare(merged[n-1], x, cmp.Compare[tables.StackID]) == 0 {
			merged[n-1].Tally = merged[n-1].Add(x.Tally)
		} else {
			merged = append(merged, x)
		}
	}
	order := stackOrder(t.Stacks)
	slices.SortFunc(merged, func(a, b sum) int {
		if c := cmp.Or(cmp.Compare(b.Bytes, a.Bytes), cmp.Compare(b.Count, a.Count)); c != 0 {
			return c // the rest takes longer
		}
		return compare(a, b, order)
	})
	most = min(most, len(merged))
	for _, x := range merged[most:] {
		rest = rest.Add(x.Tally)
	}
	for _, x := range merged[:most] {
		its := s.callSite(x.site)
		largest = append(largest, StackStats{its.Kind, its.Memory, s.place(s.placeOf(x.site), s.streamOf(x.site)), x.Tally})
	}
	return largest, len(merged) - most, rest
}
