package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

func (c Transformer) vit() []Layer {
	image, patch := or(c.Image, 224), or(c.Patch, 16)
	side := 0
	if patch > 0 {
		side = min(image/patch, maxField)
	}
	name, embed := "vit", patches{
		projection: Conv2d{In: or(c.Channels, 3), Out: c.Hidden, Kernel: patch, Stride: patch},
		tokens:     side*side + 1, hidden: c.Hidden, dropout: c.dropout(),
	}
	if c.Family == DeiT {
		name, embed.tokens, embed.distilled = "deit", embed.tokens+1, true
	}
	layers := []Layer{Named{name, Sequential{
		Named{"embeddings", embed},
		Named{"layers", Repeat{N: c.Blocks, Layer: c.vitBlock()}},
		Named{"layernorm", LayerNorm{Size: c.Hidden}},
	}}}
	if c.Pooler {
		layers = append(layers, c.pooler())
	}
	switch {
	case c.Classes == 0 || c.NoHead:
	case c.Teacher:
		layers = append(layers, c.twoClassifiers())
	default:
		layers = append(layers, first{}, Named{"classifier", Linear{In: c.Hidden, Out: c.Classes}})
	}
	return layers
}

// twoClassifiers are those of DeiT's class token and distillation token, whose mean is the output.
func (c Transformer) twoClassifiers() Layer {
	linear := Linear{In: c.Hidden, Out: c.Classes}
	return inline{Module{Name: "TwoClassifiers", Parts: Sequential{Named{"cls_classifier", linear}, Named{"distillation_classifier", linear}}, Run: func(f *Flow, x Tensor) Tensor {
		class, distilled := f.Call("cls_classifier", f.Apply(first{}, x)), f.Call("distillation_classifier", f.Apply(first{}, x))
		y := f.Scale(f.Add(class, distilled))
		f.hold(class, distilled)
		return y
	}}}
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

// patches cuts an image into patches, puts a learned class token before them, and a distillation
// token where there is one, and adds learned positions.
type patches struct {
	projection     Conv2d
	tokens, hidden int // the tokens are all that come out
	distilled      bool
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
	if l.distilled {
		d.Param("distillation_token", 1, 1, l.hidden)
	}
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
	want := l.tokens - 1
	if l.distilled {
		want--
	}
	if n := y.Shape[2] * y.Shape[3]; n != want {
		return Tensor{}, t.Errorf("input %v makes %d patches: want %d", x.Shape, n, want)
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
