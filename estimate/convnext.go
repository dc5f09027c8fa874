package estimate

// ConvNeXt is a convolutional network with blocks like those of a transformer (arXiv:2201.03545), whose modules are
// named as those of transformers. A zero Patch is 4.
type ConvNeXt struct {
	Channels   int   // of the image; 0 means 3
	Patch      int   // side of what the first convolution joins to a place
	Widths     []int // of each stage
	Depths     []int // blocks of each stage
	DropPath   float64
	NoScale    bool // blocks do not multiply what they make by learned factors
	Activation Activation
	Classes    int // of the classifier; 0 for none
}

// Layers returns the model's layers. What is wrong with the numbers, Model reports.
func (c ConvNeXt) Layers() []Layer {
	if len(c.Widths) == 0 || len(c.Widths) != len(c.Depths) {
		return []Layer{wrong("Widths and Depths must have a number for each stage")}
	}
	patch, width := or(c.Patch, 4), c.Widths[0]
	embed := Sequential{
		Named{"patch_embeddings", Conv2d{In: or(c.Channels, 3), Out: width, Kernel: patch, Stride: patch}},
		Named{"layernorm", LayerNorm2d{Channels: width}},
	}
	var stages Sequential
	first := true
	for i, to := range c.Widths {
		var stage, blocks Sequential
		if i > 0 {
			stage = Sequential{Named{"downsampling_layer", Sequential{LayerNorm2d{Channels: width}, Conv2d{In: width, Out: to, Kernel: 2, Stride: 2}}}}
		}
		for range max(0, min(c.Depths[i], maxLayers)) {
			blocks = append(blocks, c.block(to, c.DropPath > 0 && !first))
			first = false
		}
		stages, width = append(stages, append(stage, Named{"layers", blocks})), to
	}
	body := Sequential{
		Named{"embeddings", embed},
		Named{"encoder", Sequential{Named{"stages", stages}}},
		inline{AdaptiveAvgPool{Out: 1}}, inline{Flatten{}},
		Named{"layernorm", LayerNorm{Size: width}},
	}
	if c.Classes == 0 {
		return []Layer{inline{body}}
	}
	return []Layer{Named{"convnext", body}, Named{"classifier", Linear{In: width, Out: c.Classes}}}
}

func (c ConvNeXt) block(width int, drops bool) Layer {
	inner := 4 * min(width, maxField/4)
	body := Sequential{
		Named{"dwconv", Conv2d{In: width, Out: width, Kernel: 7, Padding: 3, Groups: width}},
		inline{Permute{Dims: []int{0, 2, 3, 1}}},
		Named{"layernorm", LayerNorm{Size: width}},
		Named{"pwconv1", Linear{In: width, Out: inner}},
		Named{"act", c.Activation.layer(UseGELU)},
		Named{"pwconv2", Linear{In: inner, Out: width}},
	}
	if !c.NoScale {
		body = append(body, inline{Scaled{Name: "layer_scale_parameter", Shape: []int{width}}})
	}
	body = append(body, inline{Permute{Dims: []int{0, 3, 1, 2}}})
	if drops {
		body = append(body, Named{"drop_path", StochasticDepth{}})
	}
	return Residual{Body: body}
}
