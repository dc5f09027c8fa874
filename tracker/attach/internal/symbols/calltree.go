package symbols

import (
	"iter"
	"slices"
)

// callTree holds sequences that often begin alike, such as call stacks from the outermost frame inward: each sequence is a path
// from the root, and a node belongs to all paths through it. A node takes 20 to 28 bytes, whatever the length of its path.
//
// Nodes are numbered from 1 and never removed; 0 is the root, the empty sequence. The zero callTree is empty.
type callTree[V uint32 | uint64] struct {
	parents []uint32 // by node, as the others are
	values  []V      // the last of the sequence
	slots   []uint32 // nodes by hash of parent and value: open addressing, at most half full; 0 is a free slot
	shift   uint8    // 64 minus the binary logarithm of len(slots)
}

const leastSlots = 1 << 8

// add returns the node of the sequence that appends a value to that of a node.
func (t *callTree[V]) add(parent uint32, value V) uint32 {
	if 2*len(t.parents) >= len(t.slots) {
		t.grow()
	}
	at := t.slot(parent, value)
	if t.slots[at] == 0 {
		t.parents, t.values = append(t.parents, parent), append(t.values, value)
		t.slots[at] = uint32(len(t.parents) - 1)
	}
	return t.slots[at]
}

// find returns the node of the same sequence, or 0 if there is none.
func (t *callTree[V]) find(parent uint32, value V) uint32 {
	if len(t.slots) == 0 {
		return 0
	}
	return t.slots[t.slot(parent, value)]
}

// slot returns the slot of a node, which is free if there is no such node.
func (t *callTree[V]) slot(parent uint32, value V) int {
	const odd1, odd2 = 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93
	h := (uint64(parent)*odd1 ^ uint64(value)) * odd2
	h = (h ^ h>>32) * odd1
	mask := len(t.slots) - 1
	for at := int(h >> t.shift); ; at = (at + 1) & mask {
		if n := t.slots[at]; n == 0 || t.parents[n] == parent && t.values[n] == value {
			return at
		}
	}
}

// grow doubles the slots.
func (t *callTree[V]) grow() {
	if t.slots == nil {
		t.parents, t.values = make([]uint32, 1), make([]V, 1) // the root
		t.slots, t.shift = make([]uint32, leastSlots), 64-8
		return
	}
	t.slots = make([]uint32, 2*len(t.slots))
	t.shift--
	for n := 1; n < len(t.parents); n++ {
		t.slots[t.slot(t.parents[n], t.values[n])] = uint32(n)
	}
}

// len returns the number of nodes, the root included.
func (t *callTree[V]) len() int { return max(1, len(t.parents)) }

// fromEnd yields the sequence of a node, last value first.
func (t *callTree[V]) fromEnd(node uint32) iter.Seq[V] {
	return func(yield func(V) bool) {
		for ; node != 0 && yield(t.values[node]); node = t.parents[node] {
		}
	}
}

// length returns the length of the sequence of a node.
func (t *callTree[V]) length(node uint32) (n int) {
	for ; node != 0; node = t.parents[node] {
		n++
	}
	return n
}

// ofStack returns the node of a stack, whose values are given innermost first; 0 if it is not there.
func (t *callTree[V]) ofStack(stack []V) (node uint32) {
	for _, v := range slices.Backward(stack) {
		if node = t.find(node, v); node == 0 {
			return 0
		}
	}
	return node
}

// addStack adds a stack, whose values are given innermost first.
func (t *callTree[V]) addStack(stack []V) (node uint32) {
	for _, v := range slices.Backward(stack) {
		node = t.add(node, v)
	}
	return node
}
