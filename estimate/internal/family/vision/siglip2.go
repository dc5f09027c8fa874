package vision

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// SigLIP2 is SigLIP whose input are patches that the processor has cut, some of them padding
// (arXiv:2502.14786, the NaFlex variant; transformers' modeling_siglip2.py). Other checkpoints of
// that name are SigLIP's.
var SigLIP2 = &family.Family{
	Name:   "SigLIP 2",
	Input:  patchedInput,
	Layers: siglip2,
	Role:   family.Encoder,
	Types: []family.Type{
		{Name: "siglip2", Base: "Siglip2Model", Read: readSigLIP2},
		{Name: "siglip2_vision_model", Base: "Siglip2VisionModel", Read: readSigLIP2Vision},
	},
}

// patched are the settings that only SigLIP 2 has.
type patched struct {
	patches   int  // of an image, those of padding included
	headless  bool // images: no attention with a learned query follows
	projected int  // width of the texts' output; 0 without texts
}

func siglip2(c family.Transformer) []tape.Layer {
	own, image := *setting.Or(family.Own[patched](c), &patched{}), images(c)
	vision := tape.Sequential{
		tape.As("embeddings", patchEmbeddings(image, own.patches)),
		tape.As("encoder.layers", tape.Repeat{N: image.Blocks, Layer: maskedBlock(image)}),
		tape.As("post_layernorm", layer.LayerNorm{Size: image.Hidden}),
	}
	head := tape.Layer(tape.Inline(family.First{}))
	if !own.headless {
		head = tape.As("head", probe{image})
	}
	switch {
	case own.projected > 0:
		one := alloc.Shape{1}
		return []tape.Layer{tape.Inline(contrast{
			text: siglipText(c, own.projected), image: append(vision, head),
			scalars: []tape.Param{{Name: "logit_scale", Shape: one}, {Name: "logit_bias", Shape: one}},
		})}
	case c.Classes > 0: // the head runs, and the classifier reads what it reads
		parts := append(vision, tape.As("head", head))
		body := tape.Module{Name: "VisionModel", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			y := f.Call("post_layernorm", f.Call("encoder.layers", f.Call("embeddings", x)))
			f.Call("head", y)
			return y
		}}
		return []tape.Layer{tape.As("vision_model", body), tape.Inline(maskedMean{}), tape.As("classifier", layer.Linear{In: image.Hidden, Out: c.Classes})}
	}
	return append(vision, head)
}

// maskedBlock is a block of SigLIP whose attention leaves out the patches of padding.
func maskedBlock(c family.Transformer) tape.Layer {
	return tape.Sequential{
		tape.Skip(tape.As("layer_norm1", layer.LayerNorm{Size: c.Hidden}), tape.As("self_attn", layer.Attention{
			Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout, Masked: true,
			Names: &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "out_proj"},
		})),
		tape.Skip(tape.As("layer_norm2", layer.LayerNorm{Size: c.Hidden}), tape.As("mlp", layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseGELUTanh)})),
	}
}

// patchEmbeddings projects patches and adds a table of positions, which is scaled to each image. The
// weights with which an image's positions read the table are in float32, and kept.
func patchEmbeddings(c family.Transformer, patches int) tape.Layer {
	parts := tape.Sequential{
		tape.As("patch_embedding", layer.Linear{In: setting.Product(c.Channels, c.Patch, c.Patch), Out: c.Hidden}),
		tape.As("position_embedding", layer.Embedding{Num: patches, Dim: c.Hidden}),
	}
	return tape.Module{Name: "Patches", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("patch_embedding", x)
		weights := f.Const(alloc.Float32, x.Dim(0), x.Dim(1), patches)
		positions := f.Op(tape.Op{In: []tape.Tensor{weights}, Shape: y.Shape, Params: true, Keep: []tape.Tensor{weights}, FLOPs: setting.Flops(y.Shape, patches, 2)})
		return f.Add(y, f.In(y.DType, positions))
	}}
}

// maskedMean is the mean over the patches that are no padding.
type maskedMean struct{}

func (maskedMean) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, patches, hidden)")
	one := alloc.Shape{x.Dim(0), x.Dim(2)}
	y := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, KeepOwn: []tape.Own{{Shape: alloc.Shape{x.Dim(0), x.Dim(1), 1}, DType: alloc.Int64}}})
	y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: one})
	return t.Op(tape.Op{In: []tape.Tensor{y}, Shape: one, KeepOwn: []tape.Own{{Shape: alloc.Shape{x.Dim(0), 1}, DType: alloc.Int64}}})
}

// patchedInput returns the patches of an image, and a text before them if the model reads one.
func patchedInput(a *family.Model, batch, length int) []family.Input {
	own, v := *setting.Or(family.Own[patched](a.Transformer), &patched{}), a.Vision
	image := family.Reals(batch, own.patches, setting.Product(v.Channels, v.Patch, v.Patch))
	if own.projected == 0 {
		return []family.Input{image}
	}
	return []family.Input{family.Tokens(batch, length), image}
}

func readSigLIP2(c *family.Config, a *family.Model) {
	const classifies = "Siglip2ForImageClassification"
	if class := c.Class(classifies); class == classifies {
		a.Classes = c.Labels()
	}
	own := &patched{}
	text, vision := c.Component("text_config", "siglip2_text_model"), c.Component("vision_config", "siglip2_vision_model")
	text.Sizes(&a.Transformer)
	text.Number(&a.Vocab, "vocab_size", 32000)
	text.Number(&a.Positions, "max_position_embeddings", 64)
	text.Activation(a, text.Word("hidden_act"), "gelu_pytorch_tanh")
	a.Dropout = 0
	own.read(vision, a)
	if a.Classes == 0 {
		text.Number(&own.projected, "projection_size", a.Hidden)
	}
}

func readSigLIP2Vision(c *family.Config, a *family.Model) {
	c.Class()
	(&patched{}).read(c.Itself("siglip2_vision_model"), a)
	a.Hidden, a.Heads = a.Vision.Hidden, a.Vision.Heads
}

// read reads the tower of images.
func (p *patched) read(c *family.Config, a *family.Model) {
	var tower family.Model
	tower.Image = 1 // its sides are those of each image
	c.Sizes(&tower.Transformer)
	c.Number(&tower.Patch, "patch_size", 16)
	c.Number(&tower.Channels, "num_channels", 3)
	c.Number(&p.patches, "num_patches", 256)
	c.Activation(&tower, c.Word("hidden_act"), "gelu_pytorch_tanh")
	tower.Dropout = c.Dropout("attention_dropout")
	p.headless = !c.Flag("vision_use_head", true)
	setTower(c, a, &tower)
	a.Own = p
}
