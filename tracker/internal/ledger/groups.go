package ledger

import (
	"hash/maphash"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/internal/addrtable"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Group is one line of a report: the live buffers of one kind, shape, dtype and type of memory. Its
// identity never changes, so that events may refer to it after the last buffer is gone.
type Group struct {
	tables.Tensor
	number  slab.ID // in groups, while buckets point here
	hash    uint64  // of the tensor
	buckets int     // buckets that point here
}

// groups finds the group of a tensor.
type groups struct {
	slab.Slab[*Group]
	table addrtable.Table // by Group.hash
	seed  maphash.Seed    // so that no program's shapes have one hash
	last  mem.Kind        // a copy of the kind of the group made last
}

func newGroups() groups { return groups{table: addrtable.New(), seed: maphash.MakeSeed()} }

func (gs *groups) hash(x *tables.Tensor) uint64 {
	var scratch [64]byte
	return maphash.Bytes(gs.seed, x.AppendKey(scratch[:0]))
}

// find returns the group of a measured tensor with that hash, or nil.
func (gs *groups) find(hash uint64, x *tables.Tensor) *Group {
	search := gs.table.Look(hash)
	for {
		id := search.Next()
		if id == 0 {
			return nil
		}
		if g := *gs.At(id); g.hash == hash && g.Equal(x) {
			return g
		}
	}
}

// add enters a group, which find does not find.
func (gs *groups) add(g *Group) {
	id, at := gs.Get()
	*at, g.number = g, id
	gs.table.Add(g.hash, id)
}

// remove takes a group out. Events and Buffers may still refer to it.
func (gs *groups) remove(g *Group) {
	search := gs.table.Look(g.hash)
	for search.Next() != g.number {
	}
	gs.table.Remove(&search)
	gs.Put(g.number)
}

// newGroup returns the group of a tensor, and an origin for its first bucket. All of it is one object of the Go heap.
func newGroup[Owner any](gs *groups, hash uint64, x *tables.Tensor) (*Group, *Origin[Owner]) {
	made := new(struct {
		Group
		origin Origin[Owner]
		dims   [4]int
	})
	if gs.last != x.Kind { // most programs use a few kinds again and again
		gs.last = mem.Kind(strings.Clone(string(x.Kind)))
	}
	made.hash = hash
	made.Kind, made.DType, made.Memory, made.Each = gs.last, x.DType, x.Memory, x.Each
	if n := len(x.Shape); x.Shape == nil || n > len(made.dims) {
		made.Shape = slices.Clone(x.Shape)
	} else {
		copy(made.dims[:], x.Shape)
		made.Shape = made.dims[:n:n]
	}
	return &made.Group, &made.origin
}
