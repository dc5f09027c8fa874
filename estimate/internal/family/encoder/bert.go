// Package encoder has the families that read a text all at once, as BERT does, one file each. It reads no files, and
// no package of families but family.
package encoder

import (
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// BERT has LayerNorm after each part, learned positions and token types, pooler.
var BERT = &family.Family{
	Name:   "BERT",
	Layers: bert,
	Role:   family.Encoder,
	Types: []family.Type{
		{Name: "bert", Base: "BertModel", Read: readBERT},
		{Name: "ernie", Base: "ErnieModel", Read: readERNIE},
	},
	GGUF: []family.GGUF{{Name: "bert", With: family.Transformer{Head: family.Head{NoHead: true}}, Read: ggufBERT}},
}

// RoBERTa is BERT with positions that start after the padding, and heads of its own.
var RoBERTa = &family.Family{
	Name:    "RoBERTa",
	Padding: 2,
	Layers:  roberta,
	Role:    family.Encoder,
	Types: []family.Type{
		{Name: "roberta", Base: "RobertaModel", Read: readBERT},
		{Name: "xlm-roberta", Base: "XLMRobertaModel", Read: readBERT},
		{Name: "camembert", Base: "CamembertModel", Read: readBERT},
		{Name: "data2vec-text", Base: "Data2VecTextModel", Read: readBERT},
	},
}

func bert(c family.Transformer) []tape.Layer {
	return bertLayers(c, family.Positions{Num: c.Positions, Dim: c.Hidden, Buffered: true})
}

// roberta builds RoBERTa: positions count in each sequence, and the classifier reads the first
// token without a pooler.
func roberta(c family.Transformer) []tape.Layer {
	return robertaHeads(c, text{added: bertEmbeddings(c, robertaPositions(c)), blocks: c.Blocks, block: bertBlock(c)}.layers(c))
}

func robertaPositions(c family.Transformer) family.Positions {
	return family.Positions{Num: c.Positions, Dim: c.Hidden, Each: true, Padding: 2}
}

func robertaHeads(c family.Transformer, body []tape.Layer) []tape.Layer {
	if c.Classes != 0 && !c.NoHead && !c.Pooler {
		return append(body, firstClassifier(c, layer.Tanh{}))
	}
	return append(body, bertHeads(c)...)
}

// bertLayers returns embeddings, blocks and head.
func bertLayers(c family.Transformer, positions family.Positions) []tape.Layer {
	return append(text{added: bertEmbeddings(c, positions), blocks: c.Blocks, block: bertBlock(c)}.layers(c), bertHeads(c)...)
}

// bertHeads returns the pooler and the head.
func bertHeads(c family.Transformer) []tape.Layer {
	var layers []tape.Layer
	if family.Own[pretraining](c) != nil {
		return append(layers, tape.Inline(pretrainingHeads(c)))
	}
	if !c.NoHead {
		layers = append(layers, c.Pooled())
	}
	if c.MaskedLM {
		layers = append(layers, maskedLM(c))
	}
	switch {
	case family.Own[nextSentence](c) != nil:
		layers = append(layers, tape.As("cls.seq_relationship", layer.Linear{In: c.Hidden, Out: 2}))
	case c.Classes != 0:
		layers = append(layers, classifier(c, c.Drop())...)
	}
	return layers
}

// nextSentence is a BERT with the head that finds whether a sentence follows another.
type nextSentence struct{}

// pretraining is a BERT with that head and the one of masked tokens.
type pretraining struct{}

// pretrainingHeads returns the pooler and both heads. The output is the logits of the tokens.
func pretrainingHeads(c family.Transformer) tape.Layer {
	const follows = "cls.seq_relationship"
	parts := tape.Sequential{c.Pooled(), maskedLM(c), tape.As(follows, layer.Linear{In: c.Hidden, Out: 2})}
	return tape.Module{Name: "BertPreTrainingHeads", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		pooled := f.Call("pooler", x)
		logits := f.Call("cls", x)
		*family.SentenceScores.Of(f.Tape) = f.Call(follows, pooled)
		return logits
	}}
}

// bertEmbeddings returns the embeddings of token types and positions.
func bertEmbeddings(c family.Transformer, positions family.Positions) []tape.Layer {
	names := []string{"token_type_ids"}
	if !positions.Buffered {
		names = append(names, "position_ids")
	}
	return []tape.Layer{
		tape.As("ids", counted{c.Positions, names}),
		tape.As("token_type_embeddings", tokenTypes{Num: setting.Or(c.Types, 2), Dim: positions.Dim}),
		tape.As("position_embeddings", positions),
	}
}

// maskedLM is the head of BertForMaskedLM.
func maskedLM(c family.Transformer) tape.Layer {
	parts := predictor{act: c.Activation.Layer(layer.UseGELU), tied: "..embeddings.word_embeddings.weight", names: [4]string{"dense", "transform_act_fn", "LayerNorm", "decoder"}, apart: true}.layers(c)
	return tape.As("cls", tape.Sequential{tape.As("transform", parts[:3]), parts[3]})
}

// bertBlock normalises after each part: LayerNorm(x + part(x)).
func bertBlock(c family.Transformer) tape.Layer { return bertBlockOf(c, bertAttention(c)) }

func bertAttention(c family.Transformer) layer.Attention {
	return layer.Attention{
		Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout,
		Names: &layer.AttentionNames{Q: "query", K: "key", V: "value"},
	}
}

func bertBlockOf(c family.Transformer, attention layer.Attention) tape.Layer {
	return tape.Sequential{
		tape.As("attention", afterNorm{
			body:  tape.Sequential{tape.As("self", attention)},
			dense: layer.Linear{In: c.Heads * min(c.HeadWidth(), setting.MaxField), Out: c.Hidden, Split: layer.ByRows}, dropout: c.Drop(), size: c.Hidden,
		}),
		tape.Inline(afterNorm{
			body: tape.Sequential{tape.As("intermediate", tape.Sequential{
				tape.As("dense", layer.Linear{In: c.Hidden, Out: c.FFN, Split: layer.ByColumns}),
				tape.As("intermediate_act_fn", c.Activation.Layer(layer.UseGELU)),
			})},
			dense: layer.Linear{In: c.FFN, Out: c.Hidden, Split: layer.ByRows}, dropout: c.Drop(), size: c.Hidden,
		}),
	}
}

// afterNorm is LayerNorm(dropout(dense(body(x))) + x). Its last three layers are named under
// "output".
type afterNorm struct {
	body           tape.Sequential
	dense, dropout tape.Layer
	size           int
}

func (afterNorm) Kind() string { return "BertPart" }

func (l afterNorm) Declare(d *tape.Declaration) {
	l.body.Declare(d)
	d.Layer("output", denseNorm{l, tape.Tensor{}})
}

func (l afterNorm) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	y := l.body.Forward(t, x)
	return t.Call("output", denseNorm{l, x}, y)
}

type denseNorm struct {
	afterNorm
	x tape.Tensor
}

func (denseNorm) Kind() string { return "BertOutput" }

func (l denseNorm) Declare(d *tape.Declaration) {
	d.Layer("dense", l.dense)
	d.Layer("dropout", l.dropout)
	d.Layer("LayerNorm", layer.LayerNorm{Size: l.size})
}

func (l denseNorm) Forward(t *tape.Tape, y tape.Tensor) tape.Tensor {
	y = t.Call("dense", l.dense, y)
	y = t.Call("dropout", l.dropout, y)
	y = t.Sum(y, l.x)
	return t.Call("LayerNorm", layer.LayerNorm{Size: l.size}, y)
}

// tokenTypes adds the vector of each token's type.
type tokenTypes struct{ Num, Dim int }

func (tokenTypes) Kind() string { return "Embedding" }

func (l tokenTypes) Declare(d *tape.Declaration) { layer.Embedding{Num: l.Num, Dim: l.Dim}.Declare(d) }

func (l tokenTypes) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	types := t.Const(alloc.Int64, x.Shape[0], x.Shape[1])
	vectors := t.Op(tape.Op{In: []tape.Tensor{types}, Shape: append(slices.Clone(types.Shape), l.Dim), DType: t.Activation(), Params: true, Keep: []tape.Tensor{types}})
	return t.Op(tape.Op{In: []tape.Tensor{x, vectors}, Shape: x.Shape, PassGrad: true})
}

// readBERT reads BERT and its successors.
func readBERT(c *family.Config, a *family.Model) {
	ends := []string{"ForMaskedLM", "ForCausalLM", "LMHeadModel", "ForNextSentencePrediction"}
	if c.Base == "BertModel" || c.Base == "AlbertModel" {
		ends = append(ends, "ForPreTraining")
	}
	class := classes(c, ends...)
	if p := c.Word("position_embedding_type"); p != "" && p != "absolute" {
		c.Unknown("position_embedding_type", p)
	}
	if c.Flag("add_cross_attention", false) {
		c.Unknown("add_cross_attention", "true")
	}
	readText(c, a, 0)
	c.Number(&a.Types, "type_vocab_size", 2)
	switch { // NoHead means without the pooler
	case strings.HasSuffix(class, "ForMaskedLM"), writes(c, class):
		a.NoHead, a.MaskedLM = true, true
	case strings.HasSuffix(class, "ForNextSentencePrediction"):
		a.Own = &nextSentence{}
	case strings.HasSuffix(class, "ForPreTraining"):
		a.Own = &pretraining{}
	default:
		readHead(c, a, class)
	}
}

// readERNIE reads ERNIE 1 to 3, which is BERT unless tokens have vectors of tasks.
func readERNIE(c *family.Config, a *family.Model) {
	if c.Flag("use_task_id", false) {
		c.Unknown("use_task_id", "true")
	}
	readBERT(c, a)
}

func ggufBERT(m *family.Metadata, a *family.Model) {
	family.LearnedPositions(m, a)
	a.Types = m.Rows("token_types.weight")
}
