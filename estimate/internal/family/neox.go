package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// GPTNeoX has LayerNorm, partly rotary, packed projections, biases.
var GPTNeoX = Register(&Family{
	Name:  "GPT-NeoX",
	style: style{raw: true, names: decoderNames{root: "gpt_neox", embed: "embed_in", last: "final_layer_norm", attention: "attention"}, norm: layerNorm, embedded: dropoutAs("emb_dropout"), block: neoxBlock, attention: neoxAttention, mlp: plainMLP("dense_h_to_4h", "act", "dense_4h_to_h")},
	Types: []Type{
		{Name: "gpt_neox", Base: "GPTNeoXModel", Read: readGPTNeoX},
	},
	GGUF: []GGUF{
		{Name: "gptneox", With: Transformer{Bias: true, Parallel: true, Activation: layer.UseGELU}, Rotary: true, Read: ggufGPTNeoX},
	},
})

func neoxAttention(_ Transformer, a *layer.Attention) {
	a.Packed, a.Joined, a.Widens, a.Names = true, true, true, packedNames
}

func neoxBlock(c Transformer, b blockParts) tape.Layer {
	if c.Parallel {
		return sideBySide("post_attention_dropout", "post_mlp_dropout", "input_layernorm", "post_attention_layernorm")(c, b)
	}
	return normedBefore("post_attention_dropout", "post_mlp_dropout")(c, b)
}

func readGPTNeoX(c *Config, a *Model) {
	a.Bias, a.Parallel, a.Dropout = c.Flag("attention_bias", true), c.Flag("use_parallel_residual", true), c.Dropout("hidden_dropout")
	if !a.Bias {
		c.Unknown("attention_bias", "false")
	}
	c.rotatedInPart(a, "GPTNeoXForCausalLM", 0.25)
}

func ggufGPTNeoX(m *Metadata, a *Model) {
	a.Parallel = m.Flag("gptneox.use_parallel_residual", a.Parallel)
}
