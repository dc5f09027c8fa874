package encoder

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// EuroBERT is Llama without a causal mask: tokens attend in both directions (transformers' modeling_eurobert.py).
var EuroBERT = &family.Family{
	Name:   "EuroBERT",
	Layers: euroBERT,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "eurobert", Base: "EuroBertModel", Read: readEuroBERT}},
}

// poolsFirst is a EuroBERT that classifies by the first token; poolsMean is one that classifies by the mean of all.
type (
	poolsFirst struct{}
	poolsMean  struct{}
)

func euroBERT(c family.Transformer) []tape.Layer {
	norm := layer.RMSNorm{Size: c.Hidden, Unfused: true}
	block := family.DecoderBlock{Sequential: tape.Sequential{
		tape.Skip(tape.As("input_layernorm", norm), tape.As("self_attn", layer.Attention{
			Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadSize: c.HeadSize, NoBias: !c.AttentionBias, Rotary: true, Plain: c.Plain, Dropout: c.ScoreDropout,
		})),
		tape.Skip(tape.As("post_attention_layernorm", norm), tape.As("mlp", layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Bias: c.MLPBias})),
	}}
	layers := []tape.Layer{tape.As("model", tape.Sequential{
		tape.As("embed_tokens", layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}),
		tape.As("rotary_emb", family.Frequencies{N: c.HeadWidth() / 2, Kinds: 1}),
		tape.As("layers", tape.Repeat{N: c.Blocks, Layer: block}),
		tape.As("norm", norm),
	})}
	dense := []tape.Layer{tape.As("dense", layer.Linear{In: c.Hidden, Out: c.Hidden}), tape.As("activation", layer.GELU{})}
	last := tape.As("classifier", layer.Linear{In: c.Hidden, Out: c.Classes})
	switch {
	case c.MaskedLM:
		head := layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: !c.MLPBias, Split: layer.ByColumns}
		if c.Tied {
			head.Tied = ".model.embed_tokens.weight"
		}
		return append(layers, tape.As("lm_head", layer.Output{Linear: head}))
	case c.Classes == 0:
		return layers
	case c.OfTokens:
		return append(layers, last)
	case family.Own[poolsFirst](c) != nil:
		return append(append(layers, tape.Inline(family.First{})), append(dense, last)...)
	case family.Own[poolsMean](c) != nil:
		return append(append(layers, tape.Inline(meanTime{})), append(dense, last)...)
	}
	return append(append(layers, dense...), last, tape.Inline(meanTime{}))
}

func readEuroBERT(c *family.Config, a *family.Model) {
	class := c.Class(c.Named("ForMaskedLM"), c.Named("ForSequenceClassification"), c.Named("ForTokenClassification"))
	c.Sizes(&a.Transformer)
	c.Number(&a.Vocab, "vocab_size", 0)
	c.Number(&a.KVHeads, "num_key_value_heads", a.Heads)
	if c.Has("head_dim") {
		c.Number(&a.HeadSize, "head_dim", 0)
	}
	c.Activation(a, c.Word("hidden_act"), "silu")
	a.Tied, a.AttentionBias, a.MLPBias = c.Flag("tie_word_embeddings", false), c.Flag("attention_bias", false), c.Flag("mlp_bias", false)
	a.ScoreDropout = c.Dropout("attention_dropout")
	a.NoHead = true
	switch {
	case strings.HasSuffix(class, "ForMaskedLM"):
		a.MaskedLM, a.Wide = true, true
		return
	case class == c.Base:
		return
	}
	a.Classes, a.OfTokens = c.Labels(), strings.HasSuffix(class, "ForTokenClassification")
	switch pooling := c.Word("classifier_pooling"); pooling {
	case "bos":
		a.Own = &poolsFirst{}
	case "mean":
		a.Own = &poolsMean{}
	case "late", "":
	default:
		c.Unknown("classifier_pooling", pooling)
	}
}
