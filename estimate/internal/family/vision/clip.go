package vision

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// CLIP has towers of images (Vision) and texts.
var CLIP = &family.Family{
	Name:   "CLIP",
	Input:  pairInput,
	Layers: clip,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "clip", Base: "CLIPModel", Read: readCLIP}},
}

// clipEncoder is CLIP's image tower, up to its last norm.
var clipEncoder = encoder{
	name: "clip_vision_model", class: true,
	read: func(c *family.Config, t *family.Model) {
		towerNumbers(c, &t.Transformer)
		c.Activation(t, c.Word("hidden_act"), "quick_gelu")
	},
	parts: func(c family.Transformer) tape.Sequential {
		side := min(c.Side(), setting.MaxField)
		return tape.Sequential{
			tape.As("embeddings", clipPatches{c.PatchConv(true), min(setting.Product(side, side), setting.MaxField-1) + 1, c.Hidden}),
			tape.As("pre_layrnorm", layer.LayerNorm{Size: c.Hidden}),
			tape.As("encoder.layers", tape.Repeat{N: c.Blocks, Layer: clipBlock(c, layer.UseQuickGELU, false)}),
			tape.As("post_layernorm", layer.LayerNorm{Size: c.Hidden}),
		}
	},
	run: func(f *tape.Flow, c family.Transformer, x tape.Tensor) ([]tape.Tensor, tape.Tensor) {
		states := throughBlocks(f, "encoder.layers", c.Blocks, f.Call("pre_layrnorm", f.Call("embeddings", x)))
		last := states[len(states)-1]
		family.Return(f.Tape, f.Call("post_layernorm", f.Apply(family.First{}, last)))
		return states, last
	},
}

// clipVision returns CLIP's image tower as part of CLIP, whose output is that of the last norm.
func clipVision(c family.Transformer) tape.Layer {
	parts := clipEncoder.parts(c)
	last := len(parts) - 1
	return append(parts[:last:last], tape.Inline(family.First{}), parts[last])
}

// clipBlock is a block of CLIP and SigLIP. Its attention always gets a mask if masked.
func clipBlock(c family.Transformer, usual layer.Activation, masked bool) tape.Layer {
	return tape.Sequential{
		tape.Skip(tape.As("layer_norm1", layer.LayerNorm{Size: c.Hidden}), tape.As("self_attn", layer.Attention{
			Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout, Masked: masked,
			Names: &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "out_proj"},
		})),
		tape.Skip(tape.As("layer_norm2", layer.LayerNorm{Size: c.Hidden}), tape.As("mlp", layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, usual)})),
	}
}

// clip builds CLIP: the towers of images and texts, their projections, and the logits of each
// image for each text.
func clip(c family.Transformer) []tape.Layer {
	text := append(clipText(c), tape.Inline(lastToken{}))
	image := images(c)
	return []tape.Layer{tape.Inline(contrast{
		text: text, image: clipVision(image), heads: [2]tape.Layer{
			tape.As("text_projection", layer.Linear{In: c.Hidden, Out: c.Classes, NoBias: true}),
			tape.As("visual_projection", layer.Linear{In: image.Hidden, Out: c.Classes, NoBias: true}),
		}, scalars: []tape.Param{{Name: "logit_scale", Shape: alloc.Shape{}}},
	})}
}

// images returns the image tower's numbers, with defaults.
func images(c family.Transformer) family.Transformer {
	if c.Vision == nil {
		return family.Transformer{}
	}
	v := *c.Vision
	v.Channels, v.Patch, v.Image = setting.Or(v.Channels, 3), setting.Or(v.Patch, 16), setting.Or(v.Image, 224)
	v.Plain = c.Plain
	return v
}

// contrast runs two towers and multiplies their outputs for texts and images.
type contrast struct {
	text, image tape.Layer
	heads       [2]tape.Layer // after the towers; nil means none
	scalars     []tape.Param
}

func (l contrast) Declare(d *tape.Declaration) {
	for _, p := range l.scalars {
		d.Add(p)
	}
	d.Layer("text_model", l.text)
	d.Layer("vision_model", l.image)
	for _, head := range l.heads {
		if head != nil {
			d.Declare(head)
		}
	}
}

func (l contrast) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	pixels := t.Input(1)
	layer.Ran.Of(t).Unmeasured |= layer.TwoTowers
	image := t.Call("vision_model", l.image, pixels)
	x = t.Call("text_model", l.text, x)
	for i, side := range []*tape.Tensor{&x, &image} {
		if l.heads[i] != nil {
			*side = l.heads[i].Forward(t, *side)
		}
		norm := tape.Own{Shape: t.Resized((*side).Shape, 1)}
		own := []tape.Own{norm}
		if l.heads[i] != nil { // the norm in elementary operations
			own = append(own, norm)
		}
		*side = t.Op(tape.Op{In: []tape.Tensor{*side}, Shape: (*side).Shape, Keep: []tape.Tensor{*side}, KeepOwn: own})
	}
	if len(x.Shape) != 2 || len(image.Shape) != 2 {
		t.Failf("the towers return %v and %v: want (batch, width) both", x.Shape, image.Shape)
	}
	logits := alloc.Shape{x.Shape[0], image.Shape[0]}
	y := t.Op(tape.Op{In: []tape.Tensor{x, image}, Shape: logits, Keep: []tape.Tensor{x, image}, FLOPs: setting.FLOPs(logits[0], logits[1], x.Shape[1], 2)})
	return t.Op(tape.Op{In: []tape.Tensor{y}, Shape: logits, Params: true, Keep: []tape.Tensor{y}, KeepOwn: []tape.Own{{Shape: alloc.Shape{1}}}})
}

// clipPatches cuts an image into patches, puts a class token before them and adds positions.
type clipPatches struct {
	projection     tape.Layer
	tokens, hidden int
}

func (clipPatches) Kind() string { return "Patches" }

func (l clipPatches) Declare(d *tape.Declaration) {
	d.Param("class_embedding", l.hidden)
	d.Layer("patch_embedding", l.projection)
	d.Layer("position_embedding", l.positions())
}

func (l clipPatches) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	y := t.Call("patch_embedding", l.projection, x)
	y = family.FlatPatches{}.Forward(t, y)
	if y.Shape[1] != l.tokens-1 {
		t.Failf("input %v makes %d patches: want %d", x.Shape, y.Shape[1], l.tokens-1)
	}
	shape := alloc.Shape{y.Shape[0], l.tokens, l.hidden}
	y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: shape, Params: true, PassGrad: true})
	return t.Call("position_embedding", l.positions(), y)
}

func (l clipPatches) positions() family.Positions {
	return family.Positions{Num: l.tokens, Dim: l.hidden, Buffered: true}
}

// lastToken takes the last token of each text.
type lastToken struct{}

func (lastToken) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, length, hidden)")
	index := tape.Own{Shape: alloc.Shape{x.Shape[0]}, DType: alloc.Int64}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[2]}, KeepOwn: []tape.Own{index, index}})
}

func readCLIP(c *family.Config, a *family.Model) {
	pairSettings(c, a, "clip_text_model", "clip_vision_model")
}

// pairSettings reads the text and image towers of CLIP and SigLIP.
func pairSettings(c *family.Config, a *family.Model, textType, visionType string) (text, vision *family.Config) {
	c.Class()
	if !c.Given("text_config") || !c.Given("vision_config") {
		c.Fail("text_config, vision_config", "the key is missing")
	}
	text, vision = c.Component("text_config", textType), c.Component("vision_config", visionType)
	text.Sizes(&a.Transformer)
	text.Number(&a.Vocab, "vocab_size", 0)
	text.Number(&a.Positions, "max_position_embeddings", 77)
	c.Number(&a.Classes, "projection_dim", 512)
	text.Activation(a, text.Word("hidden_act"), "quick_gelu")
	var tower family.Model
	clipEncoder.read(vision, &tower)
	setTower(c, a, &tower)
	return text, vision
}

// pairInput returns a text, and an image of the tower's size.
func pairInput(a *family.Model, batch, length int) []family.Input {
	v := a.Vision
	return []family.Input{family.Tokens(batch, length), family.Reals(batch, v.Channels, v.Image, v.Image)}
}
