package snapshot

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// DeltaBuilder adds up changes by group and call site, and returns the sum as a Delta: what changed over several marks, for
// example. The zero value is ready to use. It is for one goroutine at a time.
type DeltaBuilder struct {
	changes []Change
	index   map[string]int // by group
	key     []byte
	first   []mem.CallSiteTally // room for the first call site of each change
	sites   map[changedSite]int // the index of a call site in a change that has more than fewSites
}

// changedSite is a call site of the change with that index.
type changedSite struct {
	change int
	mem.Frame
}

// fewSites are found faster one by one than in a map.
const fewSites = 8

// Grow makes room for n more groups.
func (b *DeltaBuilder) Grow(n int) {
	if b.index == nil {
		b.index = make(map[string]int, n)
	}
	b.changes = slices.Grow(b.changes, n)
	b.first = make([]mem.CallSiteTally, n)
}

// Add adds t to the change of the group at the call site. It keeps the group's shape. Memory of an unknown type counts as
// device memory, so that a file of an earlier version can be compared.
func (b *DeltaBuilder) Add(g Group, site mem.Frame, t mem.Tally) {
	i := b.find(&g)
	c := &b.changes[i]
	c.Tally = c.Tally.Add(t)
	if at := b.site(i, &site); at >= 0 {
		c.CallSites[at].Tally = c.CallSites[at].Tally.Add(t)
		return
	}
	c.CallSites = append(c.CallSites, mem.CallSiteTally{Frame: site, Tally: t})
	switch n := len(c.CallSites); {
	case n == fewSites+1:
		if b.sites == nil {
			b.sites = make(map[changedSite]int)
		}
		for at, s := range c.CallSites {
			b.sites[changedSite{i, s.Frame}] = at
		}
	case n > fewSites:
		b.sites[changedSite{i, site}] = n - 1
	}
}

// find returns the index of the group's change, which it adds if there is none.
func (b *DeltaBuilder) find(g *Group) int {
	x := tables.Tensor{Kind: g.Kind, DType: g.DType, Shape: g.Shape, Memory: cmp.Or(g.Memory, alloc.DeviceMemory)}
	b.key = x.AppendKey(b.key[:0])
	i, ok := b.index[string(b.key)]
	if ok {
		return i
	}
	if b.index == nil {
		b.index = make(map[string]int)
	}
	i = len(b.changes)
	b.index[string(b.key)] = i
	b.changes = append(b.changes, Change{Group: *g})
	if len(b.first) > 0 {
		b.changes[i].CallSites, b.first = b.first[:0:1], b.first[1:]
	}
	return i
}

// site returns the index of a call site within a change; -1 if it has none.
func (b *DeltaBuilder) site(change int, site *mem.Frame) int {
	sites := b.changes[change].CallSites
	if len(sites) <= fewSites {
		return slices.IndexFunc(sites, func(s mem.CallSiteTally) bool { return s.Frame == *site })
	}
	if at, ok := b.sites[changedSite{change, *site}]; ok {
		return at
	}
	return -1
}

// String says how many groups were added.
func (b *DeltaBuilder) String() string { return fmt.Sprintf("changes of %d groups", len(b.changes)) }

// Delta returns the sum, without the groups and call sites whose sum is zero. The builder is empty afterwards.
func (b *DeltaBuilder) Delta() Delta {
	sums := slices.DeleteFunc(b.changes, func(c Change) bool { return c.Tally.IsZero() })
	*b = DeltaBuilder{}
	if len(sums) == 0 {
		return nil
	}
	changes := make(Delta, len(sums)) // lines of one group share a change: room for all of them would be kept
	copy(changes, sums)
	for i := range changes {
		c := &changes[i]
		c.CallSites = slices.DeleteFunc(c.CallSites, func(s mem.CallSiteTally) bool { return s.Tally.IsZero() })
		slices.SortFunc(c.CallSites, func(x, y mem.CallSiteTally) int {
			return cmp.Or(compareTally(c.Count < 0, x.Tally, y.Tally), tables.CompareFrames(x.Frame, y.Frame))
		})
	}
	slices.SortFunc(changes, func(x, y Change) int {
		return cmp.Or(
			compareTally(false, x.Tally, y.Tally),
			x.Group.compare(y.Group), cmp.Compare(x.Memory, y.Memory))
	})
	return changes
}
