package cache

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/addrtable"
	"github.com/gpumemtrack/gpumemtrack/internal/cachelock"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

// table finds an allocated block by its address.
type table struct {
	blocks    *slab.Slab[block]
	addresses addrtable.Table
}

func newTable(blocks *slab.Slab[block]) table { return table{blocks, addrtable.New()} }

// add enters a block and its address, which must not be in the table.
func (t *table) add(i id, p alloc.Ptr) { t.addresses.Add(uint64(p), i) }

// find returns the block at an address, or none.
func (t *table) find(p alloc.Ptr) id {
	search := t.addresses.Look(uint64(p))
	return t.next(&search, p)
}

// next moves a search on to the block at an address, and returns it, or none.
func (t *table) next(search *addrtable.Search, p alloc.Ptr) id {
	for {
		i := search.Next()
		if i == none || t.blocks.At(i).ptr == p {
			return i
		}
	}
}

// remove takes out the block at an address, if that is its owner, and returns
// it, or none.
func (t *table) remove(p alloc.Ptr, owner cachelock.Owner) id {
	search := t.addresses.Look(uint64(p))
	i := t.next(&search, p)
	if i == none || t.blocks.At(i).left != id(owner) {
		return none
	}
	t.addresses.Remove(&search)
	return i
}
