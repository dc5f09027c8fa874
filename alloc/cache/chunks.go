package cache

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// chunkSize returns the unit in which a pool's memory is mapped.
func chunkSize(pool alloc.Pool) alloc.Bytes {
	if pool == alloc.SmallPool {
		return smallSegment
	}
	return largeSegment
}

// addresses is a range of addresses.
type addresses struct {
	ptr  alloc.Ptr
	size alloc.Bytes
}

// chunks returns the whole chunks in a block.
func (x *expandable) chunks(b *block) addresses {
	unit := alloc.Ptr(chunkSize(b.pool))
	s, _ := x.cache.segmentAt(b.ptr)
	first := s.ptr + (b.ptr-s.ptr+unit-1)/unit*unit
	end := s.ptr + (b.end()-s.ptr)/unit*unit
	if first >= end {
		return addresses{}
	}
	return addresses{first, alloc.Bytes(end - first)}
}

// prefer returns the block that PyTorch takes in place of the best fit i: a later one in the order
// of the tree, as long as each can grow to less than the one before it.
func (x *expandable) prefer(tree *tree, i id) id {
	for {
		next := tree.next(i)
		if next == none || x.growth(next) >= x.growth(i) {
			return i
		}
		i = next
	}
}

// growth returns how large a block can become.
func (x *expandable) growth(i id) alloc.Bytes {
	b := x.cache.blocks.At(i)
	if b.next == none || x.cache.blocks.At(b.next).state != unmapped {
		return b.size
	}
	return b.size + x.cache.blocks.At(b.next).size
}

// roundUpTo rounds up to a multiple of unit, which need not be a power of two.
func roundUpTo(n, unit alloc.Bytes) alloc.Bytes { return (n + unit - 1) / unit * unit }
