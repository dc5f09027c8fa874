package family

import (
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// The families in this file have attention in some blocks and Mamba's mixer in the others.

// GraniteHybrid is Granite with mixers of Mamba 2, and an MLP for every token, alone or beside a
// mixture (modeling_granitemoehybrid.py).
var GraniteHybrid = &Family{
	Name: "Granite 4",
	style: style{
		embedded: multiplied, after: multiplied, block: graniteHybridBlock, mlp: graniteShared, mixture: graniteBoth,
		recurrent: func(c Transformer) *recurrence {
			s := headSpace(c)
			return replaced("mamba", layer.HeadMixer{Hidden: c.Hidden, HeadSpace: s}, s.Keeps())
		},
	},
	Types: []Type{
		{Name: "granitemoehybrid", Base: "GraniteMoeHybridModel", Keys: map[string]string{"layers_block_type": "layer_types"}, Read: readGraniteHybrid},
	},
	GGUF: []GGUF{{Name: "granitehybrid", Blocks: true, Read: ggufGraniteHybrid}},
}

// Jamba is Llama without rotation, with mixers of Mamba that have norms of their own, and a mixture in every other block
// (modeling_jamba.py).
var Jamba = &Family{
	Name: "Jamba",
	style: style{
		still: true, names: decoderNames{last: "final_layernorm", mlp: "feed_forward"}, block: preFF, mixture: func(_ Transformer, m layer.MoE) tape.Layer { return routedBy(m, layer.RoundedRouter) },
		recurrent: func(c Transformer) *recurrence {
			s := *stateSpace(c)
			return replaced("mamba", layer.MambaMixer{Hidden: c.Hidden, StateSpace: s}, s.Keeps())
		},
	},
	Types: []Type{{Name: "jamba", Base: "JambaModel", Keys: map[string]string{"num_local_experts": "num_experts"}, Read: readJamba}},
	GGUF:  []GGUF{{Name: "jamba", With: Transformer{Mixture: Mixture{UnscaledTopK: true}}, Blocks: true, Read: ggufJamba}},
}

// graniteShared returns the MLP that every token passes.
func graniteShared(c Transformer) tape.Layer {
	names := &layer.GatedNames{Both: "input_linear", Down: "output_linear"}
	return tape.Sequential{tape.As("shared_mlp", layer.GatedMLP{Hidden: c.Hidden, FFN: c.SharedFFN, Activation: c.Activation, Packed: true, Names: names})}
}

// graniteBoth adds the outputs of this MLP and of the mixture.
func graniteBoth(c Transformer, m layer.MoE) tape.Layer {
	m.Router, m.Shared = layer.TopRouter, 0
	parts := tape.Sequential{tape.As("block_sparse_moe", m), graniteShared(c).(tape.Sequential)[0]}
	return tape.Module{Name: "GraniteMoE", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		return f.Add(f.Call("block_sparse_moe", x), f.Call("shared_mlp", x))
	}}
}

func graniteHybridBlock(_ Transformer, b blockParts) tape.Layer {
	return DecoderBlock{tape.Sequential{
		tape.Skip(tape.As("input_layernorm", b.norm), b.attention, tape.Inline(layer.Multiple{})),
		tape.Skip(tape.As("post_attention_layernorm", b.norm), tape.Inline(b.mlp.Layer), tape.Inline(layer.Multiple{})),
	}}
}

func readGraniteHybrid(c *Config, a *Model) {
	c.Harmless("mamba_d_head") // times mamba_n_heads it is the inner width, which transformers checks
	c.noBias()
	c.likeLlama(a)
	c.Number(&a.SharedFFN, "shared_intermediate_size", 1024)
	if c.Whole("num_local_experts", 8) > 0 {
		c.mixture(a, "num_local_experts", 8, 2)
	}
	headSpaceOf(c, a)
	types := c.layerTypes(a, "mamba", "linear_attention", "attention", "full_attention")
	a.mark(Recurrent, func(block int) bool {
		return types == nil || types[block] == "mamba" || types[block] == "linear_attention"
	})
	if c.Word("position_embedding_type") != "rope" {
		a.mark(NoRotation, func(int) bool { return true })
	}
}

// headSpaceOf reads the sizes of Mamba 2's mixer by the names that they have in hybrids.
func headSpaceOf(c *Config, a *Model) *layer.HeadSpace {
	s := &layer.HeadSpace{Bias: c.Flag("mamba_proj_bias", false), Plain: !c.Flag("mamba_conv_bias", true)}
	a.Own, s.OutBias = s, s.Bias
	c.stateType(a)
	c.Times(&s.Inner, "mamba_expand", a.Hidden, c.Ratio("mamba_expand", 2))
	c.Number(&s.Heads, "mamba_n_heads", 128)
	c.Number(&s.State, "mamba_d_state", 256)
	c.Number(&s.Groups, "mamba_n_groups", 1)
	c.Number(&s.Kernel, "mamba_d_conv", 4)
	c.Number(&s.Chunk, "mamba_chunk_size", usualChunk)
	c.Harmless("num_logits_to_keep") // of generation
	return s
}

func readJamba(c *Config, a *Model) {
	c.decoder(a, 8, false)
	c.Activation(a, c.Word("hidden_act"), "silu")
	if !c.Flag("mamba_conv_bias", true) {
		c.Unknown("mamba_conv_bias", "false")
	}
	s := layer.StateSpace{Bias: c.Flag("mamba_proj_bias", false), Normed: true}
	a.Own = &s
	c.stateType(a)
	c.Times(&s.Inner, "mamba_expand", a.Hidden, c.Ratio("mamba_expand", 2))
	c.Number(&s.State, "mamba_d_state", 16)
	c.Number(&s.Kernel, "mamba_d_conv", 4)
	var rank Whole
	if json.Unmarshal(c.Value("mamba_dt_rank"), &rank) != nil { // "auto"
		c.Set("mamba_dt_rank", (a.Hidden+15)/16)
	}
	c.Number(&s.Rank, "mamba_dt_rank", 0)
	every, from := max(1, c.Whole("attn_layer_period", 8)), c.Whole("attn_layer_offset", 4)
	a.mark(Recurrent, func(block int) bool { return block%every != from })
	if c.Whole("num_experts", 16) == 1 {
		return
	}
	c.mixture(a, "num_experts", 16, 2)
	a.UnscaledTopK = true
	step, first := max(1, c.Whole("expert_layer_period", 2)), c.Whole("expert_layer_offset", 1)
	if first >= a.Blocks {
		a.Experts = 0
	}
	a.mark(Sparse, func(block int) bool { return block%step == first })
}

// ggufGraniteHybrid reads the keys of src/models/granite-hybrid.cpp. Without experts, the MLP's
// width is that of the shared one.
func ggufGraniteHybrid(m *Metadata, a *Model) {
	ggufMamba2(m, a)
	m.withoutHeads(a)
	if a.SharedFFN = a.FFN; a.Experts > 0 {
		m.must(&a.SharedFFN, "expert_shared_feed_forward_length")
	}
	if !m.Flag(m.architecture+".rope.scaling.finetuned", true) {
		a.mark(NoRotation, func(int) bool { return true })
	}
}

// ggufJamba reads the keys of src/models/jamba.cpp. The tensors show which blocks have experts.
func ggufJamba(m *Metadata, a *Model) {
	ggufMamba(m, a)
	if s := Own[layer.StateSpace](a.Transformer); s != nil {
		s.Normed = true
	}
	m.withoutHeads(a)
	routed := func(block int) bool { return m.has(fmt.Sprintf("blk.%d.ffn_gate_inp.weight", block)) }
	if a.mark(Sparse, routed); !slices.ContainsFunc(a.Kinds, func(k BlockKind) bool { return k&Sparse != 0 }) {
		a.Experts, a.TopK = 0, 0
	}
}
