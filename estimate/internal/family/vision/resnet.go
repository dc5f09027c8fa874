package vision

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

var resNetFamily = &family.Family{
	Name:  "ResNet",
	Types: []family.Type{{Name: "resnet", Base: "ResNetModel", Read: readResNet}},
}

// ResNet is a convolutional network of residual blocks (arXiv:1512.03385). Its modules are named as
// in transformers. Width, Widths and Depths have no defaults.
type ResNet struct {
	Channels   int   // of the image; 0 means 3
	Width      int   // after the first convolution
	Widths     []int // of each stage
	Depths     []int // blocks of each stage
	Basic      bool  // blocks have two convolutions, not three with fewer channels between
	EarlyHalf  bool  // the first stage also halves the image
	EarlyPlace bool  // blocks that halve the image do so in their first convolution
	Activation layer.Activation
	Classes    int // of the classifier; 0 for none
	Side       int // usual side of its images; any other works
}

// Layers returns the model's layers. Model reports numbers that make no sense.
func (c ResNet) Layers() []tape.Layer {
	if len(c.Widths) == 0 || len(c.Widths) != len(c.Depths) {
		return []tape.Layer{tape.Wrong("Widths and Depths must have a number for each stage")}
	}
	act := c.Activation.Layer(layer.UseReLU)
	var stages tape.Sequential
	width := c.Width
	for i, to := range c.Widths {
		stride := 2
		if i == 0 && !c.EarlyHalf {
			stride = 1
		}
		var blocks tape.Sequential
		for range max(0, min(c.Depths[i], tape.MaxLayers)) {
			blocks = append(blocks, c.block(width, to, stride, act))
			width, stride = to, 1
		}
		stages = append(stages, tape.Sequential{tape.As("layers", blocks)})
	}
	body := tape.Sequential{
		tape.As("embedder", tape.Sequential{
			tape.As("embedder", convNorm(setting.Or(c.Channels, 3), c.Width, 7, 2, act)),
			tape.As("pooler", layer.MaxPool{Kernel: 3, Stride: 2, Padding: 1}),
		}),
		tape.As("encoder", tape.Sequential{tape.As("stages", stages)}),
		tape.As("pooler", layer.AdaptiveAvgPool(1)),
	}
	if c.Classes == 0 {
		return []tape.Layer{tape.Inline(body)}
	}
	return []tape.Layer{tape.As("resnet", body), tape.As("classifier", tape.Sequential{layer.Flatten{}, layer.Linear{In: width, Out: c.Classes}})}
}

// convNorm returns a convolution, a norm and an activation, which may be nil.
func convNorm(in, out, kernel, stride int, act tape.Layer) tape.Sequential {
	s := tape.Sequential{
		tape.As("convolution", layer.Conv2d{In: in, Out: out, Kernel: kernel, Stride: stride, Padding: kernel / 2, NoBias: true}),
		tape.As("normalization", layer.BatchNorm{Features: out}),
	}
	if act != nil {
		s = append(s, tape.As("activation", act))
	}
	return s
}

func (c ResNet) block(in, out, stride int, act tape.Layer) tape.Layer {
	first, second := stride, 1
	if !c.Basic && !c.EarlyPlace {
		first, second = 1, stride
	}
	body := tape.Sequential{convNorm(in, out, 3, first, act), convNorm(out, out, 3, second, nil)}
	if !c.Basic {
		inner := out / 4
		body = tape.Sequential{convNorm(in, inner, 1, first, act), convNorm(inner, inner, 3, second, act), convNorm(inner, out, 1, 1, nil)}
	}
	r := tape.Residual{Body: tape.Sequential{tape.As("layer", body)}, After: tape.As("activation", act)}
	if in != out || stride != 1 {
		r.Shortcut = tape.As("shortcut", convNorm(in, out, 1, stride, nil))
	}
	return r
}

// Inputs are images of the usual size.
func (c ResNet) Inputs(batch, _ int) []family.Input {
	return []family.Input{family.Reals(batch, c.Channels, c.Side, c.Side)}
}

// Resized is the network for images of another side.
func (c ResNet) Resized(side int) (family.Images, error) {
	c.Side = side
	return c, nil
}

func readResNet(c *family.Config, a *family.Model) {
	class := c.Class("ResNetForImageClassification")
	var m ResNet
	c.Number(&m.Channels, "num_channels", 3)
	c.Number(&m.Width, "embedding_size", 64)
	c.Number(&m.Side, "image_size", 224)
	m.Widths, m.Depths = stages(c, []int{256, 512, 1024, 2048}, []int{3, 4, 6, 3})
	switch kind := c.Word("layer_type"); kind {
	case "", "bottleneck":
	case "basic":
		m.Basic = true
	default:
		c.Unknown("layer_type", kind)
	}
	m.EarlyHalf, m.EarlyPlace = c.Flag("downsample_in_first_stage", false), c.Flag("downsample_in_bottleneck", false)
	c.Activation(a, c.Word("hidden_act"), "relu")
	m.Activation, a.Activation = a.Activation, 0
	m.Classes = c.ClassesOf(class)
	a.Images = m
}

// stages reads the width of each stage of a convolutional model, and its number of blocks.
func stages(c *family.Config, widths, depths []int) ([]int, []int) {
	if own := c.List("hidden_sizes"); own != nil {
		widths = own
	}
	if own := c.List("depths"); own != nil {
		depths = own
	}
	if len(widths) != len(depths) || len(widths) == 0 {
		c.Fail("hidden_sizes, depths", "%d and %d stages", len(widths), len(depths))
		return nil, nil
	}
	for i, depth := range depths {
		if widths[i] < 4 || widths[i] > family.LargestNumber || depth < 1 || depth > family.MaxBlocks {
			c.Fail("hidden_sizes, depths", "stage %d has %d blocks of %d channels", i, depth, widths[i])
		}
	}
	return widths, depths
}
