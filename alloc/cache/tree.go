package cache

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

// tree holds the large pool's inactive blocks in PyTorch's order: by size, then by address. It is a
// treap: a binary search tree in which a block's priority, a scrambled form of its id, is below its
// parent's. Since priorities are nearly random, the depth is logarithmic.
type tree struct {
	blocks *slab.Slab[block]
	root   id
}

// less is the tree's order.
func (a *block) less(b *block) bool {
	return a.size < b.size || a.size == b.size && a.ptr < b.ptr
}

// priority is the finalizer of murmur3, which maps no two ids to one priority.
func priority(i id) uint32 {
	h := uint32(i)
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return h ^ h>>16
}

// child returns the link below n that leads towards b.
func (n *block) child(b *block) *id {
	if b.less(n) {
		return &n.left
	}
	return &n.right
}

func (t *tree) add(i id, b *block) {
	own := priority(i)
	link := &t.root
	for *link != none && priority(*link) > own {
		link = t.blocks.At(*link).child(b)
	}
	// Block i replaces the subtree at link. That subtree is split around i.
	rest := *link
	*link = i
	lower, higher := &b.left, &b.right
	for rest != none {
		n := t.blocks.At(rest)
		if n.less(b) {
			*lower, lower, rest = rest, &n.right, n.right
		} else {
			*higher, higher, rest = rest, &n.left, n.left
		}
	}
	*lower, *higher = none, none
}

func (t *tree) remove(i id, b *block) {
	link := &t.root
	for *link != i {
		link = t.blocks.At(*link).child(b)
	}
	// The subtrees of i are joined in its place.
	lower, higher := b.left, b.right
	for lower != none && higher != none {
		if priority(lower) > priority(higher) {
			n := t.blocks.At(lower)
			*link, link, lower = lower, &n.right, n.right
		} else {
			n := t.blocks.At(higher)
			*link, link, higher = higher, &n.left, n.left
		}
	}
	*link = max(lower, higher) // at most one of the two exists
}

// removeFirst removes the first block, and returns it.
func (t *tree) removeFirst() id {
	link := &t.root
	for left := &t.blocks.At(*link).left; *left != none; left = &t.blocks.At(*link).left {
		link = left
	}
	i := *link
	*link = t.blocks.At(i).right
	return i
}

// fit returns the first block of at least size bytes, or none.
func (t *tree) fit(size alloc.Bytes) id {
	best := none
	for i := t.root; i != none; {
		b := t.blocks.At(i)
		if b.size >= size {
			best, i = i, b.left
		} else {
			i = b.right
		}
	}
	return best
}

// largest returns the size of the largest block, 0 if there is none.
func (t *tree) largest() (size alloc.Bytes) {
	for i := t.root; i != none; {
		b := t.blocks.At(i)
		size, i = b.size, b.right
	}
	return size
}

// next returns the block after i in the tree's order, or none.
func (t *tree) next(i id) id { return t.behind(t.blocks.At(i)) }

// behind returns the first block that comes behind b in the order, whether b is in the tree or
// not, or none.
func (t *tree) behind(b *block) id {
	after := none
	for j := t.root; j != none; {
		if n := t.blocks.At(j); b.less(n) {
			after, j = j, n.left
		} else {
			j = n.right
		}
	}
	return after
}

// from returns the blocks of at least size bytes, in order.
func (t *tree) from(size alloc.Bytes) (blocks []id) {
	for i := t.fit(size); i != none; i = t.next(i) {
		blocks = append(blocks, i)
	}
	return blocks
}
