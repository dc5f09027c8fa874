package family

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// KimiLinear is DeepSeek V3 without rotation, with Kimi's delta attention in most layers
// (modeling_kimi_linear.py).
var KimiLinear = &Family{
	Name: "Kimi Linear",
	style: style{still: true, recurrent: func(c Transformer) *recurrence {
		own := Own[layer.KimiDelta](c)
		if own == nil {
			return nil
		}
		return replaced("self_attn", layer.KimiAttention{Hidden: c.Hidden, KimiDelta: *own}, own.Keeps())
	}},
	Types: []Type{{Name: "kimi_linear", Base: "KimiLinearModel", Keys: map[string]string{"num_experts": "n_routed_experts"}, Read: readKimiLinear}},
	GGUF:  []GGUF{{Name: "kimi-linear", Blocks: true, Read: ggufKimiLinear}},
}

// kimiLayers is linear_attn_config, which Moonshot's own files have in place of transformers' keys. Its layers count
// from 1.
type kimiLayers struct {
	Heads  Whole   `json:"num_heads"`
	Size   Whole   `json:"head_dim"`
	Kernel Whole   `json:"short_conv_kernel_size"`
	Full   []Whole `json:"full_attn_layers"`
	Delta  []Whole `json:"kda_layers"`
}

func readKimiLinear(c *Config, a *Model) {
	deepSeekV3(c, a, 1)
	a.Latent.Still, a.Tied = true, false
	c.sparseLayers(a)
	var delta layer.KimiDelta
	var own kimiLayers
	a.Own = &delta
	c.stateType(a)
	c.Number(&delta.Heads, "linear_num_heads", 32)
	c.Number(&delta.Size, "linear_head_dim", 128)
	c.Number(&delta.Kernel, "linear_conv_kernel_dim", 4)
	if c.Decode("linear_attn_config", &own) {
		for _, set := range []struct {
			to   *int
			size Whole
		}{{&delta.Heads, own.Heads}, {&delta.Size, own.Size}, {&delta.Kernel, own.Kernel}} {
			if set.size != 0 {
				c.Bounded(set.to, "linear_attn_config", int(set.size))
			}
		}
	}
	types := c.layerTypes(a, "linear_attention", "full_attention")
	a.mark(Recurrent, func(block int) bool {
		switch {
		case types != nil:
			return types[block] == "linear_attention"
		case own.Full != nil && own.Delta != nil:
			return slices.Contains(own.Delta, Whole(block+1))
		}
		return block == 0 || block%4 != 0
	})
}
