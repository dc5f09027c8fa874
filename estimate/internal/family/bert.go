package family

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// BERT: LayerNorm after each part, learned positions and token types, pooler.
var BERT = register(&Family{
	Name:   "BERT",
	layers: Transformer.bert,
	role:   encoder,
	Types: []Type{
		{Name: "bert", Base: "BertModel", Read: readBERT},
	},
	GGUF: []GGUF{
		{Name: "bert", With: Transformer{NoHead: true}, Read: ggufBERT},
	},
})

// RoBERTa: BERT with positions from the padding on, and heads of its own.
var RoBERTa = register(&Family{
	Name:    "RoBERTa",
	padding: 2,
	layers:  Transformer.roberta,
	role:    encoder,
	Types: []Type{
		{Name: "roberta", Base: "RobertaModel", Read: readRoBERTa},
		{Name: "xlm-roberta", Base: "XLMRobertaModel", Read: readXLMRoBERTa},
		{Name: "camembert", Base: "CamembertModel", Read: readCamemBERT},
	},
})

func (c Transformer) bert() []tape.Layer {
	return c.bertLayers(positions{Num: c.Positions, Dim: c.Hidden, buffered: true})
}

// roberta counts positions in each sequence, and its classifier reads the first token without a pooler.
func (c Transformer) roberta() []tape.Layer {
	layers := c.bertLayers(positions{Num: c.Positions, Dim: c.Hidden, each: true, padding: 2})
	if c.Classes != 0 && !c.NoHead {
		return append(layers[:2], c.firstClassifier(layer.Tanh{}))
	}
	return layers
}

// bertLayers are embeddings, blocks and head.
func (c Transformer) bertLayers(places positions) []tape.Layer {
	layers := []tape.Layer{
		tape.Named{Name: "embeddings", Layer: c.bertEmbeddings(places)},
		tape.Named{Name: "encoder", Layer: tape.Sequential{tape.Named{Name: "layer", Layer: tape.Repeat{N: c.Blocks, Layer: c.bertBlock()}}}},
	}
	if !c.NoHead {
		layers = append(layers, c.pooler())
	}
	if c.MaskedLM {
		layers = append(layers, c.maskedLM())
	}
	if c.Classes != 0 {
		layers = append(layers, tape.Named{Name: "dropout", Layer: c.dropout()}, tape.Named{Name: "classifier", Layer: layer.Linear{In: c.Hidden, Out: c.Classes}})
	}
	return layers
}

// bertEmbeddings are those of tokens, their types and their positions, which have their width.
func (c Transformer) bertEmbeddings(places positions) tape.Layer {
	width := places.Dim
	return tape.Sequential{
		tape.Named{Name: "word_embeddings", Layer: layer.Embedding{Num: c.Vocab, Dim: width, Split: true}},
		tape.Named{Name: "ids", Layer: numbers{c.Positions}},
		tape.Named{Name: "token_type_embeddings", Layer: tokenTypes{Num: setting.Or(c.Types, 2), Dim: width}},
		tape.Named{Name: "position_embeddings", Layer: places},
		tape.Named{Name: "LayerNorm", Layer: layer.LayerNorm{Size: width}},
		tape.Named{Name: "dropout", Layer: c.dropout()},
	}
}

// firstClassifier reads the first token, as RoBERTa and ELECTRA do.
func (c Transformer) firstClassifier(act tape.Layer) tape.Layer {
	return tape.Named{Name: "classifier", Layer: tape.Sequential{
		first{},
		tape.Inlined{Layer: c.dropout()},
		tape.Named{Name: "dense", Layer: layer.Linear{In: c.Hidden, Out: c.Hidden}},
		tape.Inlined{Layer: act},
		tape.Inlined{Layer: c.dropout()},
		tape.Named{Name: "out_proj", Layer: layer.Linear{In: c.Hidden, Out: c.Classes}},
	}}
}

// pooler is what BertModel and ViTModel make of the first token.
func (c Transformer) pooler() tape.Layer {
	return tape.Named{Name: "pooler", Layer: tape.Sequential{
		first{},
		tape.Named{Name: "dense", Layer: layer.Linear{In: c.Hidden, Out: c.Hidden}},
		tape.Named{Name: "activation", Layer: layer.Tanh{}},
	}}
}

// maskedLM is the head of BertForMaskedLM.
func (c Transformer) maskedLM() tape.Layer {
	decoder := layer.Linear{In: c.Hidden, Out: c.Vocab, Split: nn.ByColumns}
	if c.Tied {
		decoder.Tied = "..embeddings.word_embeddings.weight"
	}
	return tape.Named{Name: "cls", Layer: tape.Sequential{
		tape.Named{Name: "transform", Layer: tape.Sequential{
			tape.Named{Name: "dense", Layer: layer.Linear{In: c.Hidden, Out: c.Hidden}},
			tape.Named{Name: "transform_act_fn", Layer: c.Activation.Layer(layer.UseGELU)},
			tape.Named{Name: "LayerNorm", Layer: layer.LayerNorm{Size: c.Hidden}},
		}},
		tape.Named{Name: "decoder", Layer: decoder},
	}}
}

// bertBlock normalises after each part: LayerNorm(x + part(x)).
func (c Transformer) bertBlock() tape.Layer {
	return tape.Sequential{
		tape.Named{Name: "attention", Layer: afterNorm{
			body: tape.Sequential{tape.Named{Name: "self", Layer: layer.Attention{
				Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout,
				Names: &layer.AttentionNames{Q: "query", K: "key", V: "value"},
			}}},
			dense: layer.Linear{In: c.Heads * min(c.headSize(), setting.MaxField), Out: c.Hidden, Split: nn.ByRows}, dropout: c.dropout(), size: c.Hidden,
		}},
		tape.Inlined{Layer: afterNorm{
			body: tape.Sequential{tape.Named{Name: "intermediate", Layer: tape.Sequential{
				tape.Named{Name: "dense", Layer: layer.Linear{In: c.Hidden, Out: c.FFN, Split: nn.ByColumns}},
				tape.Named{Name: "intermediate_act_fn", Layer: c.Activation.Layer(layer.UseGELU)},
			}}},
			dense: layer.Linear{In: c.FFN, Out: c.Hidden, Split: nn.ByRows}, dropout: c.dropout(), size: c.Hidden,
		}},
	}
}

// afterNorm is LayerNorm(dropout(dense(body(x))) + x), whose last three parts
// stand together under the name "output".
type afterNorm struct {
	body           tape.Sequential
	dense, dropout tape.Layer
	size           int
}

// Kind names the row.
func (afterNorm) Kind() string { return "BertPart" }

func (l afterNorm) Declare(d *tape.Declaration) {
	l.body.Declare(d)
	d.Layer("output", denseNorm{l, tape.Tensor{}})
}

func (l afterNorm) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	y, err := l.body.Forward(t, x)
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Call("output", denseNorm{l, x}, y)
}

type denseNorm struct {
	afterNorm
	x tape.Tensor
}

// Kind names the row.
func (denseNorm) Kind() string { return "BertOutput" }

func (l denseNorm) Declare(d *tape.Declaration) {
	d.Layer("dense", l.dense)
	d.Layer("dropout", l.dropout)
	d.Layer("LayerNorm", layer.LayerNorm{Size: l.size})
}

func (l denseNorm) Forward(t *tape.Tape, y tape.Tensor) (tape.Tensor, error) {
	y, err := t.Call("dense", l.dense, y)
	if err == nil {
		y, err = t.Call("dropout", l.dropout, y)
	}
	if err == nil {
		y, err = tape.Add(t, y, l.x)
	}
	if err == nil {
		y, err = t.Call("LayerNorm", layer.LayerNorm{Size: l.size}, y)
	}
	return y, err
}

// tokenTypes adds the vector of each token's type.
type tokenTypes struct{ Num, Dim int }

// Kind names the row.
func (tokenTypes) Kind() string { return "Embedding" }

func (l tokenTypes) Declare(d *tape.Declaration) { layer.Embedding{Num: l.Num, Dim: l.Dim}.Declare(d) }

// numbers holds BERT's buffers, the numbers of positions and of types.
type numbers struct{ positions int }

// Kind names the row.
func (numbers) Kind() string { return "Buffers" }

func (l numbers) Declare(d *tape.Declaration) {
	for _, name := range []string{"position_ids", "token_type_ids"} {
		d.Add(tape.Param{Name: name, Shape: alloc.Shape{1, l.positions}, DType: alloc.Int64, Buffer: true})
	}
}

func (numbers) Forward(_ *tape.Tape, x tape.Tensor) (tape.Tensor, error) { return x, nil }

func (l tokenTypes) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := t.Rank(x, 3, "(batch, length, hidden)"); err != nil {
		return tape.Tensor{}, err
	}
	types, err := t.Const(alloc.Int64, x.Shape[0], x.Shape[1])
	if err != nil {
		return tape.Tensor{}, err
	}
	vectors, err := t.Op(tape.Op{In: []tape.Tensor{types}, Shape: append(types.Shape.Clone(), l.Dim), DType: t.Activation(), Params: true, Keep: []tape.Tensor{types}})
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{x, vectors}, Shape: x.Shape, PassGrad: true})
}

func readBERT(c *Config, a *Model) {
	c.bert(a, "Bert")
}

func readRoBERTa(c *Config, a *Model) { c.bert(a, "Roberta") }

func readXLMRoBERTa(c *Config, a *Model) {
	c.bert(a, "XLMRoberta")
}

func readCamemBERT(c *Config, a *Model) {
	c.bert(a, "Camembert")
}

// bert reads BERT and its successors, whose classes begin with a name.
func (c *Config) bert(a *Model, name string) {
	class := c.class(name+"ForMaskedLM", name+"ForSequenceClassification", name+"ForTokenClassification")
	if p := c.text("position_embedding_type"); p != "" && p != "absolute" {
		c.unknown("position_embedding_type", p)
	}
	if c.flag("add_cross_attention", false) {
		c.unknown("add_cross_attention", "true")
	}
	c.encoder(a)
	c.number(&a.Vocab, "vocab_size", 0)
	c.number(&a.Positions, "max_position_embeddings", 0)
	c.number(&a.Types, "type_vocab_size", 2)
	a.Tied = c.flag("tie_word_embeddings", true)
	switch strings.TrimPrefix(class, name) { // NoHead is without the pooler
	case "ForMaskedLM":
		a.NoHead, a.MaskedLM = true, true
	case "ForSequenceClassification", "ForTokenClassification":
		a.NoHead = strings.HasSuffix(class, "ForTokenClassification")
		a.Classes = c.labels()
	}
}

func ggufBERT(m *Metadata, a *Model) {
	learnedPositions(m, a)
	a.Types = m.rows("token_types.weight")
}
