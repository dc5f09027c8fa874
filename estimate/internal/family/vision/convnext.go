package vision

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

var convNeXtFamily = &family.Family{
	Name:  "ConvNeXt",
	Types: []family.Type{{Name: "convnext", Base: "ConvNextModel", Read: readConvNeXt}},
}

// ConvNeXt is a convolutional network with blocks like a transformer's (arXiv:2201.03545). Its
// modules are named as in transformers. A Patch of 0 means 4.
type ConvNeXt struct {
	Channels   int   // of the image; 0 means 3
	Patch      int   // side of the pixels that the first convolution joins
	Widths     []int // of each stage
	Depths     []int // blocks of each stage
	DropPath   float64
	NoScale    bool // blocks do not multiply their output by learned factors
	Activation layer.Activation
	Classes    int // of the classifier; 0 for none
	Side       int // usual side of its images; any other works
}

// Layers returns the model's layers. Model reports numbers that make no sense.
func (c ConvNeXt) Layers() []tape.Layer {
	if len(c.Widths) == 0 || len(c.Widths) != len(c.Depths) {
		return []tape.Layer{tape.Wrong("Widths and Depths must have a number for each stage")}
	}
	patch, width := setting.Or(c.Patch, 4), c.Widths[0]
	embed := tape.Sequential{
		tape.As("patch_embeddings", layer.Conv2d{In: setting.Or(c.Channels, 3), Out: width, Kernel: patch, Stride: patch}),
		tape.As("layernorm", layer.LayerNorm2d{Channels: width}),
	}
	var stages tape.Sequential
	first := true
	for i, to := range c.Widths {
		var stage, blocks tape.Sequential
		if i > 0 {
			stage = tape.Sequential{tape.As("downsampling_layer", tape.Sequential{layer.LayerNorm2d{Channels: width}, layer.Conv2d{In: width, Out: to, Kernel: 2, Stride: 2}})}
		}
		for range max(0, min(c.Depths[i], tape.MaxLayers)) {
			blocks = append(blocks, c.block(to, c.DropPath > 0 && !first))
			first = false
		}
		stages, width = append(stages, append(stage, tape.As("layers", blocks))), to
	}
	body := tape.Sequential{
		tape.As("embeddings", embed),
		tape.As("encoder", tape.Sequential{tape.As("stages", stages)}),
		tape.Inline(layer.AdaptiveAvgPool(1)), tape.Inline(layer.Flatten{}),
		tape.As("layernorm", layer.LayerNorm{Size: width}),
	}
	if c.Classes == 0 {
		return []tape.Layer{tape.Inline(body)}
	}
	return []tape.Layer{tape.As("convnext", body), tape.As("classifier", layer.Linear{In: width, Out: c.Classes})}
}

func (c ConvNeXt) block(width int, drops bool) tape.Layer {
	inner := 4 * min(width, setting.MaxField/4)
	body := tape.Sequential{
		tape.As("dwconv", layer.Conv2d{In: width, Out: width, Kernel: 7, Padding: 3, Groups: width}),
		tape.Inline(tape.Permute{0, 2, 3, 1}),
		tape.As("layernorm", layer.LayerNorm{Size: width}),
		tape.As("pwconv1", layer.Linear{In: width, Out: inner}),
		tape.As("act", c.Activation.Layer(layer.UseGELU)),
		tape.As("pwconv2", layer.Linear{In: inner, Out: width}),
	}
	if !c.NoScale {
		body = append(body, tape.Inline(layer.Scaled{Name: "layer_scale_parameter", Shape: []int{width}}))
	}
	body = append(body, tape.Inline(tape.Permute{0, 3, 1, 2}))
	if drops {
		body = append(body, tape.As("drop_path", layer.StochasticDepth{}))
	}
	return tape.Residual{Body: body}
}

// Inputs are images of the usual size.
func (c ConvNeXt) Inputs(batch, _ int) []family.Input {
	return []family.Input{family.Reals(batch, c.Channels, c.Side, c.Side)}
}

// Resized is the network for images of another side.
func (c ConvNeXt) Resized(side int) (family.Images, error) {
	c.Side = side
	return c, nil
}

func readConvNeXt(c *family.Config, a *family.Model) {
	class := c.Class("ConvNextForImageClassification")
	m := ConvNeXt{DropPath: c.Dropout("drop_path_rate"), NoScale: c.Ratio("layer_scale_init_value", 1) <= 0}
	c.Number(&m.Channels, "num_channels", 3)
	c.Number(&m.Patch, "patch_size", 4)
	c.Number(&m.Side, "image_size", 224)
	m.Widths, m.Depths = stages(c, []int{96, 192, 384, 768}, []int{3, 3, 9, 3})
	if n := c.Whole("num_stages", len(m.Depths)); n != len(m.Depths) {
		c.Fail("num_stages", "%d stages with %d depths", n, len(m.Depths))
	}
	c.Activation(a, c.Word("hidden_act"), "gelu")
	m.Activation, a.Activation = a.Activation, 0
	m.Classes = c.ClassesOf(class)
	a.Images = m
}
