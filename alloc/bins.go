package alloc

import (
	"math/bits"

	"github.com/gpumemtrack/gpumemtrack/internal/slab"
)

const binCount = int(smallSegment / blockUnit)

// bins holds the small pool's inactive blocks: a list for each size, and a bit
// for each list that is not empty, in two levels. Everything takes constant
// time. Of the blocks of one size, the last added is found first.
type bins struct {
	blocks *slab.Slab[block]
	heads  [binCount]id // linked by left and right; heads[i] has i+1 units
	words  [binCount / 64]uint64
	top    uint64 // a bit for each word that is not zero
}

func binOf(size Bytes) int { return int(size/blockUnit) - 1 }

func (p *bins) add(i id) {
	b := p.blocks.At(i)
	bin := binOf(b.size)
	b.left, b.right = none, p.heads[bin]
	if b.right != none {
		p.blocks.At(b.right).left = i
	}
	p.heads[bin] = i
	p.words[bin/64] |= 1 << (bin % 64)
	p.top |= 1 << (bin / 64)
}

func (p *bins) remove(i id) {
	b := p.blocks.At(i)
	if b.right != none {
		p.blocks.At(b.right).left = b.left
	}
	if b.left != none {
		p.blocks.At(b.left).right = b.right
		return
	}
	bin := binOf(b.size)
	p.heads[bin] = b.right
	if b.right == none {
		p.words[bin/64] &^= 1 << (bin % 64)
		if p.words[bin/64] == 0 {
			p.top &^= 1 << (bin / 64)
		}
	}
}

// fit returns a smallest block of at least size bytes, or none.
func (p *bins) fit(size Bytes) id {
	bin := binOf(size)
	word := bin / 64
	rest := p.words[word] &^ (1<<(bin%64) - 1)
	if rest == 0 {
		words := p.top &^ (2<<word - 1)
		if words == 0 {
			return none
		}
		word = bits.TrailingZeros64(words)
		rest = p.words[word]
	}
	return p.heads[word*64+bits.TrailingZeros64(rest)]
}

// largest returns the size of the largest block, 0 if there is none.
func (p *bins) largest() Bytes {
	if p.top == 0 {
		return 0
	}
	word := bits.Len64(p.top) - 1
	return Bytes(word*64+bits.Len64(p.words[word])) * blockUnit
}
