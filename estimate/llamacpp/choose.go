package llamacpp

import (
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// chooser chooses the types of a model's tensors, one after another in the order of the blocks.
type chooser struct {
	name Quantization
	base kind
	old  bool // of before March 2026
	model
	values, downs int // tensors that it has chosen for
}

// is reports whether the mixture is one of these.
func (c *chooser) is(names ...Quantization) bool { return slices.Contains(names, c.name) }

// of returns the type of the next tensor.
func (c *chooser) of(t tensor) kind {
	if c.base == typeF16 || c.base == typeBF16 {
		return c.base
	}
	return fitting(c.wanted(t), t.row)
}

// wanted returns the type of a tensor whatever its rows are.
func (c *chooser) wanted(t tensor) kind {
	tiny := c.is("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ2_M")
	switch {
	case t.category == isOutput || t.category == isEmbedding && !c.hasHead:
		return c.output(t, tiny)
	case c.is("MXFP4_MOE"):
		if t.matrices {
			return typeMXFP4
		}
		return typeQ80
	case t.category == isEmbedding:
		return c.embedding()
	case tiny:
		return c.tiny(t)
	}
	switch t.category {
	case isValue, isPacked:
		if c.old && t.category == isPacked {
			return c.packed()
		}
		c.values++
		return c.value(c.values - 1)
	case isKey, isQuery:
		switch {
		case c.experts == 8 && t.category == isKey:
			return typeQ80
		case c.is("IQ3_XS"):
			return typeIQ3XXS
		case c.is("IQ3_XXS"):
			return typeIQ2S
		}
	case isDown:
		return c.down(c.number(t, &c.downs))
	case isAttentionOutput:
		return c.attentionOutput()
	case isGate, isUp:
		if n, _ := setting.NumberIn(t.path); c.is("IQ3_XS") && n >= c.blocks/8 && n < 7*c.blocks/8 {
			return typeIQ3XXS
		}
	}
	return c.base
}

// number is the number of a tensor among those of its category; of a model with experts, that of its block.
func (c *chooser) number(t tensor, count *int) int {
	n := *count
	*count++
	if c.experts > 1 {
		n, _ = setting.NumberIn(t.path)
	}
	return n
}

// output returns the type of the output head, or of the embedding where that is the head too.
func (c *chooser) output(t tensor, tiny bool) kind {
	switch {
	case c.is("MXFP4_MOE"), c.isFalcon, t.row%blocks[c.base].Elements != 0, c.base == typeQ80:
		return typeQ80
	case tiny && !c.is("IQ2_S", "IQ2_M"), c.is("IQ3_XXS", "IQ2_S", "IQ2_M"):
		return typeQ5K
	}
	return typeQ6K
}

// embedding returns the type of an embedding that is no head.
func (c *chooser) embedding() kind {
	switch {
	case c.is("IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS"):
		return typeQ2K
	case c.is("IQ2_S", "IQ2_M", "IQ3_XXS"):
		return typeIQ3S
	case strings.HasPrefix(string(c.name), "TQ"):
		return typeQ4K
	}
	return c.base
}

// tiny returns the type in mixtures of less than 3 bits.
func (c *chooser) tiny(t tensor) kind {
	wider := c.is("IQ2_S", "IQ2_M")
	switch t.category {
	case isValue, isPacked:
		c.values++
		switch {
		case c.heads >= 4 || c.experts >= 4:
			return typeQ4K
		case wider:
			return typeIQ3S
		}
		return typeQ2K
	case isKey:
		if c.experts == 8 {
			return typeQ4K
		}
	case isDown:
		c.downs++
		switch {
		case c.downs-1 >= c.blocks/8:
		case wider:
			return typeIQ3S
		default:
			return typeQ2K
		}
	case isAttentionOutput:
		switch {
		case c.experts == 8:
			return typeQ5K
		case c.is("IQ1_S", "IQ1_M"):
			return typeIQ2XXS
		case wider:
			return typeIQ3S
		}
	}
	return c.base
}

// more reports whether the n-th of so many tensors is one of the half that get more bits.
func more(n, all int) bool {
	return n < all/8 || n >= 7*all/8 || (n-all/8)%3 == 2
}

// value returns the type of the n-th projection to values.
func (c *chooser) value(n int) kind {
	k, few := c.base, c.heads >= 4
	switch {
	case c.is("Q2_K") && !few:
		k = typeQ3K
	case c.is("Q2_K", "Q2_K_S", "IQ3_XXS", "IQ3_XS", "IQ3_S") && few, c.is("IQ3_M", "Q3_K_M"):
		k = typeQ4K
		if c.is("Q3_K_M") && n < 2 {
			k = typeQ5K
		}
	case c.is("IQ3_XXS"):
		k = typeIQ3S
	case c.is("Q3_K_L"), c.is("IQ4_NL", "IQ4_XS") && few, c.is("Q4_K_S") && n < 4:
		k = typeQ5K
	case c.is("Q4_K_M", "Q5_K_M") && more(n, c.attends):
		k = typeQ6K
	}
	if c.blocks == 80 && c.heads > 1 && (k == typeQ3K || k == typeQ4K) { // the type "70B"
		k = typeQ5K
	}
	if c.experts == 8 {
		k = typeQ80
	}
	return k
}

// packed returns the type of a projection to queries, keys and values in older builds.
func (c *chooser) packed() kind {
	switch {
	case c.is("Q3_K_M", "Q3_K_L", "IQ3_M"):
		return typeQ4K
	case c.is("Q4_K_M"):
		return typeQ5K
	case c.is("Q5_K_M"):
		return typeQ6K
	}
	return c.base
}

// down returns the type of the n-th second projection of an MLP.
func (c *chooser) down(n int) kind {
	all := c.blocks
	early := n < all/8
	switch {
	case c.is("Q2_K"):
		return typeQ3K
	case c.is("Q2_K_S") && early:
		return typeQ4K
	case c.is("IQ3_XXS"):
		if early {
			return typeQ4K
		}
		return typeQ3K
	case c.is("Q3_K_M"):
		switch {
		case n < all/16:
			return typeQ5K
		case c.isFalcon && !more(n, all):
			return typeQ3K
		}
		return typeQ4K
	case c.is("IQ3_M") && (early || c.experts == 8 && more(n, all)):
		return typeQ4K
	case c.is("Q3_K_L"):
		if c.isFalcon {
			return typeQ4K
		}
		return typeQ5K
	case c.is("Q4_K_M") && c.isFalcon:
		switch {
		case n < all/16:
			return typeQ6K
		case more(n, all):
			return typeQ5K
		}
		return typeQ4K
	case c.is("Q4_K_M", "Q5_K_M") && more(n, all):
		return typeQ6K
	case c.is("IQ4_NL", "IQ4_XS") && early, c.is("Q4_K_S") && !c.isFalcon && early:
		return typeQ5K
	}
	return c.base
}

// attentionOutput returns the type of the projection after attention.
func (c *chooser) attentionOutput() kind {
	switch {
	case c.isFalcon:
		if c.is("Q3_K_L") {
			return typeQ4K
		}
	case c.experts == 8:
		if c.is("Q2_K", "IQ3_XS", "IQ3_XXS", "Q3_K_S", "Q3_K_M", "IQ4_NL", "Q4_K_S", "Q4_K_M", "IQ3_S", "IQ3_M", "IQ4_XS") {
			return typeQ5K
		}
	case c.is("Q2_K"):
		return typeQ3K
	case c.is("IQ3_XXS"):
		return typeIQ3S
	case c.is("Q3_K_M", "IQ3_M"):
		return typeQ4K
	case c.is("Q3_K_L"):
		return typeQ5K
	}
	return c.base
}
