package encoder

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// NomicBERT is BERT with rotary positions, a gated MLP and no biases in the blocks (transformers'
// modeling_nomic_bert.py).
var NomicBERT = &family.Family{
	Name:   "Nomic BERT",
	Layers: nomicBERT,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "nomic_bert", Base: "NomicBertModel", Read: readRotary}},
}

// GTE is BERT with rotary positions, a gated MLP and dropout in the middle of the MLP (modeling_gte.py).
var GTE = &family.Family{
	Name:   "GTE",
	Layers: gte,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "gte", Base: "GteModel", Read: readGTE}},
}

// JinaV3 is RoBERTa with rotary positions (modeling_jina_embeddings_v3.py).
var JinaV3 = &family.Family{
	Name:   "Jina Embeddings v3",
	Layers: jinaV3,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "jina_embeddings_v3", Base: "JinaEmbeddingsV3Model", Read: readJinaV3}},
}

// rotaryBody returns embeddings and blocks: rotary attention and this MLP, each followed by a norm. buffered means that
// the ids of positions and of token types are buffers.
func rotaryBody(c family.Transformer, mlp tape.Layer, bias, buffered bool) []tape.Layer {
	var added []tape.Layer
	if buffered {
		added = append(added, tape.As("ids", counted{c.Positions, []string{"position_ids", "token_type_ids"}}))
	}
	if c.Types > 0 {
		added = append(added, tape.As("token_type_embeddings", tokenTypes{Num: c.Types, Dim: c.Hidden}))
	}
	norm := layer.LayerNorm{Size: c.Hidden}
	attention := layer.Attention{
		Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, NoBias: !bias, Rotary: true, Plain: c.Plain, Dropout: c.ScoreDropout,
	}
	block := family.DecoderBlock{Sequential: tape.Sequential{
		tape.Skip(tape.As("self_attn", attention), tape.As("post_attention_dropout", c.Drop())), tape.As("post_attention_layernorm", norm),
		tape.Skip(tape.As("mlp", mlp), tape.As("post_mlp_dropout", c.Drop())), tape.As("post_mlp_layernorm", norm),
	}}
	return []tape.Layer{
		text{added: added}.embeddings(c),
		tape.As("rotary_emb", family.Frequencies{N: c.HeadWidth() / 2, Kinds: 1}),
		tape.As("layers", tape.Repeat{N: c.Blocks, Layer: block}),
	}
}

func nomicBERT(c family.Transformer) []tape.Layer {
	mlp := layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation}
	return append(rotaryBody(c, mlp, false, true), bertHeads(c)...)
}

func gte(c family.Transformer) []tape.Layer {
	return append(rotaryBody(c, gteMLP(c), true, false), bertHeads(c)...)
}

func gteMLP(c family.Transformer) tape.Layer {
	up := layer.Linear{In: c.Hidden, Out: c.FFN, NoBias: true, Split: layer.ByColumns}
	parts := tape.Sequential{
		tape.As("gate_proj", up), tape.As("up_proj", up), tape.As("dropout", c.Drop()),
		tape.As("down_proj", layer.Linear{In: c.FFN, Out: c.Hidden, Split: layer.ByRows}),
	}
	return tape.Module{Name: "GteMLP", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		gate := f.Apply(c.Activation.Layer(layer.UseGELU), f.Call("gate_proj", x))
		return f.Call("down_proj", f.Call("dropout", f.Mul(gate, f.Call("up_proj", x))))
	}}
}

func jinaV3(c family.Transformer) []tape.Layer {
	mlp := layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Names: layer.MlpNames}
	return robertaHeads(c, rotaryBody(c, mlp, true, true))
}

// readRotary reads what these families have in common. Their base class has no pooler.
func readRotary(c *family.Config, a *family.Model) {
	class := c.Class(rotaryClasses(c)...)
	c.Usual("head_dim", c.Whole("hidden_size", 0)/max(1, c.Whole("num_attention_heads", 1))) // it need not divide
	c.Number(&a.HeadSize, "head_dim", 0)
	readText(c, a, 0)
	a.Dropout, a.ScoreDropout = c.Dropout("hidden_dropout_prob"), c.Dropout("attention_probs_dropout_prob")
	a.Types = c.Whole("type_vocab_size", 2)
	switch {
	case strings.HasSuffix(class, "ForMaskedLM"):
		a.NoHead, a.MaskedLM = true, true
	case class == c.Base:
		a.NoHead = true
	default:
		readHead(c, a, class)
	}
}

func rotaryClasses(c *family.Config) []string {
	var known []string
	for _, end := range []string{"ForMaskedLM", "ForSequenceClassification", "ForTokenClassification"} {
		known = append(known, c.Named(end))
	}
	if c.Base == "JinaEmbeddingsV3Model" {
		known = append(known, c.Named("ForQuestionAnswering"))
	}
	return known
}

// readGTE reads GTE, whose predicted tokens have one bias.
func readGTE(c *family.Config, a *family.Model) {
	readRotary(c, a)
	a.HeadBias, a.Stored = false, nil
}

// readJinaV3 reads Jina's model, whose base class has a pooler.
func readJinaV3(c *family.Config, a *family.Model) {
	readRotary(c, a)
	a.NoHead = a.NoHead && (a.MaskedLM || a.Classes > 0)
}
