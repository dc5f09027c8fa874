package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// LayoutLM is BERT whose tokens also have the vectors of their boxes on a page (transformers' modeling_layoutlm.py).
var LayoutLM = &family.Family{
	Name:   "LayoutLM",
	Layers: layoutLM,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "layoutlm", Base: "LayoutLMModel", Read: readLayoutLM}},
}

// page is the number of places on a page along a side.
type page struct{ places int }

func layoutLM(c family.Transformer) []tape.Layer {
	places := 1024
	if own := family.Own[page](c); own != nil {
		places = own.places
	}
	added := []tape.Layer{
		tape.As("ids", counted{c.Positions, []string{"position_ids"}}),
		tape.As("position_embeddings", family.Positions{Num: c.Positions, Dim: c.Hidden, Buffered: true}),
		tape.Inline(boxes{layer.Embedding{Num: places, Dim: c.Hidden}}),
		tape.As("token_type_embeddings", tokenTypes{Num: c.Types, Dim: c.Hidden}),
	}
	layers := text{added: added, blocks: c.Blocks, block: bertBlock(c)}.layers(c)
	if c.NoHead { // all classes have a pooler
		layers = append(layers, tape.As("pooler", family.Held{Layer: c.Pooled().(tape.Named).Layer}))
	}
	return append(layers, bertHeads(c)...)
}

// boxes adds the vectors of a box's sides, height and width.
type boxes struct{ layer.Embedding }

func (boxes) Kind() string { return "Embedding" }

func (l boxes) Declare(d *tape.Declaration) {
	for _, name := range []string{"x", "y", "h", "w"} {
		d.Layer(name+"_position_embeddings", l.Embedding)
	}
}

func (l boxes) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	box := t.Const(alloc.Int64, x.Dim(0), x.Dim(1), 4)
	side := t.Op(tape.Op{In: []tape.Tensor{box}, Shape: alloc.Shape{x.Dim(0), x.Dim(1)}, View: true})
	for _, name := range []string{"x", "y", "x", "y"} {
		x = t.Sum(x, t.Call(name+"_position_embeddings", l.Embedding, side))
	}
	for _, name := range []string{"h", "w"} {
		extent := t.Const(alloc.Int64, x.Dim(0), x.Dim(1))
		x = t.Sum(x, t.Call(name+"_position_embeddings", l.Embedding, extent))
	}
	return x
}

func readLayoutLM(c *family.Config, a *family.Model) {
	readBERT(c, a)
	own := &page{}
	a.Own = own
	c.Number(&own.places, "max_2d_position_embeddings", 1024)
}
