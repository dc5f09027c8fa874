package family

import (
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// BlockKind says in what a block of a Transformer differs from the others.
type BlockKind uint8

// What may be particular about a block; a block can have several.
const (
	Windowed   BlockKind = 1 << iota // it attends within the Window alone
	NoRotation                       // it does not rotate queries and keys
	Recurrent                        // it has the DeltaNet or the ShortConv in place of attention
	Sparse                           // it has the mixture; where no block is marked so, all beyond DenseBlocks have
	Borrowing                        // its keys and values are those of the last block before that is of its kind, with or without a window
	Thinned                          // few elements of the MLP's middle are not 0
)

// kind is that of a block.
func (c Transformer) kind(block int) BlockKind {
	if block < len(c.Kinds) {
		return c.Kinds[block]
	}
	if c.Kinds == nil && c.Window > 0 && c.FullBlocks == 0 {
		return Windowed
	}
	return 0
}

// stack is blocks one after another, of which many are alike.
type stack struct {
	layers []tape.Layer
	which  []uint8 // of the layers, for each block
}

// Kind names the row.
func (stack) Kind() string { return "Sequential" }

// stacked are so many blocks, of which make makes one of a kind.
func stacked(n int, kind func(block int) int, make func(kind, block int) tape.Layer) stack {
	var s stack
	at := map[int]uint8{}
	for i := range max(0, min(n, tape.MaxLayers)) {
		k := kind(i)
		which, ok := at[k]
		if !ok {
			which = uint8(len(s.layers))
			at[k] = which
			s.layers = append(s.layers, make(k, i))
		}
		s.which = append(s.which, which)
	}
	return s
}

func (s stack) Declare(d *tape.Declaration) {
	for i, which := range s.which {
		if !d.Layer(strconv.Itoa(i), s.layers[which]) {
			return
		}
	}
}

func (s stack) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	var err error
	for i, which := range s.which {
		if x, err = t.Call(strconv.Itoa(i), s.layers[which], x, t.AllBeside()...); err != nil {
			return tape.Tensor{}, err
		}
	}
	return x, nil
}
