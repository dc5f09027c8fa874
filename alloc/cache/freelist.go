package cache

import (
	"math/bits"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

// freeList holds the inactive blocks of a pool of one stream.
type freeList interface {
	add(id, *block)
	remove(id, *block)
	// fit returns the block that fits best, in PyTorch's order: the smallest of at least that size,
	// and of equal ones the one with the lowest address; or none.
	fit(alloc.Bytes) id
	// largest returns the size of the largest block, 0 if there is none.
	largest() alloc.Bytes
}

const binCount = int(smallSegment / blockUnit)

// bins holds the small pool's inactive blocks: a bin for each size, and in two levels a bit for
// each bin that is not empty.
type bins struct {
	blocks *slab.Slab[block]
	bins   [binCount]bin // bins[i] has blocks of i+1 units
	words  [binCount / 64]uint64
	top    uint64 // a bit for each word that is not zero
}

// bin holds the blocks of one size. The block with the lowest address is apart, so that allocating
// and freeing it takes constant time; the others are in a tree, by address.
type bin struct {
	lowest id        // none if it is still in the tree
	root   id        // root of the tree
	floor  alloc.Ptr // if there is no lowest: every block in the tree is above this
}

func binOf(size alloc.Bytes) uint { return uint(size)/uint(blockUnit) - 1 }

func (p *bins) add(i id, b *block) {
	at := binOf(b.size)
	bin := &p.bins[at]
	switch {
	case bin.lowest == none && bin.root == none:
		p.words[at/64] |= 1 << (at % 64)
		p.top |= 1 << (at / 64)
		bin.lowest = i
		return
	case bin.lowest == none:
		if b.ptr <= bin.floor {
			bin.lowest = i
			return
		}
	default:
		if lowest := p.blocks.At(bin.lowest); b.ptr < lowest.ptr {
			i, b, bin.lowest = bin.lowest, lowest, i
		}
	}
	t := tree{p.blocks, bin.root}
	t.add(i, b)
	bin.root = t.root
}

func (p *bins) remove(i id, b *block) {
	at := binOf(b.size)
	bin := &p.bins[at]
	if i == bin.lowest {
		bin.lowest, bin.floor = none, b.ptr
	} else {
		t := tree{p.blocks, bin.root}
		t.remove(i, b)
		bin.root = t.root
	}
	if bin.lowest == none && bin.root == none {
		p.words[at/64] &^= 1 << (at % 64)
		if p.words[at/64] == 0 {
			p.top &^= 1 << (at / 64)
		}
	}
}

// fit returns the smallest block of at least size bytes, and of equal ones the one with the lowest
// address; or none.
func (p *bins) fit(size alloc.Bytes) id {
	at := binOf(size)
	word := at / 64
	rest := p.words[word] &^ (1<<(at%64) - 1)
	if rest == 0 {
		words := p.top &^ (2<<word - 1)
		if words == 0 {
			return none
		}
		word = uint(bits.TrailingZeros64(words))
		rest = p.words[word]
	}
	bin := &p.bins[word*64+uint(bits.TrailingZeros64(rest))]
	if bin.lowest == none {
		t := tree{p.blocks, bin.root}
		bin.lowest = t.removeFirst()
		bin.root = t.root
	}
	return bin.lowest
}

// largest returns the size of the largest block, 0 if there is none.
func (p *bins) largest() alloc.Bytes {
	if p.top == 0 {
		return 0
	}
	word := bits.Len64(p.top) - 1
	return alloc.Bytes(word*64+bits.Len64(p.words[word])) * blockUnit
}

// tree holds the large pool's inactive blocks in PyTorch's order: by size, then by address. It is a
// treap: a binary search tree in which a block's priority, a scrambled form of its id, is below its
// parent's. Since priorities are nearly random, the depth is logarithmic.
type tree struct {
	blocks *slab.Slab[block]
	root   id
}

// less is the tree's order.
func (b *block) less(other *block) bool {
	return b.size < other.size || b.size == other.size && b.ptr < other.ptr
}

// priority is the finalizer of murmur3, which maps no two ids to one priority.
func priority(i id) uint32 {
	h := uint32(i)
	h = (h ^ h>>16) * 0x85ebca6b
	h = (h ^ h>>13) * 0xc2b2ae35
	return h ^ h>>16
}

// child returns the link below b that leads towards another block.
func (b *block) child(other *block) *id {
	if other.less(b) {
		return &b.left
	}
	return &b.right
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
