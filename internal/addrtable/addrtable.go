// Package addrtable finds records of a slab by their addresses, or by other numbers of which few are equal, such as hashes.
package addrtable

import "github.com/gpumemtrack/gpumemtrack/internal/slab"

// Table is an extendible hash table (Fagin et al., 1979): pages of slots with open
// addressing and linear probing, and a directory that leads to them by the first bits of
// the hash. A page that is three quarters full is split in two, so that no caller ever
// waits for the whole table to grow. A slot has 32 bits of the hash and no address: the
// caller compares what Look finds, which is rarely the wrong record. Make one with New. It is
// for one goroutine at a time.
type Table struct {
	directory []*page // 1 << depth entries; several may point to one page
	depth     uint
	n         int
}

// Len returns how many records are in the table.
func (t *Table) Len() int { return t.n }

// page holds the slots of all hashes that begin with the same bits. It is as large as one of
// the Go allocator's sizes, 4 KiB.
type page struct {
	depth uint // how many bits
	used  int
	slots [pageSlots]slot
}

type slot struct {
	hash uint32
	id   slab.ID // 0 if the slot is empty
}

const pageSlots = 510

// New returns an empty table.
func New() Table { return Table{directory: []*page{new(page)}} }

// hashOf is multiplicative hashing by 2^64 over the golden ratio.
func hashOf(address uint64) uint32 { return uint32(address * 0x9e3779b97f4a7c15 >> 32) }

// home is the slot at which the search for a hash begins. It depends on bits of the hash that do not choose the
// page.
func home(hash uint32) uint32 { return hash & 0xffff * pageSlots >> 16 }

func after(slot uint32) uint32 {
	if slot++; slot == pageSlots {
		return 0
	}
	return slot
}

func (t *Table) page(hash uint32) *page { return t.directory[hash>>(32-t.depth)] }

// Add enters a record at an address. The record must not be in the table already.
func (t *Table) Add(address uint64, id slab.ID) {
	hash := hashOf(address)
	p := t.page(hash)
	for p.used == pageSlots/4*3 {
		t.split(p, hash)
		p = t.page(hash)
	}
	p.add(slot{hash, id})
	t.n++
}

// split replaces the page that a hash leads to by two.
func (t *Table) split(old *page, hash uint32) {
	if old.depth == t.depth {
		t.double()
	}
	bit := uint32(1) << (31 - old.depth)
	var halves [2]*page
	for i := range halves {
		halves[i] = &page{depth: old.depth + 1}
	}
	for _, s := range old.slots {
		if s.id != 0 {
			halves[min(1, s.hash&bit)].add(s)
		}
	}
	span := 1 << (t.depth - old.depth) // number of the directory's entries that lead to the page
	first := int(hash>>(32-t.depth)) &^ (span - 1)
	for i := range span {
		t.directory[first+i] = halves[i/(span/2)]
	}
}

// double makes the directory look at one more bit.
func (t *Table) double() {
	doubled := make([]*page, 2*len(t.directory))
	for i := range doubled {
		doubled[i] = t.directory[i/2]
	}
	t.directory, t.depth = doubled, t.depth+1
}

func (p *page) add(s slot) {
	at := home(s.hash)
	for p.slots[at].id != 0 {
		at = after(at)
	}
	p.slots[at] = s
	p.used++
}

// Look begins a search for an address.
func (t *Table) Look(address uint64) Search {
	hash := hashOf(address)
	return Search{t.page(hash), hash, home(hash)}
}

// Search goes through the records that may have an address:
//
//	search := table.Look(address)
//	for id := search.Next(); id != 0; id = search.Next() {
//		if records.At(id).address == address {
//			...
//		}
//	}
//
// A change of the table ends it.
type Search struct {
	page *page
	hash uint32
	next uint32 // slot to examine
}

// Next returns the next record, or 0 if there is none.
func (s *Search) Next() slab.ID {
	for {
		found := s.page.slots[s.next]
		if found.id == 0 {
			return 0
		}
		s.next = after(s.next)
		if found.hash == s.hash {
			return found.id
		}
	}
}

// Remove removes the record that Next returned last. It moves the records behind it up, as far as they may
// go, so that a search still finds them.
func (t *Table) Remove(s *Search) {
	hole := s.next - 1
	if s.next == 0 {
		hole = pageSlots - 1
	}
	slots := &s.page.slots
	for at := after(hole); slots[at].id != 0; at = after(at) {
		if distance(home(slots[at].hash), at) >= distance(hole, at) {
			slots[hole] = slots[at]
			hole = at
		}
	}
	slots[hole] = slot{}
	s.page.used--
	t.n--
}

// distance returns how many slots to is behind from.
func distance(from, to uint32) uint32 {
	if to < from {
		to += pageSlots
	}
	return to - from
}
