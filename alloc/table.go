package alloc

import "github.com/gpumemtrack/gpumemtrack/internal/slab"

// table finds an allocated block by its address. It is an extendible hash table
// (Fagin et al., 1979): pages of slots with open addressing and linear probing,
// and a directory that leads to them by the first bits of the hash. A page that is
// three quarters full is split in two, so that nobody ever waits for the whole table to
// grow. A slot keeps 32 bits of the hash, so that a probe rarely looks at a
// block that is not the right one, and so that splitting and removing look at none.
type table struct {
	blocks    *slab.Slab[block]
	directory []*page // 1 << depth of them
	depth     uint
	used      int
}

// page holds the slots of all hashes that begin with the same bits.
type page struct {
	depth uint // how many bits
	used  int
	slots [pageSlots]slot
}

type slot struct {
	hash  uint32
	block id // none if the slot is empty
}

const pageSlots = 1 << 9

func newTable(blocks *slab.Slab[block]) table {
	return table{blocks: blocks, directory: []*page{new(page)}}
}

// hashOf is multiplicative hashing by 2^64 over the golden ratio.
func hashOf(p Ptr) uint32 { return uint32(uint64(p) * 0x9e3779b97f4a7c15 >> 32) }

func (t *table) page(hash uint32) *page { return t.directory[hash>>(32-t.depth)] }

// add enters a block and its address, which must not be in the table.
func (t *table) add(i id, p Ptr) {
	hash := hashOf(p)
	page := t.page(hash)
	for page.used == pageSlots/4*3 {
		t.split(page, hash)
		page = t.page(hash)
	}
	page.add(slot{hash, i})
	t.used++
}

// split replaces the page that a hash leads to by two.
func (t *table) split(old *page, hash uint32) {
	if old.depth == t.depth {
		t.double()
	}
	bit := uint32(1) << (31 - old.depth)
	var halves [2]*page
	for i := range halves {
		halves[i] = &page{depth: old.depth + 1}
	}
	for _, s := range old.slots {
		if s.block != none {
			halves[min(1, s.hash&bit)].add(s)
		}
	}
	span := 1 << (t.depth - old.depth) // entries of the directory that lead to it
	first := int(hash>>(32-t.depth)) &^ (span - 1)
	for i := range span {
		t.directory[first+i] = halves[i/(span/2)]
	}
}

// double makes the directory look at one more bit.
func (t *table) double() {
	doubled := make([]*page, 2*len(t.directory))
	for i := range doubled {
		doubled[i] = t.directory[i/2]
	}
	t.directory, t.depth = doubled, t.depth+1
}

// find returns the block at an address, or none.
func (t *table) find(p Ptr) id {
	hash := hashOf(p)
	page := t.page(hash)
	if at := page.find(t.blocks, hash, p); at >= 0 {
		return page.slots[at].block
	}
	return none
}

// remove takes out the block at an address, if that is its owner, and returns
// it, or none.
func (t *table) remove(p Ptr, owner Owner) id {
	hash := hashOf(p)
	page := t.page(hash)
	at := page.find(t.blocks, hash, p)
	if at < 0 {
		return none
	}
	i := page.slots[at].block
	if t.blocks.At(i).left != id(owner) {
		return none
	}
	page.vacate(at)
	page.used--
	t.used--
	return i
}

func (g *page) add(s slot) {
	at := s.hash
	for g.slots[at%pageSlots].block != none {
		at++
	}
	g.slots[at%pageSlots] = s
	g.used++
}

// find returns the index of the slot of an address, or -1.
func (g *page) find(blocks *slab.Slab[block], hash uint32, p Ptr) int {
	for at := hash; ; at++ {
		s := g.slots[at%pageSlots]
		if s.block == none {
			return -1
		}
		if s.hash == hash && blocks.At(s.block).ptr == p {
			return int(at % pageSlots)
		}
	}
}

// vacate empties a slot and moves those behind it up, as far as they may go, so
// that a search still finds them.
func (g *page) vacate(hole int) {
	for at := (hole + 1) % pageSlots; g.slots[at].block != none; at = (at + 1) % pageSlots {
		home := int(g.slots[at].hash % pageSlots)
		if (at-home)&(pageSlots-1) >= (at-hole)&(pageSlots-1) {
			g.slots[hole] = g.slots[at]
			hole = at
		}
	}
	g.slots[hole] = slot{}
}
