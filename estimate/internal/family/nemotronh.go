package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// NemotronH has one part in each layer: a mixer of Mamba 2, attention without rotation, an MLP without a
// gate, or a mixture of such MLPs (modeling_nemotron_h.py).
var NemotronH = &Family{
	Name: "Nemotron-H",
	style: style{
		names: decoderNames{embed: "embeddings", last: "norm_f"}, still: true, norm: nemotronHNorm, mlp: nemotronMLP, mixture: nemotronMixture, block: nemotronHBlock,
		recurrent: func(c Transformer) *recurrence {
			own := *setting.Or(Own[nemotronParts](c), &nemotronParts{})
			return replaced("mamba", layer.HeadMixer{Hidden: c.Hidden, HeadSpace: own.HeadSpace}, own.Keeps())
		},
	},
	Types: []Type{{Name: "nemotron_h", Base: "NemotronHModel", Read: readNemotronH}},
	GGUF:  []GGUF{{Name: "nemotron_h", Blocks: true, Read: ggufNemotronH}, {Name: "nemotron_h_moe", Blocks: true, Read: ggufNemotronH}},
}

// nemotronParts is what only Nemotron-H has.
type nemotronParts struct {
	layer.HeadSpace
	latent int // width that the experts read and write; 0 means that of the model
}

func nemotronHNorm(c Transformer) tape.Layer {
	return layer.RMSNorm{Size: c.Hidden, Unfused: true, Late: true, Widens: true}
}

func nemotronHBlock(c Transformer, b blockParts) tape.Layer {
	part := b.attention.Layer
	if c.kind&Unattended != 0 {
		part = b.mlp.Layer
	}
	return DecoderBlock{tape.Sequential{tape.Skip(tape.As("norm", b.norm), tape.As("mixer", part))}}
}

// nemotronMixture returns a mixture whose experts may work between two projections.
func nemotronMixture(c Transformer, m layer.MoE) tape.Layer {
	m.Ungated, m.Activation = true, setting.Or(c.Activation, layer.UseSquaredReLU)
	shared := c
	shared.FFN = m.Shared
	experts, latent := m, setting.Or(Own[nemotronParts](c), &nemotronParts{}).latent
	parts := tape.Sequential{tape.As("gate", m.Gate()), tape.As("shared_experts", nemotronMLP(shared))}
	if latent > 0 {
		experts.Hidden = latent
		parts = append(parts,
			tape.As("fc1_latent_proj", layer.Linear{In: c.Hidden, Out: latent, NoBias: !c.MLPBias}),
			tape.As("fc2_latent_proj", layer.Linear{In: latent, Out: c.Hidden, NoBias: !c.MLPBias}))
	}
	parts = append(parts, tape.As("experts", layer.Experts{MoE: experts}))
	return tape.Module{Name: "MoE", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		layer.Routed(f.Tape, f.Call("gate", x))
		y := x
		if latent > 0 {
			y = f.Call("fc1_latent_proj", y)
		}
		if y = f.Call("experts", y); latent > 0 {
			y = f.Call("fc2_latent_proj", y)
		}
		return f.Add(y, f.Call("shared_experts", x))
	}}
}

func readNemotronH(c *Config, a *Model) {
	types := nemotronLayers(c)
	if len(types) == 0 {
		c.Fail("layers_block_type", "it lists no layers")
		return
	}
	c.Set("num_hidden_layers", len(types))
	c.decoder(a, 8, false)
	c.Activation(a, c.Word("mlp_hidden_act"), "relu2")
	a.Tied, a.Bias, a.MLPBias = false, false, c.Flag("mlp_bias", false)
	own := &nemotronParts{HeadSpace: layer.HeadSpace{Bias: c.Flag("use_bias", false), Plain: !c.Flag("use_conv_bias", true)}}
	own.OutBias, a.Own = own.Bias, own
	c.stateType(a)
	size := 0
	c.Number(&own.Heads, "mamba_num_heads", 128)
	c.Number(&size, "mamba_head_dim", 64)
	c.Times(&own.Inner, "mamba_head_dim", own.Heads, float64(size))
	c.Number(&own.State, "ssm_state_size", 128)
	c.Number(&own.Groups, "n_groups", 8)
	c.Number(&own.Kernel, "conv_kernel", 4)
	c.Number(&own.Chunk, "chunk_size", 128)
	c.optional(&own.latent, "moe_latent_size")
	c.mixture(a, "n_routed_experts", 8, 2)
	c.Number(&a.ExpertFFN, "moe_intermediate_size", 7688)
	c.Number(&a.SharedFFN, "moe_shared_expert_intermediate_size", 7688)
	groups(c, a)
	a.Router, a.UnscaledTopK = layer.SigmoidRouter, !c.Flag("norm_topk_prob", true)
	// transformers has no layers for the prediction of several tokens, whatever these keys say, and does not read the others.
	c.Harmless("mtp_layers_block_type", "mtp_hybrid_override_pattern", "num_nextn_predict_layers", "moe_shared_expert_overlap", "expand", "use_mamba_kernels", "residual_in_fp32", "num_logits_to_keep")
	is := func(word string) func(int) bool { return func(block int) bool { return types[block] == word } }
	a.mark(Recurrent, is("linear_attention"))
	a.mark(Unattended, func(block int) bool { return types[block] == "mlp" || types[block] == "moe" })
	a.sparse(is("moe"))
}

// nemotronWords maps the letters of hybrid_override_pattern, and the words that transformers wrote up to
// 5.0, to those of today.
var nemotronWords = map[string]string{
	"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe",
	"mamba": "linear_attention", "attention": "full_attention",
	"linear_attention": "linear_attention", "full_attention": "full_attention", "mlp": "mlp", "moe": "moe",
}

// nemotronLayers returns what each layer has.
func nemotronLayers(c *Config) []string {
	types := c.Names("layers_block_type")
	if pattern := c.Word("hybrid_override_pattern"); types == nil && pattern != "" {
		for _, letter := range pattern {
			types = append(types, string(letter))
		}
	}
	if types == nil {
		types = []string{"M", "E", "*", "-"}
	}
	for i, word := range types {
		if types[i] = nemotronWords[word]; types[i] == "" {
			c.Unknown("layers_block_type", word)
		}
	}
	return types
}
