package estimate

// ResNet is a convolutional network of residual blocks (arXiv:1512.03385), whose modules are named as those of
// transformers. Width, Widths and Depths have no defaults.
type ResNet struct {
	Channels   int   // of the image; 0 means 3
	Width      int   // after the first convolution
	Widths     []int // of each stage
	Depths     []int // blocks of each stage
	Basic      bool  // blocks of two convolutions, not of three with fewer channels inside
	EarlyHalf  bool  // the first stage halves the image too
	EarlyPlace bool  // blocks that halve the image do so in their first convolution
	Activation Activation
	Classes    int // of the classifier; 0 for none
}

// Layers returns the model's layers. What is wrong with the numbers, Model reports.
func (c ResNet) Layers() []Layer {
	if len(c.Widths) == 0 || len(c.Widths) != len(c.Depths) {
		return []Layer{wrong("Widths and Depths must have a number for each stage")}
	}
	act := c.Activation.layer(UseReLU)
	var stages Sequential
	width := c.Width
	for i, to := range c.Widths {
		stride := 2
		if i == 0 && !c.EarlyHalf {
			stride = 1
		}
		var blocks Sequential
		for range max(0, min(c.Depths[i], maxLayers)) {
			blocks = append(blocks, c.block(width, to, stride, act))
			width, stride = to, 1
		}
		stages = append(stages, Sequential{Named{"layers", blocks}})
	}
	body := Sequential{
		Named{"embedder", Sequential{
			Named{"embedder", convNorm(or(c.Channels, 3), c.Width, 7, 2, act)},
			Named{"pooler", MaxPool{Kernel: 3, Stride: 2, Padding: 1}},
		}},
		Named{"encoder", Sequential{Named{"stages", stages}}},
		Named{"pooler", AdaptiveAvgPool{Out: 1}},
	}
	if c.Classes == 0 {
		return []Layer{inline{body}}
	}
	return []Layer{Named{"resnet", body}, Named{"classifier", Sequential{Flatten{}, Linear{In: width, Out: c.Classes}}}}
}

// convNorm is a convolution, a norm and a function, which may be nil.
func convNorm(in, out, kernel, stride int, act Layer) Sequential {
	s := Sequential{
		Named{"convolution", Conv2d{In: in, Out: out, Kernel: kernel, Stride: stride, Padding: kernel / 2, NoBias: true}},
		Named{"normalization", BatchNorm{Features: out}},
	}
	if act != nil {
		s = append(s, Named{"activation", act})
	}
	return s
}

func (c ResNet) block(in, out, stride int, act Layer) Layer {
	first, second := stride, 1
	if !c.Basic && !c.EarlyPlace {
		first, second = 1, stride
	}
	body := Sequential{convNorm(in, out, 3, first, act), convNorm(out, out, 3, second, nil)}
	if !c.Basic {
		inner := out / 4
		body = Sequential{convNorm(in, inner, 1, first, act), convNorm(inner, inner, 3, second, act), convNorm(inner, out, 1, 1, nil)}
	}
	r := Residual{Body: Sequential{Named{"layer", body}}, After: Named{"activation", act}}
	if in != out || stride != 1 {
		r.Shortcut = Named{"shortcut", convNorm(in, out, 1, stride, nil)}
	}
	return r
}
