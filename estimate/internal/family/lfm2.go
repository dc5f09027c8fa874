package family

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// LFM2 is Llama with short convolutions in most blocks.
var LFM2 = &Family{
	Name: "LFM2",
	style: style{names: decoderNames{last: "embedding_norm", mlp: "feed_forward"}, block: func(_ Transformer, b blockParts) tape.Layer {
		return normedBeforeAs(b, "operator_norm", "ffn_norm", "", "")
	}, mlp: lfm2MLP, attention: lfm2Attention, recurrent: shortConv},
	Types: []Type{
		{Name: "lfm2", Base: "Lfm2Model", Keys: map[string]string{"block_ff_dim": "intermediate_size", "tie_embedding": "tie_word_embeddings"}, Read: readLFM2},
	},
	GGUF: []GGUF{{Name: "lfm2", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}}, Blocks: true, Read: ggufLFM2}, {Name: "lfm2moe", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}}, Blocks: true, Read: ggufLFM2MoE}},
}

func lfm2MLP(c Transformer) tape.Layer {
	return layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Names: &layer.GatedNames{Gate: "w1", Up: "w3", Down: "w2"}}
}

func lfm2Attention(_ Transformer, a *layer.Attention) {
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "out_proj", QNorm: "q_layernorm", KNorm: "k_layernorm"}
}

// ShortConv replaces attention in LFM2: a convolution over a few tokens between two gates.
type ShortConv struct{ Kernel int }

func shortConv(c Transformer) *recurrence {
	own := Own[ShortConv](c)
	if own == nil {
		return nil
	}
	keeps := setting.CacheSpec{Kind: setting.Recurrent, Mixer: "conv", Channels: c.Hidden, Kernel: own.Kernel}
	return replaced("conv", own.layer(c.Hidden), keeps)
}

func (s ShortConv) layer(hidden int) tape.Layer {
	width, kernel := min(hidden, setting.MaxField/3), s.Kernel
	parts := tape.Sequential{
		tape.As("conv", layer.Conv1d{In: width, Out: width, Kernel: kernel, Padding: kernel - 1, Groups: width, NoBias: true}),
		tape.As("in_proj", layer.Linear{In: width, Out: 3 * width, NoBias: true}),
		tape.As("out_proj", layer.Linear{In: width, Out: width, NoBias: true}),
	}
	return tape.Module{Name: "ShortConv", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		gates := f.Split(f.Permute(f.Call("in_proj", x), 0, 2, 1), 1, width, width, width)
		y := f.Call("conv", f.Mul(gates[0], gates[2]))
		y = f.Mul(gates[1], f.Part(y, 2, x.Dim(1)))
		return f.Call("out_proj", f.Copy(f.Permute(y, 0, 2, 1)))
	}}
}

// readLFM2 reads LFM2, in which some layers have attention and the others a short convolution.
func readLFM2(c *Config, a *Model) {
	if c.Flag("conv_bias", false) {
		c.Unknown("conv_bias", "true")
	}
	c.likeLlama(a)
	a.QKNorm = layer.NormHeads
	conv := ShortConv{}
	a.Own = &conv
	c.Number(&conv.Kernel, "conv_L_cache", 3)
	adjustFFN(c, a)
	types, attending := c.layerTypes(a, "conv", "full_attention"), c.List("full_attn_idxs")
	a.mark(Recurrent, func(layer int) bool {
		if types != nil {
			return types[layer] == "conv"
		}
		return attending != nil && !slices.Contains(attending, layer)
	})
}

// ggufLFM2 reads the convolutions of blocks without keys and values (src/models/lfm2.cpp).
func ggufLFM2(m *Metadata, a *Model) {
	conv := ShortConv{}
	a.Own = &conv
	m.must(&conv.Kernel, "shortconv.l_cache")
	m.withoutHeads(a)
}

// adjustFFN computes the MLP's width from the setting: two thirds, times a factor, rounded up to a
// multiple.
func adjustFFN(c *Config, a *Model) {
	if !c.Flag("block_auto_adjust_ff_dim", true) {
		return
	}
	a.FFN -= a.FFN/3 + (a.FFN%3+2)/3
	if !c.Has("block_ffn_dim_multiplier") {
		return
	}
	multiple := 0
	c.Times(&a.FFN, "block_ffn_dim_multiplier", a.FFN, c.Ratio("block_ffn_dim_multiplier", 1))
	c.Number(&multiple, "block_multiple_of", 256)
	if rest := a.FFN % multiple; rest != 0 {
		if a.FFN > LargestNumber-multiple {
			c.Unknown("block_multiple_of", "such a number")
		}
		a.FFN += multiple - rest
	}
}
