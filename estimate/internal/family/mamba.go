package family

import (
	"encoding/json"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Mamba has state-space mixers.
var Mamba = &Family{
	Name:   "Mamba",
	Layers: mamba,
	keeps:  func(c Transformer, _ int) []setting.CacheSpec { return []setting.CacheSpec{stateSpace(c).Keeps()} },
	Types:  []Type{{Name: "mamba", Base: "MambaModel", Read: readMamba}},
	GGUF:   []GGUF{{Name: "mamba", Mixer: true, Read: ggufMamba}},
}

// Mamba2 is Mamba with heads, whose states are computed chunk by chunk (modeling_mamba2.py).
var Mamba2 = &Family{
	Name: "Mamba 2",
	Layers: func(c Transformer) []tape.Layer {
		return mixers(c, layer.HeadMixer{Hidden: c.Hidden, HeadSpace: headSpace(c)})
	},
	keeps: func(c Transformer, _ int) []setting.CacheSpec { return []setting.CacheSpec{headSpace(c).Keeps()} },
	Types: []Type{{Name: "mamba2", Base: "Mamba2Model", Read: readMamba2}},
	GGUF:  []GGUF{{Name: "mamba2", Mixer: true, Read: ggufMamba2}},
}

// mamba builds Mamba.
func mamba(c Transformer) []tape.Layer {
	return mixers(c, layer.MambaMixer{Hidden: c.Hidden, StateSpace: *stateSpace(c)})
}

// mixers returns blocks with a state-space mixer, and a residual stream in float32.
func mixers(c Transformer, mixer tape.Layer) []tape.Layer {
	block := layer.MambaBlock{Norm: layer.RMSNorm{Size: c.Hidden, Unfused: true}, Mixer: mixer}
	layers := []tape.Layer{tape.As("backbone", tape.Sequential{
		tape.As("embeddings", layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}),
		tape.As("layers", tape.Repeat{N: c.Blocks, Layer: block}),
		tape.As("norm_f", layer.RMSNorm{Size: c.Hidden, Unfused: true}),
	})}
	if c.NoHead {
		return layers
	}
	head := layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: layer.ByColumns}
	if c.Tied {
		head.Tied = "backbone.embeddings.weight"
	}
	return slices.Concat(layers, []tape.Layer{tape.Inline(layer.Narrowed{})}, layer.Headed(tape.As("lm_head", head), false))
}

func stateSpace(c Transformer) *layer.StateSpace {
	s := layer.StateSpace{}
	if own := Own[layer.StateSpace](c); own != nil {
		s = *own
	}
	hidden := min(max(c.Hidden, 0), setting.MaxField/2)
	s.Inner, s.State, s.Rank, s.Kernel = setting.Or(s.Inner, 2*hidden), setting.Or(s.State, 16), setting.Or(s.Rank, (hidden+15)/16), setting.Or(s.Kernel, 4)
	return &s
}

func readMamba(c *Config, a *Model) {
	class := c.Class("MambaForCausalLM")
	a.NoHead, a.Tied, a.Heads = class == c.Base, c.Flag("tie_word_embeddings", true), 1
	if !c.Flag("use_conv_bias", true) {
		c.Unknown("use_conv_bias", "false")
	}
	s := layer.StateSpace{Bias: c.Flag("use_bias", false)}
	a.Own = &s
	c.stateType(a)
	c.Number(&a.Hidden, "hidden_size", 0)
	c.Number(&a.Blocks, "num_hidden_layers", 0)
	c.Number(&a.Vocab, "vocab_size", 0)
	c.Number(&s.State, "state_size", 16)
	c.Number(&s.Kernel, "conv_kernel", 4)
	if c.Times(&s.Inner, "expand", a.Hidden, c.Ratio("expand", 2)); c.Given("intermediate_size") {
		c.optional(&s.Inner, "intermediate_size")
	}
	var rank Whole
	if json.Unmarshal(c.Value("time_step_rank"), &rank) != nil { // "auto"
		c.Set("time_step_rank", (a.Hidden+15)/16)
	}
	c.Number(&s.Rank, "time_step_rank", 0)
}

// headSpace returns the sizes of Mamba 2's mixer, or zeros for another family.
func headSpace(c Transformer) layer.HeadSpace {
	if own := Own[layer.HeadSpace](c); own != nil {
		return *own
	}
	return layer.HeadSpace{}
}

func readMamba2(c *Config, a *Model) {
	class := c.Class("Mamba2ForCausalLM")
	c.Harmless("head_dim")       // times num_heads it is the inner width, which transformers checks
	c.Harmless("time_step_rank") // it is Mamba's, and has no effect here
	a.NoHead, a.Tied, a.Heads = class == c.Base, c.Flag("tie_word_embeddings", false), 1
	if !c.Flag("residual_in_fp32", true) {
		c.Unknown("residual_in_fp32", "false")
	}
	c.Number(&a.Hidden, "hidden_size", 0)
	c.Number(&a.Blocks, "num_hidden_layers", 0)
	c.Number(&a.Vocab, "vocab_size", 0)
	s := layer.HeadSpace{Bias: c.Flag("use_bias", false), Plain: !c.Flag("use_conv_bias", true)}
	a.Own, s.OutBias = &s, s.Bias
	c.stateType(a)
	c.Times(&s.Inner, "expand", a.Hidden, c.Ratio("expand", 2))
	c.Number(&s.Heads, "num_heads", 128)
	c.Number(&s.State, "state_size", 128)
	c.Number(&s.Groups, "n_groups", 8)
	c.Number(&s.Kernel, "conv_kernel", 4)
	c.Number(&s.Chunk, "chunk_size", usualChunk)
}

// usualChunk is the number of tokens that Mamba 2 computes at once. GGUF files do not say it.
const usualChunk = 256

// ggufMamba2 reads the sizes of Mamba 2, whose number of heads is stored where Mamba has a rank
// (src/models/mamba2.cpp).
func ggufMamba2(m *Metadata, a *Model) {
	s := layer.HeadSpace{Chunk: usualChunk}
	a.Own = &s
	m.must(&s.Inner, "ssm.inner_size")
	m.must(&s.State, "ssm.state_size")
	m.must(&s.Heads, "ssm.time_step_rank")
	m.must(&s.Groups, "ssm.group_count")
	m.must(&s.Kernel, "ssm.conv_kernel")
}

func ggufMamba(m *Metadata, a *Model) {
	var s layer.StateSpace
	a.Own = &s
	m.must(&s.Inner, "ssm.inner_size")
	m.must(&s.State, "ssm.state_size")
	m.must(&s.Rank, "ssm.time_step_rank")
	m.must(&s.Kernel, "ssm.conv_kernel")
}
