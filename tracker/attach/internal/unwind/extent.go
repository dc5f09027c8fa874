package unwind

import (
	"cmp"
	"slices"
)

// Extent returns the start and the size of the code that has an address: of a function, or of a part that the compiler moved
// out of one.
func (t *Table) Extent(address uint64) (start, size uint64, ok bool) {
	e, ok := t.entryOf(address)
	return e.start, e.size, ok
}

// entryOf returns the entry of the code that has an address.
func (t *Table) entryOf(address uint64) (e entry, ok bool) {
	i, ok := slices.BinarySearchFunc(t.index, address, func(f function, a uint64) int { return cmp.Compare(f.start, a) })
	if !ok {
		i--
	}
	if i < 0 {
		return e, false
	}
	e, ok = t.entryAt(t.index[i].entry)
	return e, ok && e.cie != nil && address >= e.start && address-e.start < e.size
}

// InFrame reports whether the function has a frame at an address. It has none where it has just begun, or is about to return or
// to jump to another function.
func (t *Table) InFrame(address uint64, m *Machine) bool {
	r := t.ruleAt(address)
	if r == nil || r.cfa.kind != registerPlus { // as in the linkage table, which jumps to other files
		return false
	}
	return int(r.cfa.register) != m.sp || r.cfa.offset != m.returnSize
}
