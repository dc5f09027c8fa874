package cache

import (
	"math/bits"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

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
