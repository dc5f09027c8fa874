package family

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Bamba is Llama with mixers of Mamba 2 in most layers, and partly rotary attention in the others
// (modeling_bamba.py).
var Bamba = &Family{
	Name: "Bamba",
	style: style{names: decoderNames{last: "final_layernorm", mlp: "feed_forward"}, attention: joinedAttention, block: preFF, recurrent: func(c Transformer) *recurrence {
		s := headSpace(c)
		return replaced("mamba", layer.HeadMixer{Hidden: c.Hidden, HeadSpace: s}, s.Keeps())
	}},
	Types: []Type{{Name: "bamba", Base: "BambaModel", Read: readBamba}},
}

// preFF names the norms as Jamba and its successors do.
func preFF(_ Transformer, b blockParts) tape.Layer {
	return normedBeforeAs(b, "input_layernorm", "pre_ff_layernorm", "", "")
}

func readBamba(c *Config, a *Model) {
	c.biases(a)
	c.rotatedInPart(a, 0.5)
	headSpaceOf(c, a)
	attending := c.List("attn_layer_indices")
	a.mark(Recurrent, func(block int) bool { return !slices.Contains(attending, block) })
}
