package family

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// ViT: image patches, class token, learned positions, classifier.
var ViT = register(&Family{
	Name:    "ViT",
	layers:  func(c Transformer) []tape.Layer { return c.vit("vit", false) },
	images:  true,
	patched: true,
	role:    encoder,
	Types: []Type{
		{Name: "vit", Base: "ViTModel", Read: readViT},
	},
})

// DeiT: ViT with a distillation token.
var DeiT = register(&Family{
	Name:    "DeiT",
	layers:  func(c Transformer) []tape.Layer { return c.vit("deit", true) },
	images:  true,
	patched: true,
	role:    encoder,
	Types: []Type{
		{Name: "deit", Base: "DeiTModel", Read: readDeiT},
	},
})

// vit builds ViT, or DeiT, which is distilled.
func (c Transformer) vit(name string, distilled bool) []tape.Layer {
	image, patch := setting.Or(c.Image, 224), setting.Or(c.Patch, 16)
	side := 0
	if patch > 0 {
		side = min(image/patch, setting.MaxField)
	}
	embed := patches{
		projection: layer.Conv2d{In: setting.Or(c.Channels, 3), Out: c.Hidden, Kernel: patch, Stride: patch},
		tokens:     side*side + 1, hidden: c.Hidden, dropout: c.dropout(),
	}
	if distilled {
		embed.tokens, embed.distilled = embed.tokens+1, true
	}
	layers := []tape.Layer{tape.Named{Name: name, Layer: tape.Sequential{
		tape.Named{Name: "embeddings", Layer: embed},
		tape.Named{Name: "layers", Layer: tape.Repeat{N: c.Blocks, Layer: c.vitBlock()}},
		tape.Named{Name: "layernorm", Layer: layer.LayerNorm{Size: c.Hidden}},
	}}}
	if c.Pooler {
		layers = append(layers, c.pooler())
	}
	switch {
	case c.Classes == 0 || c.NoHead:
	case c.Teacher:
		layers = append(layers, c.twoClassifiers())
	default:
		layers = append(layers, first{}, tape.Named{Name: "classifier", Layer: layer.Linear{In: c.Hidden, Out: c.Classes}})
	}
	return layers
}

// twoClassifiers are those of DeiT's class token and distillation token, whose mean is the output.
func (c Transformer) twoClassifiers() tape.Layer {
	linear := layer.Linear{In: c.Hidden, Out: c.Classes}
	return tape.Inlined{Layer: tape.Module{Name: "TwoClassifiers", Parts: tape.Sequential{tape.Named{Name: "cls_classifier", Layer: linear}, tape.Named{Name: "distillation_classifier", Layer: linear}}, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		class, distilled := f.Call("cls_classifier", f.Apply(first{}, x)), f.Call("distillation_classifier", f.Apply(first{}, x))
		y := f.Scale(f.Add(class, distilled))
		f.Hold(class, distilled)
		return y
	}}}
}

func (c Transformer) vitBlock() tape.Layer {
	return tape.Sequential{
		tape.Skip(
			tape.Named{Name: "layernorm_before", Layer: layer.LayerNorm{Size: c.Hidden}},
			tape.Named{Name: "attention", Layer: layer.Attention{Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout}},
			tape.Named{Name: "dropout", Layer: c.dropout()},
		),
		tape.Skip(
			tape.Named{Name: "layernorm_after", Layer: layer.LayerNorm{Size: c.Hidden}},
			tape.Named{Name: "mlp", Layer: layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation}},
			tape.Named{Name: "dropout", Layer: c.dropout()},
		),
	}
}

// patches cuts an image into patches, puts a learned class token before them, and a distillation
// token where there is one, and adds learned positions.
type patches struct {
	projection     layer.Conv2d
	tokens, hidden int // the tokens are all that come out
	distilled      bool
	dropout        tape.Layer
}

// Kind names the row.
func (patches) Kind() string { return "Patches" }

func (l patches) Declare(d *tape.Declaration) {
	if !d.Want("Hidden", l.hidden, 1) || l.tokens < 2 {
		d.Errorf("the Image is smaller than a Patch")
		return
	}
	d.Param("cls_token", 1, 1, l.hidden)
	if l.distilled {
		d.Param("distillation_token", 1, 1, l.hidden)
	}
	d.Param("position_embeddings", 1, l.tokens, l.hidden)
	d.Layer("patch_embeddings", tape.Sequential{tape.Named{Name: "projection", Layer: l.projection}})
	d.Layer("dropout", l.dropout)
}

func (l patches) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	y, err := t.Call("patch_embeddings", tape.Sequential{tape.Named{Name: "projection", Layer: l.projection}}, x)
	if err != nil {
		return tape.Tensor{}, err
	}
	want := l.tokens - 1
	if l.distilled {
		want--
	}
	if n := y.Shape[2] * y.Shape[3]; n != want {
		return tape.Tensor{}, t.Errorf("input %v makes %d patches: want %d", x.Shape, n, want)
	}
	shape := alloc.Shape{y.Shape[0], l.tokens, l.hidden}
	y, err = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: shape, Params: true, PassGrad: true})
	if err == nil {
		y, err = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: shape, Params: true, PassGrad: true})
	}
	if err != nil {
		return tape.Tensor{}, err
	}
	return t.Call("dropout", l.dropout, y)
}

func readViT(c *Config, a *Model) {
	c.vit(a, "ViTForImageClassification")
}

func readDeiT(c *Config, a *Model) {
	c.vit(a, "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher")
}

// vit reads ViT and DeiT.
func (c *Config) vit(a *Model, heads ...string) {
	class := c.class(heads...)
	if !c.flag("qkv_bias", true) {
		c.unknown("qkv_bias", "false")
	}
	c.encoder(a)
	a.Pooler, a.Teacher = class == c.Base, strings.HasSuffix(class, "WithTeacher")
	if !a.Pooler {
		a.Classes = c.labels()
	}
	c.number(&a.Image, "image_size", 224)
	c.number(&a.Patch, "patch_size", 16)
	c.number(&a.Channels, "num_channels", 3)
}
