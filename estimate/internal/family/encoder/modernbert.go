package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// ModernBERT has LayerNorm before each part, rotary positions, gated MLP, windows.
var ModernBERT = &family.Family{
	Name:   "ModernBERT",
	Layers: modernBERT,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "modernbert", Base: "ModernBertModel", Read: readModernBERT}},
}

// modernBERT builds ModernBERT, which rotates queries and keys and attends within a window in most blocks.
func modernBERT(c family.Transformer) []tape.Layer {
	norm := layer.LayerNorm{Size: c.Hidden, NoBias: true}
	blocks := family.Stacked(c.Blocks, func(block int) int {
		if block == 0 {
			return -1 // without a norm before it
		}
		return int(c.Kind(block))
	}, func(_, block int) tape.Layer { return modernBlock(c, norm, block) })
	layers := []tape.Layer{tape.As("model", tape.Sequential{
		tape.As("embeddings", tape.Sequential{tape.As("tok_embeddings", layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}), tape.As("norm", norm), tape.As("drop", c.Drop())}),
		tape.As("rotary_emb", family.Frequencies{N: c.HeadWidth() / 2, Kinds: 2}),
		tape.As("layers", blocks),
		tape.As("final_norm", norm),
	})}
	if c.NoHead {
		return layers
	}
	if c.Classes != 0 && !c.OfTokens {
		layers = append(layers, tape.Inline(family.First{}))
	}
	layers = append(layers, tape.As("head", tape.Sequential{
		tape.As("dense", layer.Linear{In: c.Hidden, Out: c.Hidden, NoBias: true}), tape.As("act", layer.GELU{}), tape.As("norm", norm),
	}))
	if c.Classes != 0 {
		return append(layers, tape.As("drop", c.Drop()), tape.As("classifier", layer.Linear{In: c.Hidden, Out: c.Classes}))
	}
	decoder := layer.Linear{In: c.Hidden, Out: c.Vocab, Split: layer.ByColumns}
	if c.Tied {
		decoder.Tied = ".model.embeddings.tok_embeddings.weight"
	}
	return append(layers, tape.As("decoder", layer.Output{Linear: decoder}))
}

func modernBlock(c family.Transformer, norm tape.Layer, block int) tape.Layer {
	attention := layer.Attention{
		Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, NoBias: true, Packed: true, Rotary: true, Plain: c.Plain,
		Rotations: 2, Names: &layer.AttentionNames{Packed: "Wqkv", Out: "Wo"},
	}
	if c.Kind(block)&family.Windowed != 0 {
		attention.Window = c.Window
	}
	before := tape.Sequential{tape.As("attn_norm", norm)}
	if block == 0 {
		before = nil
	}
	return family.DecoderBlock{Sequential: tape.Sequential{
		tape.Skip(append(before, tape.As("attn", attention))...),
		tape.Skip(tape.As("mlp_norm", norm), tape.As("mlp", layer.GatedMLP{
			Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseGELU), Packed: true, Names: &layer.GatedNames{Both: "Wi", Down: "Wo"},
		})),
	}}
}

// readModernBERT reads ModernBERT, in which every third layer has no window.
func readModernBERT(c *family.Config, a *family.Model) {
	class := classes(c, "ForMaskedLM")
	if c.Flag("attention_bias", false) || c.Flag("mlp_bias", false) || c.Flag("norm_bias", false) || c.Flag("classifier_bias", false) || !c.Flag("decoder_bias", true) {
		c.Unknown("attention_bias, mlp_bias, norm_bias, classifier_bias, decoder_bias", "such a value")
	}
	c.Move("hidden_act", "hidden_activation")
	c.Encoder(a)
	a.Tied, a.NoHead, a.Dropout = c.Flag("tie_word_embeddings", true), class == c.Base, 0
	a.Wide = class == "ModernBertForMaskedLM"
	if !a.NoHead && !a.Wide {
		readHead(c, a, class)
		a.OfTokens, a.NoHead, a.Spans = a.NoHead, false, false
	}
	c.Set("sliding_window", max(1, c.Whole("local_attention", 128)/2))
	every := max(1, c.Whole("global_attn_every_n_layers", 3))
	c.Windows(a, 0, func(layer int) bool { return layer%every == 0 })
	c.Number(&a.Vocab, "vocab_size", 0)
}
