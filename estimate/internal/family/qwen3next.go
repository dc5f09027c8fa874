package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Qwen3Next: Llama with shifted norms, gated attention, and linear attention in most blocks.
var Qwen3Next = register(&Family{
	Name:  "Qwen3-Next",
	style: style{norm: gemmaNorm, attention: qwen3NextAttention},
	Types: []Type{
		{Name: "qwen3_next", Base: "Qwen3NextModel", Read: readQwen3Next},
		{Name: "qwen3_5_text", Base: "Qwen3_5TextModel", Read: readQwen35, Text: true},
		{Name: "qwen3_5_moe_text", Base: "Qwen3_5MoeTextModel", Read: readQwen35MoE, Text: true},
	},
})

func qwen3NextAttention(_ Transformer, a *layer.Attention) {
	a.Joined, a.Gated = true, true
	a.HeadNorm = func(_, size int) tape.Layer { return layer.RMSNorm{Size: size, Unfused: true, Shifted: true} }
}

// readQwen3Next reads Qwen3-Next, in which three of four layers have linear attention.
func readQwen3Next(c *Config, a *Model) {
	c.noBias()
	a.QKNorm = layer.NormHeads
	c.rotatedInPart(a, "Qwen3NextForCausalLM", 0.25)
	c.sharedExpert(a, 512)
	c.sparse(a, 512, 10, 512)
	a.UnscaledTopK = !c.flag("norm_topk_prob", true)
	c.linearAttention(a)
}

// readQwen35 reads Qwen3.5, which is Qwen3-Next with an MLP and other projections.
func readQwen35(c *Config, a *Model) { c.qwen35(a, "Qwen3_5ForCausalLM") }

// readQwen35MoE reads Qwen3.5 with a mixture.
func readQwen35MoE(c *Config, a *Model) {
	c.usual("intermediate_size", 1) // no layer has such an MLP
	c.qwen35(a, "Qwen3_5MoeForCausalLM")
	c.sharedExpert(a, 512)
	c.sparse(a, 256, 8, 512)
	a.UnscaledTopK = false
}

func (c *Config) qwen35(a *Model, causal string) {
	c.noBias()
	a.QKNorm, a.Batched = layer.NormHeads, true
	c.rotatedInPart(a, causal, 0.25)
	c.linearAttention(a)
	a.Delta.Apart = true
}

// linearAttention reads what layers have linear attention, and its numbers.
func (c *Config) linearAttention(a *Model) {
	var delta layer.DeltaNet
	a.Delta = &delta
	c.number(&delta.KeyHeads, "linear_num_key_heads", 16)
	c.number(&delta.ValueHeads, "linear_num_value_heads", 32)
	c.number(&delta.KeySize, "linear_key_head_dim", 128)
	c.number(&delta.ValueSize, "linear_value_head_dim", 128)
	c.number(&delta.Kernel, "linear_conv_kernel_dim", 4)
	types, full := c.layerTypes(a), each(max(1, c.whole("full_attention_interval", 4)))
	a.mark(Recurrent, func(layer int) bool {
		if types != nil {
			return types[layer] == "linear_attention"
		}
		return !full(layer)
	})
}
