package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

func (c Transformer) vit() []Layer {
	image, patch := or(c.Image, 224), or(c.Patch, 16)
	side := 0
	if patch > 0 {
		side = min(image/patch, maxField)
	}
	layers := []Layer{Named{"vit", Sequential{
		Named{"embeddings", patches{
			projection: Conv2d{In: or(c.Channels, 3), Out: c.Hidden, Kernel: patch, Stride: patch},
			tokens:     side*side + 1, hidden: c.Hidden, dropout: c.dropout(),
		}},
		Named{"layers", Repeat{N: c.Blocks, Layer: c.vitBlock()}},
		Named{"layernorm", LayerNorm{Size: c.Hidden}},
	}}}
	if c.Pooler {
		layers = append(layers, c.pooler())
	}
	if c.Classes != 0 && !c.NoHead {
		layers = append(layers, first{}, Named{"classifier", Linear{In: c.Hidden, Out: c.Classes}})
	}
	return layers
}

func (c Transformer) vitBlock() Layer {
	return Sequential{
		residual(
			Named{"layernorm_before", LayerNorm{Size: c.Hidden}},
			Named{"attention", Attention{Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout}},
			Named{"dropout", c.dropout()},
		),
		residual(
			Named{"layernorm_after", LayerNorm{Size: c.Hidden}},
			Named{"mlp", MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation}},
			Named{"dropout", c.dropout()},
		),
	}
}

// patches cuts an image into patches, puts a learned class token before them and
// adds learned positions.
type patches struct {
	projection     Conv2d
	tokens, hidden int
	dropout        Layer
}

// Kind names the row.
func (patches) Kind() string { return "Patches" }

// Declare implements Layer.
func (l patches) Declare(d *Declaration) {
	if !d.want("Hidden", l.hidden, 1) || l.tokens < 2 {
		d.Errorf("the Image is smaller than a Patch")
		return
	}
	d.Param("cls_token", 1, 1, l.hidden)
	d.Param("position_embeddings", 1, l.tokens, l.hidden)
	d.Layer("patch_embeddings", Sequential{Named{"projection", l.projection}})
	d.Layer("dropout", l.dropout)
}

// Forward implements Layer.
func (l patches) Forward(t *Tape, x Tensor) (Tensor, error) {
	y, err := t.Call("patch_embeddings", Sequential{Named{"projection", l.projection}}, x)
	if err != nil {
		return Tensor{}, err
	}
	if n := y.Shape[2] * y.Shape[3]; n != l.tokens-1 {
		return Tensor{}, t.Errorf("input %v makes %d patches: want %d", x.Shape, n, l.tokens-1)
	}
	shape := alloc.Shape{y.Shape[0], l.tokens, l.hidden}
	y, err = t.Op(Op{In: []Tensor{y}, Shape: shape, Params: true, PassGrad: true})
	if err == nil {
		y, err = t.Op(Op{In: []Tensor{y}, Shape: shape, Params: true, PassGrad: true})
	}
	if err != nil {
		return Tensor{}, err
	}
	return t.Call("dropout", l.dropout, y)
}
