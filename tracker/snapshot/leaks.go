package snapshot

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Leak is what one call stack allocated of one kind, shape and dtype in one section and did
// not free.
type Leak struct {
	Kind      mem.Kind     `json:"kind"`
	DType     alloc.DType  `json:"dtype"`
	Shape     alloc.Shape  `json:"shape"` // shared: do not write
	Memory    alloc.Memory `json:"memory,omitzero"`
	Section   string       `json:"section"` // in which it was allocated; "" is outside of all
	Stack     mem.Stack    `json:"stack"`   // shared: do not write
	Site      mem.Frame    `json:"site"`    // the line of the user's code in Stack
	mem.Tally              // what is live
	Lost      int64        `json:"lost_count"` // how many of them the program can no longer free; see tracker.LostPolicy
}

// String returns the leak and its call stack, as goleak prints a goroutine.
func (l Leak) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%v: %d * %v %v %v", l.Tally, l.Count, l.Kind, l.Shape, l.DType)
	if l.Section != "" {
		fmt.Fprintf(&b, " in section %q", l.Section)
	}
	if l.Lost > 0 {
		fmt.Fprintf(&b, ", %d of them definitely lost: nothing refers to them any more", l.Lost)
	}
	b.WriteString(", allocated by\n")
	b.WriteString(l.Stack.String())
	return b.String()
}

// LeakOption selects what Leaks, Suspects and VerifyNoLeaks look at.
type LeakOption func(*leakFilter)

type leakFilter struct {
	from   uint64 // sequence number
	lost   bool
	ignore []func(Allocation) bool
}

func newLeakFilter(opts []LeakOption) (f leakFilter) {
	for _, opt := range opts {
		opt(&f)
	}
	return f
}

// all reports whether the filter leaves out nothing.
func (f *leakFilter) all() bool { return f.from == 0 && !f.lost && len(f.ignore) == 0 }

// Since leaves out what was allocated before base, a snapshot of the same tracker, which may
// be a light one. A nil base leaves out nothing.
func Since(base *Snapshot) LeakOption {
	return func(f *leakFilter) {
		if base != nil {
			f.from = max(f.from, base.Events)
		}
	}
}

// OnlyLost keeps only lost buffers, which the program can no longer free: see
// tracker.LostPolicy.
func OnlyLost() LeakOption { return func(f *leakFilter) { f.lost = true } }

// IgnoreKinds leaves out buffers of these kinds.
func IgnoreKinds(kinds ...mem.Kind) LeakOption {
	return ignore(func(a Allocation) bool { return slices.Contains(kinds, a.Kind) })
}

// IgnoreFunction leaves out what was allocated by, or anywhere below, a
// function: "example.com/model.Load", "example.com/model.(*Net).Forward".
func IgnoreFunction(name string) LeakOption {
	return ignore(func(a Allocation) bool {
		return slices.ContainsFunc(a.Stack, func(f mem.Frame) bool { return f.Function == name })
	})
}

// IgnoreSection leaves out what was allocated in the section with that path, or in a part of
// it.
func IgnoreSection(path string) LeakOption {
	return ignore(func(a Allocation) bool {
		rest, ok := strings.CutPrefix(a.Section, path)
		return ok && (rest == "" || rest[0] == '/')
	})
}

func ignore(match func(Allocation) bool) LeakOption {
	return func(f *leakFilter) { f.ignore = append(f.ignore, match) }
}

func (f *leakFilter) keeps(a Allocation) bool {
	return a.Seq >= f.from && (a.Lost || !f.lost) &&
		!slices.ContainsFunc(f.ignore, func(match func(Allocation) bool) bool { return match(a) })
}

// Leaks returns the live buffers by call stack, kind, shape, dtype and section: lost buffers
// first, then by size. A light snapshot has none.
func (s *Snapshot) Leaks(opts ...LeakOption) []Leak {
	filter := newLeakFilter(opts)
	index := make(map[int32]int) // by site
	var leaks []Leak
	for _, e := range s.tables.Allocations {
		a := s.allocation(e)
		if !filter.keeps(a) {
			continue
		}
		i, ok := index[e.Site]
		if !ok {
			i = len(leaks)
			index[e.Site] = i
			leaks = append(leaks, Leak{
				Kind: a.Kind, DType: a.DType, Shape: a.Shape, Memory: a.Memory, Section: a.Section, Stack: a.Stack, Site: a.Site,
			})
		}
		leaks[i].Tally = leaks[i].Tally.Add(mem.Tally{Count: 1, Bytes: a.Requested})
		if a.Lost {
			leaks[i].Lost++
		}
	}
	slices.SortStableFunc(leaks, func(x, y Leak) int {
		return cmp.Or(cmp.Compare(min(y.Lost, 1), min(x.Lost, 1)), cmp.Compare(y.Bytes, x.Bytes))
	})
	return leaks
}
