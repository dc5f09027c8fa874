package snapshot

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/jsonstream"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/kinds"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Delta is a signed difference of two live tables: the groups that changed. Increases come first,
// then decreases; both are sorted by size, then by shape, dtype and kind. Equal programs give equal
// texts. A Delta is shared: do not write to it.
type Delta []Change

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
	// CallSites are the lines of code whose buffers were allocated or freed. Lines that changed in
	// the same direction as the whole come first, sorted by size. Their tallies add up to the
	// change's.
	CallSites []mem.CallSiteTally `json:"call_sites"`
}

// Sum returns the change of all groups in device memory together.
func (d Delta) Sum() mem.Tally {
	var sum mem.Tally
	for _, c := range d {
		if !c.Memory.OnHost() {
			sum = sum.Add(c.Tally)
		}
	}
	return sum
}

// compareTally orders growth before shrinkage, or after it if reversed; within each, the larger
// change comes first.
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
	return cmp.Or(slices.Compare(g.Shape, h.Shape), cmp.Compare(g.DType, h.DType), kinds.Compare(g.Kind, h.Kind))
}

type deltaJSON struct {
	Schema  string   `json:"schema"`
	Version int      `json:"version"`
	Changes []Change `json:"changes"`
}

// MarshalJSON writes the changes in their order, with the schema and its version.
func (d Delta) MarshalJSON() ([]byte, error) {
	if d == nil {
		d = Delta{}
	}
	return json.Marshal(deltaJSON{jsonstream.DeltaSchema, jsonstream.DeltaVersion, d})
}

// UnmarshalJSON reads what MarshalJSON wrote. A change whose lines of code do
// not add up to it is an error.
func (d *Delta) UnmarshalJSON(text []byte) error {
	var in deltaJSON
	if err := jsonstream.Unmarshal(text, &in); err != nil {
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
		for _, site := range c.CallSites {
			sum = sum.Add(site.Tally)
		}
		if sum != c.Tally {
			return fmt.Errorf("read delta: change %d is %v, but its call sites add up to %v", i, c.Tally, sum)
		}
	}
	*d = nil
	if len(in.Changes) > 0 {
		*d = in.Changes
	}
	return nil
}
