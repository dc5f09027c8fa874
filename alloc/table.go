package alloc

// table finds an allocated block by its address. It is a hash table with open
// addressing and linear probing, at most 3/4 full. A slot keeps 32 bits of the
// hash, so that a probe rarely looks at a block that is not the right one, and
// so that growing and removing look at none.
type table struct {
	blocks *slab
	slots  []slot // a power of two of them
	shift  int    // 32 - log2(len(slots)): the home slot of a hash is hash >> shift
	used   int
}

type slot struct {
	hash  uint32
	block id // none if the slot is empty
}

const minTableBits = 8

func newTable(blocks *slab) table {
	return table{blocks: blocks, slots: make([]slot, 1<<minTableBits), shift: 32 - minTableBits}
}

// hashOf is multiplicative hashing by 2^64 over the golden ratio.
func hashOf(p Ptr) uint32 { return uint32(uint64(p) * 0x9e3779b97f4a7c15 >> 32) }

// add enters a block and its address, which must not be in the table.
func (t *table) add(i id, p Ptr) {
	if t.used >= len(t.slots)/4*3 {
		t.grow()
	}
	t.place(slot{hashOf(p), i})
	t.used++
}

func (t *table) place(s slot) {
	mask := len(t.slots) - 1
	at := int(s.hash >> t.shift)
	for t.slots[at&mask].block != none {
		at++
	}
	t.slots[at&mask] = s
}

func (t *table) grow() {
	old := t.slots
	t.slots = make([]slot, 2*len(old))
	t.shift--
	for _, s := range old {
		if s.block != none {
			t.place(s)
		}
	}
}

// remove takes out the block at an address and returns it, or none.
func (t *table) remove(p Ptr) id {
	mask := len(t.slots) - 1
	hash := hashOf(p)
	for at := int(hash >> t.shift); ; at++ {
		s := t.slots[at&mask]
		if s.block == none {
			return none
		}
		if s.hash == hash && t.blocks.at(s.block).ptr == p {
			t.vacate(at & mask)
			t.used--
			return s.block
		}
	}
}

// vacate empties a slot and moves those behind it up, as far as they may go, so
// that a search still finds them.
func (t *table) vacate(hole int) {
	mask := len(t.slots) - 1
	for at := (hole + 1) & mask; t.slots[at].block != none; at = (at + 1) & mask {
		home := int(t.slots[at].hash >> t.shift)
		if (at-home)&mask >= (at-hole)&mask {
			t.slots[hole] = t.slots[at]
			hole = at
		}
	}
	t.slots[hole] = slot{}
}
