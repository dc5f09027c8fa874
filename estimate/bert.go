package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

func (c Transformer) bert() []Layer {
	layers := []Layer{
		Named{"embeddings", c.bertEmbeddings(c.Hidden)},
		Named{"encoder", Sequential{Named{"layer", Repeat{N: c.Blocks, Layer: c.bertBlock()}}}},
	}
	if c.Family == RoBERTa && c.Classes != 0 && !c.NoHead {
		return append(layers, c.firstClassifier(Tanh{}))
	}
	if !c.NoHead {
		layers = append(layers, c.pooler())
	}
	if c.MaskedLM {
		layers = append(layers, c.maskedLM())
	}
	if c.Classes != 0 {
		layers = append(layers, Named{"dropout", c.dropout()}, Named{"classifier", Linear{In: c.Hidden, Out: c.Classes}})
	}
	return layers
}

// bertEmbeddings are those of tokens, their types and their positions, of a width.
func (c Transformer) bertEmbeddings(width int) Layer {
	return Sequential{
		Named{"word_embeddings", Embedding{Num: c.Vocab, Dim: width, Split: true}},
		Named{"ids", numbers{c.Positions}},
		Named{"token_type_embeddings", tokenTypes{Num: or(c.Types, 2), Dim: width}},
		Named{"position_embeddings", c.bertPositions(width)},
		Named{"LayerNorm", LayerNorm{Size: width}},
		Named{"dropout", c.dropout()},
	}
}

// bertPositions are the positions of BERT, or of RoBERTa, which counts them in each sequence.
func (c Transformer) bertPositions(width int) Layer {
	if c.Family == RoBERTa {
		return positions{Num: c.Positions, Dim: width, each: true, padding: 2}
	}
	return positions{Num: c.Positions, Dim: width, buffered: true}
}

// firstClassifier reads the first token, as RoBERTa and ELECTRA do.
func (c Transformer) firstClassifier(act Layer) Layer {
	return Named{"classifier", Sequential{
		first{},
		inline{c.dropout()},
		Named{"dense", Linear{In: c.Hidden, Out: c.Hidden}},
		inline{act},
		inline{c.dropout()},
		Named{"out_proj", Linear{In: c.Hidden, Out: c.Classes}},
	}}
}

// pooler is what BertModel and ViTModel make of the first token.
func (c Transformer) pooler() Layer {
	return Named{"pooler", Sequential{
		first{},
		Named{"dense", Linear{In: c.Hidden, Out: c.Hidden}},
		Named{"activation", Tanh{}},
	}}
}

// maskedLM is the head of BertForMaskedLM.
func (c Transformer) maskedLM() Layer {
	decoder := Linear{In: c.Hidden, Out: c.Vocab, Split: ByColumns}
	if c.Tied {
		decoder.Tied = "..embeddings.word_embeddings.weight"
	}
	return Named{"cls", Sequential{
		Named{"transform", Sequential{
			Named{"dense", Linear{In: c.Hidden, Out: c.Hidden}},
			Named{"transform_act_fn", c.Activation.layer(UseGELU)},
			Named{"LayerNorm", LayerNorm{Size: c.Hidden}},
		}},
		Named{"decoder", decoder},
	}}
}

// bertBlock normalises after each part: LayerNorm(x + part(x)).
func (c Transformer) bertBlock() Layer {
	return Sequential{
		Named{"attention", afterNorm{
			body: Sequential{Named{"self", Attention{
				Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout,
				names: &attentionNames{q: "query", k: "key", v: "value"},
			}}},
			dense: Linear{In: c.Heads * min(c.headSize(), maxField), Out: c.Hidden, Split: ByRows}, dropout: c.dropout(), size: c.Hidden,
		}},
		inline{afterNorm{
			body: Sequential{Named{"intermediate", Sequential{
				Named{"dense", Linear{In: c.Hidden, Out: c.FFN, Split: ByColumns}},
				Named{"intermediate_act_fn", c.Activation.layer(UseGELU)},
			}}},
			dense: Linear{In: c.FFN, Out: c.Hidden, Split: ByRows}, dropout: c.dropout(), size: c.Hidden,
		}},
	}
}

// afterNorm is LayerNorm(dropout(dense(body(x))) + x), whose last three parts
// stand together under the name "output".
type afterNorm struct {
	body           Sequential
	dense, dropout Layer
	size           int
}

// Kind names the row.
func (afterNorm) Kind() string { return "BertPart" }

// Declare implements Layer.
func (l afterNorm) Declare(d *Declaration) {
	l.body.Declare(d)
	d.Layer("output", denseNorm{l, Tensor{}})
}

// Forward implements Layer.
func (l afterNorm) Forward(t *Tape, x Tensor) (Tensor, error) {
	y, err := l.body.Forward(t, x)
	if err != nil {
		return Tensor{}, err
	}
	return t.Call("output", denseNorm{l, x}, y)
}

type denseNorm struct {
	afterNorm
	x Tensor
}

// Kind names the row.
func (denseNorm) Kind() string { return "BertOutput" }

// Declare implements Layer.
func (l denseNorm) Declare(d *Declaration) {
	d.Layer("dense", l.dense)
	d.Layer("dropout", l.dropout)
	d.Layer("LayerNorm", LayerNorm{Size: l.size})
}

// Forward implements Layer.
func (l denseNorm) Forward(t *Tape, y Tensor) (Tensor, error) {
	y, err := t.Call("dense", l.dense, y)
	if err == nil {
		y, err = t.Call("dropout", l.dropout, y)
	}
	if err == nil {
		y, err = add(t, y, l.x)
	}
	if err == nil {
		y, err = t.Call("LayerNorm", LayerNorm{Size: l.size}, y)
	}
	return y, err
}

// tokenTypes adds the vector of each token's type.
type tokenTypes struct{ Num, Dim int }

// Kind names the row.
func (tokenTypes) Kind() string { return "Embedding" }

// Declare implements Layer.
func (l tokenTypes) Declare(d *Declaration) { Embedding{Num: l.Num, Dim: l.Dim}.Declare(d) }

// numbers holds BERT's buffers, the numbers of positions and of types.
type numbers struct{ positions int }

// Kind names the row.
func (numbers) Kind() string { return "Buffers" }

// Declare implements Layer.
func (l numbers) Declare(d *Declaration) {
	for _, name := range []string{"position_ids", "token_type_ids"} {
		d.Add(Param{Name: name, Shape: alloc.Shape{1, l.positions}, DType: alloc.Int64, Buffer: true})
	}
}

// Forward implements Layer.
func (numbers) Forward(_ *Tape, x Tensor) (Tensor, error) { return x, nil }

// Forward implements Layer.
func (l tokenTypes) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, length, hidden)"); err != nil {
		return Tensor{}, err
	}
	types, err := t.Const(alloc.Int64, x.Shape[0], x.Shape[1])
	if err != nil {
		return Tensor{}, err
	}
	vectors, err := t.Op(Op{In: []Tensor{types}, Shape: append(types.Shape.Clone(), l.Dim), DType: t.Activation(), Params: true, Keep: []Tensor{types}})
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{x, vectors}, Shape: x.Shape, PassGrad: true})
}

// first takes the first token of each sequence, as a view.
type first struct{}

// Declare implements Layer.
func (first) Declare(*Declaration) {}

// Forward implements Layer.
func (first) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, length, hidden)"); err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[2]}, View: true})
}
