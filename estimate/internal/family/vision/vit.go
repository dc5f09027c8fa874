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
	Name:    "ViT",
	Layers:  func(c family.Transformer) []tape.Layer { return vit(c, "vit", false) },
	Images:  true,
	Patched: true,
	Role:    family.Encoder,
	Types:   []family.Type{{Name: "vit", Base: "ViTModel", Read: readViT}},
}

// DeiT is ViT with a distillation token.
var DeiT = &family.Family{
	Name:    "DeiT",
	Layers:  func(c family.Transformer) []tape.Layer { return vit(c, "deit", true) },
	Images:  true,
	Patched: true,
	Role:    family.Encoder,
	Types:   []family.Type{{Name: "deit", Base: "DeiTModel", Read: readDeiT}},
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
	layers := []tape.Layer{tape.As(name, tape.Sequential{
		tape.As("embeddings", embed),
		tape.As("layers", tape.Repeat{N: c.Blocks, Layer: vitBlock(c)}),
		tape.As("layernorm", layer.LayerNorm{Size: c.Hidden}),
	})}
	if c.Pooler {
		layers = append(layers, c.Pooled())
	}
	switch {
	case c.Classes == 0 || c.NoHead:
	case family.Own[taught](c) != nil:
		layers = append(layers, twoClassifiers(c))
	default:
		layers = append(layers, family.First{}, tape.As("classifier", layer.Linear{In: c.Hidden, Out: c.Classes}))
	}
	return layers
}

// taught is a DeiT whose distillation token also has a classifier.
type taught struct{}

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

func vitBlock(c family.Transformer) tape.Layer {
	return tape.Sequential{
		tape.Skip(
			tape.As("layernorm_before", layer.LayerNorm{Size: c.Hidden}),
			tape.As("attention", layer.Attention{Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout}),
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
	unplaced       bool // positions are not learned here
	dropout        tape.Layer
}

func (patches) Kind() string { return "Patches" }

func (l patches) Declare(d *tape.Declaration) {
	d.Want("Hidden", l.hidden, 1)
	if l.tokens < 2 {
		d.Failf("the Image is smaller than a Patch")
	}
	d.Param("cls_token", 1, 1, l.hidden)
	if l.distilled {
		d.Param("distillation_token", 1, 1, l.hidden)
	}
	if !l.unplaced {
		d.Param("position_embeddings", 1, l.tokens, l.hidden)
	}
	d.Layer("patch_embeddings", tape.Sequential{tape.As("projection", l.projection)})
	d.Layer("dropout", l.dropout)
}

func (l patches) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	y := t.Call("patch_embeddings", tape.Sequential{tape.As("projection", l.projection)}, x)
	want := l.tokens - 1
	if l.distilled {
		want--
	}
	if n := y.Shape[2] * y.Shape[3]; n != want {
		t.Failf("input %v makes %d patches: want %d", x.Shape, n, want)
	}
	shape := alloc.Shape{y.Shape[0], l.tokens, l.hidden}
	y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: shape, Params: true, PassGrad: true})
	if !l.unplaced {
		y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: shape, Params: true, PassGrad: true})
	}
	return t.Call("dropout", l.dropout, y)
}

func readViT(c *family.Config, a *family.Model) {
	vitSettings(c, a, "ViTForImageClassification")
}

func readDeiT(c *family.Config, a *family.Model) {
	vitSettings(c, a, "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher")
}

// vitSettings reads ViT and DeiT.
func vitSettings(c *family.Config, a *family.Model, heads ...string) {
	class := c.Class(heads...)
	if !c.Flag("qkv_bias", true) {
		c.Unknown("qkv_bias", "false")
	}
	c.Encoder(a)
	if strings.HasSuffix(class, "WithTeacher") {
		a.Own = &taught{}
	}
	if a.Pooler = class == c.Base; a.Pooler {
		c.Follows("pooler_output_size", a.Hidden)
	} else {
		c.Harmless("pooler_output_size")
	}
	a.Classes = c.ClassesOf(class)
	c.Pixels(&a.Transformer, 16)
}
