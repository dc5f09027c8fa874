package tables

import (
	"cmp"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Sums adds up changes by group and, within a group, by call site.
type Sums struct {
	Groups []GroupSum
	index  map[string]int // by group identity
	key    []byte
	sites  []mem.CallSiteTally // room for the first one of each change
	lines  map[changeLine]int  // the index of a line of code in a change that has many
}

// GroupSum is the sum of one group.
type GroupSum struct {
	Tensor Tensor // without Each
	mem.Tally
	Sites []mem.CallSiteTally
}

// changeLine is a line of code in one of the changes.
type changeLine struct {
	change int
	mem.Frame
}

// fewLines are found faster one by one than in a map.
const fewLines = 8

// NewSums returns Sums with room for n changes.
func NewSums(n int) Sums {
	return Sums{
		Groups: make([]GroupSum, 0, n),
		index:  make(map[string]int, n),
		sites:  make([]mem.CallSiteTally, n),
	}
}

// Add adds t to the change of x's group at the call site. It keeps the shape of x, and ignores
// x.Each. Memory of an unknown type counts as device memory, so that a file of an earlier version
// can be compared.
func (b *Sums) Add(x *Tensor, site mem.Frame, t mem.Tally) {
	b.key = x.AppendKeyIn(b.key[:0], cmp.Or(x.Memory, alloc.DeviceMemory))
	i, ok := b.index[string(b.key)]
	if !ok {
		i = len(b.Groups)
		b.index[string(b.key)] = i
		b.Groups = append(b.Groups, GroupSum{Tensor: *x})
		if i < len(b.sites) {
			b.Groups[i].Sites = b.sites[i : i : i+1]
		}
	}
	c := &b.Groups[i]
	c.Tally = c.Tally.Add(t)
	if at := b.line(i, site); at >= 0 {
		c.Sites[at].Tally = c.Sites[at].Tally.Add(t)
		return
	}
	c.Sites = append(c.Sites, mem.CallSiteTally{Frame: site, Tally: t})
	switch n := len(c.Sites); {
	case n == fewLines+1:
		if b.lines == nil {
			b.lines = make(map[changeLine]int)
		}
		for at, s := range c.Sites {
			b.lines[changeLine{i, s.Frame}] = at
		}
	case n > fewLines:
		b.lines[changeLine{i, site}] = n - 1
	}
}

// line returns the index of a call site within a change; -1 if it has none.
func (b *Sums) line(change int, site mem.Frame) int {
	sites := b.Groups[change].Sites
	if len(sites) <= fewLines {
		return slices.IndexFunc(sites, func(s mem.CallSiteTally) bool { return s.Frame == site })
	}
	if at, ok := b.lines[changeLine{change, site}]; ok {
		return at
	}
	return -1
}
