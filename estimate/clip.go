package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// clipVision is the tower of images of CLIP, up to its last norm. LLaVA has the same.
func clipVision(c Transformer) Layer {
	side := min(c.side(), maxField)
	return Sequential{
		Named{"embeddings", clipPatches{c.patchConv(true), int(min(FLOPs(side, side), maxField-1)) + 1, c.Hidden}},
		Named{"pre_layrnorm", LayerNorm{Size: c.Hidden}},
		Named{"encoder.layers", Repeat{N: c.Blocks, Layer: c.clipBlock(UseQuickGELU)}},
		inline{first{}},
		Named{"post_layernorm", LayerNorm{Size: c.Hidden}},
	}
}

// clipBlock is a block of CLIP and SigLIP.
func (c Transformer) clipBlock(usual Activation) Layer {
	return Sequential{
		residual(Named{"layer_norm1", LayerNorm{Size: c.Hidden}}, Named{"self_attn", Attention{
			Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout,
			names: &attentionNames{q: "q_proj", k: "k_proj", v: "v_proj", out: "out_proj"},
		}}),
		residual(Named{"layer_norm2", LayerNorm{Size: c.Hidden}}, Named{"mlp", MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: or(c.Activation, usual)}}),
	}
}

// clip builds CLIP: the towers of images and texts, their projections, and the logits of each
// image for each text.
func (c Transformer) clip() []Layer {
	text := Sequential{
		Named{"embeddings", Sequential{
			Named{"token_embedding", Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}},
			Named{"position_embedding", positions{Num: c.Positions, Dim: c.Hidden, buffered: true}},
		}},
		Named{"encoder.layers", Repeat{N: c.Blocks, Layer: c.clipBlock(UseQuickGELU)}},
		Named{"final_layer_norm", LayerNorm{Size: c.Hidden}},
		inline{picked{}},
	}
	image := c.images()
	return []Layer{inline{contrast{
		text: text, image: clipVision(image), heads: [2]Layer{
			Named{"text_projection", Linear{In: c.Hidden, Out: c.Classes, NoBias: true}},
			Named{"visual_projection", Linear{In: image.Hidden, Out: c.Classes, NoBias: true}},
		}, scalars: []Param{{Name: "logit_scale", Shape: alloc.Shape{}}},
	}}}
}

// images are the numbers of the tower of images.
func (c Transformer) images() Transformer {
	if c.Vision == nil {
		return Transformer{}
	}
	v := *c.Vision
	v.Channels, v.Patch, v.Image = or(v.Channels, 3), or(v.Patch, 16), or(v.Image, 224)
	v.Plain = c.Plain
	return v
}

// contrast runs two towers and multiplies what they make of texts and images.
type contrast struct {
	text, image Layer
	heads       [2]Layer // after the towers; nil for none
	scalars     []Param
}

// Declare implements Layer.
func (l contrast) Declare(d *Declaration) {
	for _, p := range l.scalars {
		d.Add(p)
	}
	d.Layer("text_model", l.text)
	d.Layer("vision_model", l.image)
	for _, head := range l.heads {
		if head != nil {
			head.Declare(d)
		}
	}
}

// Forward implements Layer.
func (l contrast) Forward(t *Tape, x Tensor) (Tensor, error) {
	pixels, err := t.Input(1)
	if err != nil {
		return Tensor{}, err
	}
	t.unmeasured |= twoTowers
	image, err := t.Call("vision_model", l.image, pixels)
	if err == nil {
		x, err = t.Call("text_model", l.text, x)
	}
	if err != nil {
		return Tensor{}, err
	}
	for i, side := range []*Tensor{&x, &image} {
		if l.heads[i] != nil {
			if *side, err = l.heads[i].Forward(t, *side); err != nil {
				return Tensor{}, err
			}
		}
		norm := Own{Shape: t.resized((*side).Shape, 1)}
		own := []Own{norm}
		if l.heads[i] != nil { // the norm in elementary operations
			own = append(own, norm)
		}
		if *side, err = t.Op(Op{In: []Tensor{*side}, Shape: (*side).Shape, Keep: []Tensor{*side}, KeepOwn: own}); err != nil {
			return Tensor{}, err
		}
	}
	if len(x.Shape) != 2 || len(image.Shape) != 2 {
		return Tensor{}, t.Errorf("the towers return %v and %v: want (batch, width) both", x.Shape, image.Shape)
	}
	logits := alloc.Shape{x.Shape[0], image.Shape[0]}
	y, err := t.Op(Op{In: []Tensor{x, image}, Shape: logits, Keep: []Tensor{x, image}, FLOPs: FLOPs(logits[0], logits[1], x.Shape[1], 2)})
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{y}, Shape: logits, Params: true, Keep: []Tensor{y}, KeepOwn: []Own{{Shape: alloc.Shape{1}}}})
}

// clipPatches cuts an image into patches, puts a class token before them and adds positions.
type clipPatches struct {
	projection     Layer
	tokens, hidden int
}

// Kind names the row.
func (clipPatches) Kind() string { return "Patches" }

// Declare implements Layer.
func (l clipPatches) Declare(d *Declaration) {
	d.Param("class_embedding", l.hidden)
	d.Layer("patch_embedding", l.projection)
	d.Layer("position_embedding", Embedding{Num: l.tokens, Dim: l.hidden})
}

// Forward implements Layer.
func (l clipPatches) Forward(t *Tape, x Tensor) (Tensor, error) {
	y, err := t.Call("patch_embedding", l.projection, x)
	if err == nil {
		y, err = flatPatches{}.Forward(t, y)
	}
	if err != nil {
		return Tensor{}, err
	}
	if y.Shape[1] != l.tokens-1 {
		return Tensor{}, t.Errorf("input %v makes %d patches: want %d", x.Shape, y.Shape[1], l.tokens-1)
	}
	shape := alloc.Shape{y.Shape[0], l.tokens, l.hidden}
	y, err = t.Op(Op{In: []Tensor{y}, Shape: shape, Params: true, PassGrad: true})
	if err != nil {
		return Tensor{}, err
	}
	return t.Call("position_embedding", positions{Num: l.tokens, Dim: l.hidden, buffered: true}, y)
}

// flatPatches is (batch, channels, height, width) as (batch, places, channels), a view.
type flatPatches struct{}

// Declare implements Layer.
func (flatPatches) Declare(*Declaration) {}

// Forward implements Layer.
func (flatPatches) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 4, "(batch, channels, height, width)"); err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[2] * x.Shape[3], x.Shape[1]}, View: true})
}

// picked takes the last token of each text, by its number.
type picked struct{}

// Declare implements Layer.
func (picked) Declare(*Declaration) {}

// Forward implements Layer.
func (picked) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 3, "(batch, length, hidden)"); err != nil {
		return Tensor{}, err
	}
	index := Own{alloc.Shape{x.Shape[0]}, alloc.Int64}
	return t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[2]}, KeepOwn: []Own{index, index}})
}
