package snapshot

import (
	"cmp"
	"encoding/json"
	"fmt"
	"iter"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Delta is a signed difference of two live tables, group by group. The zero Delta is empty. A
// Delta does not change; any goroutine may read it.
type Delta struct {
	changes []Change
}

// Group is what buffers have in common that a report counts together.
type Group struct {
	Kind   mem.Kind     `json:"kind"`
	DType  alloc.DType  `json:"dtype,omitempty"` // not valid where it is not known
	Shape  alloc.Shape  `json:"shape"`           // shared: do not write
	Memory alloc.Memory `json:"memory,omitzero"`
}

// Change is the difference in one group.
type Change struct {
	Group
	mem.Tally
	// Sites are the lines of code whose buffers were allocated or freed: first those in the
	// direction of the whole change, by size. Their tallies add up to the change's.
	Sites []mem.SiteTally `json:"sites"`
}

// Changes iterates over the groups that changed: increases first, then decreases, each by
// size, then by shape, dtype and kind. Equal programs give equal texts.
func (d Delta) Changes() iter.Seq[Change] { return slices.Values(d.changes) }

// Len returns the number of groups that changed.
func (d Delta) Len() int { return len(d.changes) }

// IsZero reports whether nothing changed.
func (d Delta) IsZero() bool { return len(d.changes) == 0 }

// Sum returns the change of all groups in device memory together.
func (d Delta) Sum() mem.Tally {
	var sum mem.Tally
	for _, c := range d.changes {
		if !c.Memory.OnHost() {
			sum = sum.Add(c.Tally)
		}
	}
	return sum
}

// Add returns the sum of both differences.
func (d Delta) Add(e Delta) Delta {
	b := NewDeltaBuilder(len(d.changes) + len(e.changes))
	for _, changes := range [][]Change{d.changes, e.changes} {
		for _, c := range changes {
			for _, s := range c.Sites {
				b.Add(&tables.Tensor{Kind: c.Kind, DType: c.DType, Memory: c.Memory, Shape: c.Shape}, s.Frame, s.Tally)
			}
		}
	}
	return b.Delta()
}

// DeltaBuilder sums up changes by group and, within a group, by line of code.
type DeltaBuilder struct {
	changes []Change
	index   map[string]int // by group identity
	key     []byte
	sites   []mem.SiteTally    // room for the first one of each change
	lines   map[changeLine]int // the index of a line of code in a change that has many
}

// changeLine is a line of code in one of the changes.
type changeLine struct {
	change int
	mem.Frame
}

// fewLines are found faster one by one than in a map.
const fewLines = 8

// NewDeltaBuilder returns a builder with room for n changes.
func NewDeltaBuilder(n int) DeltaBuilder {
	return DeltaBuilder{
		changes: make([]Change, 0, n),
		index:   make(map[string]int, n),
		sites:   make([]mem.SiteTally, n),
	}
}

// Add adds t to the change of the group of x, at the line site. It keeps the shape of x, and
// ignores x.Each. Memory of an unknown kind counts as device memory, so that a file of an
// earlier version can be compared.
func (b *DeltaBuilder) Add(x *tables.Tensor, site mem.Frame, t mem.Tally) {
	b.key = x.AppendKeyIn(b.key[:0], cmp.Or(x.Memory, alloc.DeviceMemory))
	i, ok := b.index[string(b.key)]
	if !ok {
		i = len(b.changes)
		b.index[string(b.key)] = i
		b.changes = append(b.changes, Change{Group: Group{x.Kind, x.DType, x.Shape, x.Memory}})
		if i < len(b.sites) {
			b.changes[i].Sites = b.sites[i : i : i+1]
		}
	}
	c := &b.changes[i]
	c.Tally = c.Tally.Add(t)
	if at := b.line(i, site); at >= 0 {
		c.Sites[at].Tally = c.Sites[at].Tally.Add(t)
		return
	}
	c.Sites = append(c.Sites, mem.SiteTally{Frame: site, Tally: t})
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

// line returns the index of a line of code in a change, or -1.
func (b *DeltaBuilder) line(change int, site mem.Frame) int {
	sites := b.changes[change].Sites
	if len(sites) <= fewLines {
		return slices.IndexFunc(sites, func(s mem.SiteTally) bool { return s.Frame == site })
	}
	if at, ok := b.lines[changeLine{change, site}]; ok {
		return at
	}
	return -1
}

// Delta returns the sums, in order. Groups and lines whose sum is zero are left out.
func (b *DeltaBuilder) Delta() Delta {
	changes := slices.DeleteFunc(b.changes, func(c Change) bool { return c.Tally.IsZero() })
	if len(changes) == 0 {
		return Delta{}
	}
	for i := range changes {
		c := &changes[i]
		c.Sites = slices.DeleteFunc(c.Sites, func(s mem.SiteTally) bool { return s.Tally.IsZero() })
		slices.SortFunc(c.Sites, func(x, y mem.SiteTally) int {
			return cmp.Or(compareTally(c.Count < 0, x.Tally, y.Tally), x.Frame.Compare(y.Frame))
		})
	}
	slices.SortFunc(changes, func(x, y Change) int {
		return cmp.Or(
			compareTally(false, x.Tally, y.Tally),
			x.Group.compare(y.Group), cmp.Compare(x.Memory, y.Memory))
	})
	return Delta{changes: changes}
}

// compareTally orders growth before shrinkage (or, if reversed, after), and in
// each the larger change first.
func compareTally(reversed bool, x, y mem.Tally) int {
	if grew, grewY := x.Count > 0, y.Count > 0; grew != grewY {
		if grew != reversed {
			return -1
		}
		return 1
	}
	if x.Count > 0 {
		return cmp.Or(cmp.Compare(y.Bytes, x.Bytes), cmp.Compare(y.Count, x.Count))
	}
	return cmp.Or(cmp.Compare(x.Bytes, y.Bytes), cmp.Compare(x.Count, y.Count))
}

// compare orders groups by shape, dtype and kind.
func (g Group) compare(h Group) int {
	return cmp.Or(slices.Compare(g.Shape, h.Shape), cmp.Compare(g.DType, h.DType), g.Kind.Compare(h.Kind))
}

type deltaJSON struct {
	Schema  string   `json:"schema"`
	Version int      `json:"version"`
	Changes []Change `json:"changes"`
}

// MarshalJSON writes the changes in their order, with the schema and its version.
func (d Delta) MarshalJSON() ([]byte, error) {
	changes := d.changes
	if changes == nil {
		changes = []Change{}
	}
	return json.Marshal(deltaJSON{jsonstream.DeltaSchema, jsonstream.DeltaVersion, changes})
}

// UnmarshalJSON reads what MarshalJSON wrote. A change whose lines of code do
// not add up to it is an error.
func (d *Delta) UnmarshalJSON(text []byte) error {
	var in deltaJSON
	if err := json.Unmarshal(text, &in); err != nil {
		return err
	}
	if err := jsonstream.CheckSchema(in.Schema, in.Version, jsonstream.DeltaSchema, jsonstream.DeltaVersion); err != nil {
		return fmt.Errorf("read delta: %w", err)
	}
	for i, c := range in.Changes {
		if _, err := tables.ReadTensor(c.Shape, c.DType, c.Kind, c.Memory, 0); err != nil {
			return fmt.Errorf("read delta: change %d: %w", i, err)
		}
		var sum mem.Tally
		for _, site := range c.Sites {
			sum = sum.Add(site.Tally)
		}
		if sum != c.Tally {
			return fmt.Errorf("read delta: change %d is %v, but its sites add up to %v", i, c.Tally, sum)
		}
	}
	*d = Delta{changes: in.Changes}
	if len(in.Changes) == 0 {
		d.changes = nil
	}
	return nil
}
