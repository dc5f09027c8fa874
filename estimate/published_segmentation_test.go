package estimate_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// convModule is mmcv's: a convolution, its norm and a ReLU in place.
func convModule(in, out, kernel, stride, dilation int) tape.Sequential {
	return tape.Sequential{
		layer.Conv2d{In: in, Out: out, Kernel: kernel, Stride: stride, Padding: dilation * (kernel / 2), Dilation: dilation, NoBias: true},
		layer.BatchNorm{Features: out}, layer.ReLU{InPlace: true},
	}
}

// backbone is a ResNet with a deep stem, whose stages are strided or have windows that are spread.
type backbone struct {
	blocks             [4]int
	basic              bool
	strides, dilations [4]int
}

// The settings that mmsegmentation names after the size of the last stage: a 32nd or an 8th of the image's.
func d32(blocks [4]int) backbone {
	return backbone{blocks: blocks, strides: [4]int{1, 2, 2, 2}, dilations: [4]int{1, 1, 1, 1}}
}

func d8(blocks [4]int) backbone {
	return backbone{blocks: blocks, strides: [4]int{1, 2, 1, 1}, dilations: [4]int{1, 1, 2, 4}}
}

func (b backbone) stem() tape.Sequential {
	stem := append(append(convModule(3, 32, 3, 2, 1), convModule(32, 32, 3, 1, 1)...), convModule(32, 64, 3, 1, 1)...)
	return append(stem, layer.MaxPool{Kernel: 3, Stride: 2, Padding: 1})
}

func (b backbone) width(stage int) int {
	if b.basic {
		return 64 << stage
	}
	return 256 << stage
}

func (b backbone) stage(i int) tape.Sequential {
	in, width, out, stride := 64, 64<<i, b.width(i), b.strides[i]
	if i > 0 {
		in = b.width(i - 1)
	}
	var stage tape.Sequential
	for block := range b.blocks[i] {
		dilation := b.dilations[i]
		if block == 0 && dilation > 1 {
			dilation /= 2
		}
		body := append(convModule(in, width, 1, 1, 1), convModule(width, width, 3, stride, dilation)...)
		last := convModule(width, out, 1, 1, 1)
		if b.basic {
			body, last = convModule(in, width, 3, stride, dilation), convModule(width, out, 3, 1, 1)
		}
		r := tape.Residual{Body: append(body, last[:2]...), After: layer.ReLU{InPlace: true}}
		if in != out || stride != 1 {
			r.Shortcut = convModule(in, out, 1, stride, 1)[:2]
		}
		stage, in, stride = append(stage, r), out, 1
	}
	return stage
}

// classify is the last convolution of a head.
func classify(channels, classes int) tape.Named {
	return tape.As("conv_seg", tape.Sequential{layer.ChannelDropout{}, layer.Conv2d{In: channels, Out: classes, Kernel: 1}})
}

// resized is y in the size of x.
func resized(f *tape.Flow, y, x tape.Tensor) tape.Tensor {
	return f.Resize(y, x.Dim(2), x.Dim(3))
}

// fcnHead convolves, and then what it made and its input together (arXiv:1411.4038).
func fcnHead(in, channels, convs int, joins bool, classes int) tape.Module {
	first := convModule(in, channels, 3, 1, 1)
	for range convs - 1 {
		first = append(first, convModule(channels, channels, 3, 1, 1)...)
	}
	parts := tape.Sequential{tape.As("convs", first), classify(channels, classes)}
	if joins {
		parts = append(parts, tape.As("conv_cat", convModule(in+channels, channels, 3, 1, 1)))
	}
	return tape.Module{Name: "FCNHead", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := f.Call("convs", x)
		if joins {
			y = f.Call("conv_cat", f.Cat(1, x, y))
		}
		return f.Call("conv_seg", y)
	}}
}

// pyramid joins x with what it is in four sizes, and mixes them (arXiv:1612.01105).
func pyramid(in, channels int) tape.Module {
	scales := []int{1, 2, 3, 6}
	parts := tape.Sequential{tape.As("bottleneck", convModule(in+len(scales)*channels, channels, 3, 1, 1))}
	for _, scale := range scales {
		parts = append(parts, tape.As("pool"+strconv.Itoa(scale), append(tape.Sequential{layer.AdaptiveAvgPool(scale)}, convModule(in, channels, 1, 1, 1)...)))
	}
	return tape.Module{Name: "PPM", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		all := []tape.Tensor{x}
		for _, scale := range scales {
			all = append(all, resized(f, f.Call("pool"+strconv.Itoa(scale), x), x))
		}
		return f.Call("bottleneck", f.Cat(1, all...))
	}}
}

func pspHead(in, channels, classes int) tape.Sequential {
	return tape.Sequential{pyramid(in, channels), classify(channels, classes)}
}

// aspp is windows spread over different distances and the mean of the image (arXiv:1706.05587), joined and mixed.
func aspp(in, channels int, separable bool) tape.Module {
	dilations := []int{1, 12, 24, 36}
	parts := tape.Sequential{
		tape.As("image_pool", append(tape.Sequential{layer.AdaptiveAvgPool(1)}, convModule(in, channels, 1, 1, 1)...)),
		tape.As("bottleneck", convModule(5*channels, channels, 3, 1, 1)),
	}
	for _, d := range dilations {
		branch := convModule(in, channels, 1, 1, 1)
		if d > 1 && separable {
			branch = depthwise(in, channels, d)
		} else if d > 1 {
			branch = convModule(in, channels, 3, 1, d)
		}
		parts = append(parts, tape.As("dilated"+strconv.Itoa(d), branch))
	}
	return tape.Module{Name: "ASPP", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		all := []tape.Tensor{resized(f, f.Call("image_pool", x), x)}
		for _, d := range dilations {
			all = append(all, f.Call("dilated"+strconv.Itoa(d), x))
		}
		return f.Call("bottleneck", f.Cat(1, all...))
	}}
}

// depthwise is a convolution of each channel, and one of all channels at each place.
func depthwise(in, out, dilation int) tape.Sequential {
	return append(tape.Sequential{
		layer.Conv2d{In: in, Out: in, Kernel: 3, Padding: dilation, Dilation: dilation, Groups: in, NoBias: true},
		layer.BatchNorm{Features: in}, layer.ReLU{InPlace: true},
	}, convModule(in, out, 1, 1, 1)...)
}

// asppHead is DeepLabV3's.
func asppHead(in, channels, classes int) tape.Sequential {
	return tape.Sequential{aspp(in, channels, false), classify(channels, classes)}
}

// sepASPPHead is DeepLabV3+'s (arXiv:1802.02611), which reads the first stage too.
func sepASPPHead(in, channels, classes int) tape.Module {
	parts := tape.Sequential{
		tape.As("aspp", aspp(in, channels, true)), tape.As("c1_bottleneck", convModule(256, 48, 1, 1, 1)),
		tape.As("sep_bottleneck", append(depthwise(channels+48, channels, 1), depthwise(channels, channels, 1)...)), classify(channels, classes),
	}
	return tape.Module{Name: "SepASPPHead", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		first := f.Call("c1_bottleneck", f.Beside(0))
		return f.Call("conv_seg", f.Call("sep_bottleneck", f.Cat(1, resized(f, f.Call("aspp", x), first), first)))
	}}
}

// uperHead adds the stages up from the smallest (arXiv:1807.10221), and joins them.
func uperHead(widths [4]int, channels, classes int) tape.Module {
	parts := tape.Sequential{tape.As("psp", pyramid(widths[3], channels)), tape.As("fpn_bottleneck", convModule(4*channels, channels, 3, 1, 1)), classify(channels, classes)}
	outOfPlace := func(s tape.Sequential) tape.Sequential { return append(s[:2:2], layer.ReLU{}) }
	for i, width := range widths[:3] {
		parts = append(parts, tape.As("lateral"+strconv.Itoa(i), outOfPlace(convModule(width, channels, 1, 1, 1))), tape.As("fpn"+strconv.Itoa(i), outOfPlace(convModule(channels, channels, 3, 1, 1))))
	}
	return tape.Module{Name: "UPerHead", Parts: parts, Run: func(f *tape.Flow, last tape.Tensor) tape.Tensor {
		var lateral [4]tape.Tensor
		for i := range 3 {
			lateral[i] = f.Call("lateral"+strconv.Itoa(i), f.Beside(i))
		}
		lateral[3] = f.Call("psp", last)
		for i := 2; i >= 0; i-- {
			lateral[i] = f.AddTo(lateral[i], resized(f, lateral[i+1], lateral[i]))
		}
		var out [4]tape.Tensor
		for i := range 3 {
			out[i] = f.Call("fpn"+strconv.Itoa(i), lateral[i])
		}
		out[3] = lateral[3]
		for i := 3; i > 0; i-- {
			out[i] = resized(f, out[i], out[0])
		}
		return f.Call("conv_seg", f.Call("fpn_bottleneck", f.Cat(1, out[:]...)))
	}}
}

// segmenter is a backbone with a head that reads its last stage, and the others beside, a second head that reads the
// third, and the losses of both.
func segmenter(b backbone, head, second tape.Layer) []tape.Layer {
	parts := tape.Sequential{tape.As("stem", b.stem()), tape.As("decode_head", head), tape.As("auxiliary_head", second)}
	for i := range 4 {
		parts = append(parts, tape.As("layer"+strconv.Itoa(i+1), b.stage(i)))
	}
	return []tape.Layer{tape.Module{Name: "EncoderDecoder", Parts: parts, Run: func(f *tape.Flow, image tape.Tensor) tape.Tensor {
		var stages [4]tape.Tensor
		x := f.Call("stem", image)
		for i := range stages {
			x = f.Call("layer"+strconv.Itoa(i+1), x)
			stages[i] = x
		}
		first := segmentationLoss(f, f.Call("decode_head", x, stages[:3]...), image)
		return f.Add(first, segmentationLoss(f, f.Call("auxiliary_head", stages[2]), image))
	}}}
}

// unet is mmsegmentation's UNet-S5-D16 (arXiv:1505.04597), whose heads read its last two stages.
func unet(classes int) []tape.Layer {
	pair := func(in, out int) tape.Sequential {
		return append(convModule(in, out, 3, 1, 1), convModule(out, out, 3, 1, 1)...)
	}
	parts := tape.Sequential{
		tape.As("encoder0", pair(3, 64)), tape.As("decode_head", fcnHead(64, 64, 1, false, classes)), tape.As("auxiliary_head", fcnHead(128, 64, 1, false, classes)),
	}
	for i := 1; i < 5; i++ {
		wide, thin, at := 64<<i, 32<<i, strconv.Itoa(i)
		parts = append(parts, tape.As("encoder"+at, append(tape.Sequential{layer.MaxPool{Kernel: 2}}, pair(thin, wide)...)),
			tape.As("upsample"+at, append(tape.Sequential{layer.Upsample(2)}, convModule(wide, thin, 1, 1, 1)...)), tape.As("decoder"+at, pair(wide, thin)))
	}
	return []tape.Layer{tape.Module{Name: "UNet", Parts: parts, Run: func(f *tape.Flow, image tape.Tensor) tape.Tensor {
		var encoded, decoded [5]tape.Tensor
		x := image
		for i := range encoded {
			x = f.Call("encoder"+strconv.Itoa(i), x)
			encoded[i] = x
		}
		for i := 4; i > 0; i-- {
			x = f.Call("decoder"+strconv.Itoa(i), f.Cat(1, encoded[i-1], f.Call("upsample"+strconv.Itoa(i), x)))
			decoded[i] = x
		}
		first := segmentationLoss(f, f.Call("decode_head", x), image)
		return f.Add(first, segmentationLoss(f, f.Call("auxiliary_head", decoded[2]), image))
	}}}
}

// segmentationLoss is that of logits in the size of the image.
func segmentationLoss(f *tape.Flow, logits, image tape.Tensor) tape.Tensor {
	return f.Apply(layer.CrossEntropy{Dim: 1}, resized(f, logits, image))
}

// segmentationRows are mmsegmentation's, of four replicas on V100s, with PyTorch 1.5. A GB that is rounded to tenths is taken
// as a GiB, and one with three decimals, as U-Nets have, as 1000 MiB.
func segmentationRows() []owned {
	row := func(model string, layers []tape.Layer, batch, height, width int) owned {
		return owned{
			model: model, setting: fmt.Sprintf("%d crops of %d x %d, SGD with momentum, one of 4 replicas", batch, height, width), layers: layers,
			opts: opts(estimate.InputShape(batch, 3, height, width), estimate.Train("momentum"), openMMLab, estimate.Sharding{Data: 4}),
		}
	}
	var rows []owned
	for _, b := range []struct {
		name   string
		blocks [4]int
	}{
		{"R-50-D8", depth50}, {"R-101-D8", depth101},
	} {
		for _, h := range []struct {
			name string
			head tape.Layer
		}{
			{"PSPNet", pspHead(2048, 512, 19)}, {"FCN", fcnHead(2048, 512, 2, true, 19)},
			{"DeepLabV3", asppHead(2048, 512, 19)}, {"DeepLabV3+", sepASPPHead(2048, 512, 19)},
		} {
			layers := segmenter(d8(b.blocks), h.head, secondHead(19))
			rows = append(rows, row(h.name+" "+b.name, layers, 2, 512, 1024), row(h.name+" "+b.name, layers, 2, 769, 769))
		}
	}
	uper := func(blocks [4]int, classes int) []tape.Layer {
		return segmenter(d32(blocks), uperHead([4]int{256, 512, 1024, 2048}, 512, classes), secondHead(classes))
	}
	small := d8([4]int{2, 2, 2, 2})
	small.basic = true
	return append(rows,
		row("PSPNet R-50-D32", segmenter(d32(depth50), pspHead(2048, 512, 19), secondHead(19)), 2, 512, 1024),
		row("PSPNet R-18-D8", segmenter(small, pspHead(512, 128, 19), fcnHead(256, 64, 1, false, 19)), 2, 512, 1024),
		row("FCN R-18-D8", segmenter(small, fcnHead(512, 128, 2, true, 19), fcnHead(256, 64, 1, false, 19)), 2, 512, 1024),
		row("DeepLabV3 R-50-D8, 150 classes", segmenter(d8(depth50), asppHead(2048, 512, 150), secondHead(150)), 4, 512, 512),
		row("DeepLabV3+ R-50-D8, 150 classes", segmenter(d8(depth50), sepASPPHead(2048, 512, 150), secondHead(150)), 4, 512, 512),
		row("UPerNet R-50", uper(depth50, 19), 2, 512, 1024),
		row("UPerNet R-101", uper(depth101, 19), 2, 512, 1024),
		row("UPerNet R-50", uper(depth50, 19), 2, 769, 769),
		row("UPerNet R-50, 150 classes", uper(depth50, 150), 4, 512, 512),
		row("FCN on a U-Net", unet(2), 4, 128, 128),
		row("FCN on a U-Net", unet(2), 4, 256, 256),
	)
}

// publishedConvolutions is the part of docs/estimate.md about their workspaces.
const publishedConvolutions = `
## Convolutions

The convolutional models of the table were trained on V100s, most of them with PyTorch 1.5. There the weight's gradient of a 3 x 3
convolution in float32, with neither stride nor dilation, is computed of transformed tensors (Winograd's algorithm): each
tile of 4 x 4 places of the input and of the output becomes 6 x 6 numbers, and so does each kernel. PyTorch takes the algorithm
that cuDNN expects to be the fastest, whatever memory it needs. This workspace is in the values from 128 channels on both
sides: for PSPNet R-101-D8 it is 936 MiB, a tenth of all. The U-Nets, of 64 channels where they need most, have none.

mmsegmentation rounds most of its values to a tenth of a GB, which is 3 % of the smallest. These GB are GiB, except those of
U-Nets, which have three decimals and are 1000 MiB.

On GPUs from Ampere on tensor cores compute float32 too, by algorithms of which no measurement was found. If the GPU is one of
these, or is not known (` + "`Machine`" + `), the values have the same workspace, and the lower bounds have none. Workspaces of other
algorithms are not modelled: for that reason the upper bounds have the largest tensor of a convolution besides.
`

// secondHead reads the third of a ResNet's stages.
func secondHead(classes int) tape.Module { return fcnHead(1024, 256, 1, false, classes) }

// The weight's gradient of a window that is neither strided nor spread has a workspace, and the lower bound does
// without it where nobody measured it.
func TestConvolutionsNeedWorkspaces(t *testing.T) {
	allocated := func(dilation int, opts ...estimate.Option) estimate.Value {
		layers := []tape.Layer{layer.Learned{Shape: alloc.Shape{128, 8, 16}}, layer.Conv2d{In: 128, Out: 256, Kernel: 3, Padding: dilation, Dilation: dilation, NoBias: true}}
		opts = append(opts, estimate.InputShape(2, 128, 8, 16), estimate.Train("sgd"), estimate.Loop{Form: "one-by-one", Decay: "none"})
		return model(t, layer.Public(layers), opts...).Memory().Footprint.Allocated
	}
	const workspace = 36 * (128*256 + 2*2*4*(128+256)) * 4
	volta := estimate.Machine{GPU: "volta"}
	measured, without := allocated(1, volta), allocated(2, volta)
	assert.EqualValues(t, workspace, measured.Bytes-without.Bytes)
	half := estimate.Precision(alloc.Float16)
	assert.Equal(t, allocated(2, volta, half), allocated(1, volta, half), "other algorithms compute in float16")
	for _, gpu := range []string{"", "hopper"} {
		f := allocated(1, estimate.Machine{GPU: gpu})
		assert.Equal(t, measured.Bytes, f.Bytes)
		assert.InDelta(t, float64(without.Lower), float64(f.Lower), 1)
	}
}
