// Package vision has the families that see images, and the towers of models that read images and
// text, one file each. It reads no files, and none of its models makes images.
package vision

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// ViT has image patches, class token, learned positions, classifier.
var ViT = &family.Family{
	Name:   "ViT",
	Layers: func(c family.Transformer) []tape.Layer { return vit(c, "vit", false) },
	Images: true,
	Role:   family.Encoder,
	Types: []family.Type{
		{Name: "vit", Base: "ViTModel", Read: readViT},
		{Name: "vit_msn", Base: "ViTMSNModel", Read: readViTMSN},
	},
}

// DeiT is ViT with a distillation token.
var DeiT = &family.Family{
	Name:   "DeiT",
	Layers: func(c family.Transformer) []tape.Layer { return vit(c, "deit", true) },
	Images: true,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "deit", Base: "DeiTModel", Read: readDeiT}},
}

// IJEPA is ViT without a class token. Its classifier reads the mean of all patches.
var IJEPA = &family.Family{
	Name:   "I-JEPA",
	Layers: func(c family.Transformer) []tape.Layer { return vit(c, "ijepa", false) },
	Images: true,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "ijepa", Base: "IJepaModel", Read: readIJEPA}},
}

// vitParts says what differs in a ViT.
type vitParts struct {
	taught    bool // DeiT: the distillation token also has a classifier
	classless bool // there is no class token
	unbiased  bool // queries, keys and values have no biases
	stride    int  // of a head that predicts masked patches: pixels along a side of each; 0 means none
	pooled    int  // width of the pooler's output; 0 means Hidden
}

// vit builds ViT or, if distilled, DeiT.
func vit(c family.Transformer, name string, distilled bool) []tape.Layer {
	image, patch := setting.Or(c.Image, 224), setting.Or(c.Patch, 16)
	side := 0
	if patch > 0 {
		side = min(image/patch, setting.MaxField)
	}
	embed := patches{
		projection: layer.Conv2d{In: setting.Or(c.Channels, 3), Out: c.Hidden, Kernel: patch, Stride: patch},
		tokens:     side*side + 1, hidden: c.Hidden, dropout: c.Drop(),
	}
	if distilled {
		embed.tokens, embed.distilled = embed.tokens+1, true
	}
	own := *setting.Or(family.Own[vitParts](c), &vitParts{})
	if own.classless {
		embed.tokens, embed.classless = embed.tokens-1, true
	}
	embed.masked = own.stride > 0
	layers := []tape.Layer{tape.As(name, tape.Sequential{
		tape.As("embeddings", embed),
		tape.As("layers", tape.Repeat{N: c.Blocks, Layer: vitBlock(c, own.unbiased)}),
		tape.As("layernorm", layer.LayerNorm{Size: c.Hidden}),
	})}
	if c.Pooler {
		layers = append(layers, tape.As("pooler", tape.Sequential{
			family.First{}, tape.As("dense", layer.Linear{In: c.Hidden, Out: setting.Or(own.pooled, c.Hidden)}), tape.As("activation", layer.Tanh{}),
		}))
	}
	switch {
	case own.stride > 0:
		layers = append(layers, tape.Inline(patchesAlone{min(side, setting.MaxField)}))
		layers = append(layers, pixelsOf(c.Hidden, side, setting.Or(c.Channels, 3), own.stride)...)
	case c.Classes == 0 || c.NoHead:
	case own.classless:
		layers = append(layers, tape.Inline(meanPlace{}), tape.As("classifier", layer.Linear{In: c.Hidden, Out: c.Classes}))
	case own.taught:
		layers = append(layers, twoClassifiers(c))
	default:
		layers = append(layers, family.First{}, tape.As("classifier", layer.Linear{In: c.Hidden, Out: c.Classes}))
	}
	return layers
}

// twoClassifiers classifies DeiT's class token and distillation token. The output is the mean of
// both.
func twoClassifiers(c family.Transformer) tape.Layer {
	linear := layer.Linear{In: c.Hidden, Out: c.Classes}
	return tape.Inline(tape.Module{Name: "TwoClassifiers", Parts: tape.Sequential{tape.As("cls_classifier", linear), tape.As("distillation_classifier", linear)}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		class, distilled := f.Call("cls_classifier", f.Apply(family.First{}, x)), f.Call("distillation_classifier", f.Apply(family.First{}, x))
		y := f.Scale(f.Add(class, distilled))
		f.Hold(class, distilled)
		return y
	}})
}

func vitBlock(c family.Transformer, unbiased bool) tape.Layer {
	return tape.Sequential{
		tape.Skip(
			tape.As("layernorm_before", layer.LayerNorm{Size: c.Hidden}),
			tape.As("attention", layer.Attention{Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout, NoBias: unbiased, OutBias: true}),
			tape.As("dropout", c.Drop()),
		),
		tape.Skip(
			tape.As("layernorm_after", layer.LayerNorm{Size: c.Hidden}),
			tape.As("mlp", layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation}),
			tape.As("dropout", c.Drop()),
		),
	}
}

// patches cuts an image into patches, puts a learned class token before them, and a distillation
// token if there is one, and adds learned positions.
type patches struct {
	projection     layer.Conv2d
	tokens, hidden int // tokens counts all vectors of the output
	distilled      bool
	classless      bool // there is no class token
	masked         bool // there is a vector for masked patches, which nothing reads where none are masked
	unplaced       bool // positions are not learned here
	registers      int  // vectors beside tokens, which have no positions
	dropout        tape.Layer
}

func (patches) Kind() string { return "Patches" }

func (l patches) Declare(d *tape.Declaration) {
	d.Want("Hidden", l.hidden, 1)
	if l.tokens < 1 || l.tokens < 2 && !l.classless {
		d.Failf("the Image is smaller than a Patch")
	}
	if !l.classless {
		d.Param("cls_token", 1, 1, l.hidden)
	}
	if l.masked {
		d.Param("mask_token", 1, 1, l.hidden)
	}
	if l.distilled {
		d.Param("distillation_token", 1, 1, l.hidden)
	}
	if !l.unplaced {
		d.Param("position_embeddings", 1, l.tokens, l.hidden)
	}
	if l.registers > 0 {
		d.Param("register_tokens", 1, l.registers, l.hidden)
	}
	d.Layer("patch_embeddings", tape.Sequential{tape.As("projection", l.projection)})
	d.Layer("dropout", l.dropout)
}

func (l patches) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	y := t.Call("patch_embeddings", tape.Sequential{tape.As("projection", l.projection)}, x)
	want := l.tokens
	if !l.classless {
		want--
	}
	if l.distilled {
		want--
	}
	if n := y.Shape[2] * y.Shape[3]; n != want {
		t.Failf("input %v makes %d patches: want %d", x.Shape, n, want)
	}
	shape := alloc.Shape{y.Shape[0], l.tokens, l.hidden}
	if l.classless {
		y = family.FlatPatches{}.Forward(t, y)
	} else {
		y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: shape, Params: true, PassGrad: true})
	}
	if !l.unplaced {
		y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: shape, Params: true, PassGrad: true})
	}
	if l.registers > 0 {
		shape = alloc.Shape{shape[0], min(l.tokens+l.registers, setting.MaxField), l.hidden}
		y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: shape, Params: true, PassGrad: true})
	}
	return t.Call("dropout", l.dropout, y)
}

// patchesAlone takes the tokens of patches, as a view: those after the class token, and before one for
// distillation.
type patchesAlone struct{ side int }

func (l patchesAlone) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 3, "(batch, tokens, hidden)")
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Dim(0), setting.Product(l.side, l.side), x.Dim(2)}, View: true})
}

// pixelsOf returns the layers that predict the pixels of patches, this many along a side of each.
func pixelsOf(width, side, channels, stride int) []tape.Layer {
	return []tape.Layer{
		tape.Inline(tape.Permute{0, 2, 1}), tape.Inline(layer.Reshape{width, side, side}),
		tape.As("decoder.0", layer.Conv2d{In: width, Out: setting.Product(stride, stride, channels), Kernel: 1}), tape.Inline(contiguous{}),
	}
}

func readViT(c *family.Config, a *family.Model) {
	vitSettings(c, a, "ViTForImageClassification", "ViTForMaskedImageModeling")
}

func readViTMSN(c *family.Config, a *family.Model) {
	vitSettings(c, a, "ViTMSNForImageClassification")
	a.Pooler = false
}

func readIJEPA(c *family.Config, a *family.Model) {
	vitSettings(c, a, "IJepaForImageClassification")
	a.Pooler = false
	family.Own[vitParts](a.Transformer).classless = true
}

func readDeiT(c *family.Config, a *family.Model) {
	vitSettings(c, a, "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher", "DeiTForMaskedImageModeling")
}

// vitSettings reads ViT and DeiT.
func vitSettings(c *family.Config, a *family.Model, heads ...string) {
	class := c.Class(heads...)
	c.Encoder(a)
	own := &vitParts{taught: strings.HasSuffix(class, "WithTeacher"), unbiased: !c.Flag("qkv_bias", true)}
	a.Own, a.Pooler = own, class == c.Base
	if a.Pooler {
		c.Number(&own.pooled, "pooler_output_size", a.Hidden)
	} else {
		c.Harmless("pooler_output_size")
	}
	if act := c.Word("pooler_act"); a.Pooler && act != "" && act != "tanh" {
		c.Unknown("pooler_act", act)
	}
	if strings.HasSuffix(class, "ForMaskedImageModeling") {
		c.Number(&own.stride, "encoder_stride", 16)
	} else {
		a.Classes = c.ClassesOf(class)
	}
	c.Pixels(&a.Transformer, 16)
}
