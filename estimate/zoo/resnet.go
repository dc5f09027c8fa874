package zoo

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

var resnets = []entry{
	image("resnet18", "ResNet-18", 11689512, resnet(plain, 2, 2, 2, 2)),
	image("resnet34", "ResNet-34", 21797672, resnet(plain, 3, 4, 6, 3)),
	image("resnet50", "ResNet-50", 25557032, resnet(bottleneck(64, 1), 3, 4, 6, 3)),
	image("resnet101", "ResNet-101", 44549160, resnet(bottleneck(64, 1), 3, 4, 23, 3)),
	image("resnet152", "ResNet-152", 60192808, resnet(bottleneck(64, 1), 3, 8, 36, 3)),
	image("resnext50_32x4d", "ResNeXt-50 32x4d", 25028904, resnet(bottleneck(4, 32), 3, 4, 6, 3)),
	image("wide_resnet50_2", "Wide ResNet-50-2", 68883240, resnet(bottleneck(128, 1), 3, 4, 6, 3)),
}

// block makes the body of a block and says how many channels leave it.
type block func(in, width, stride int) (tape.Sequential, int)

// plain is the block of two convolutions (arXiv:1512.03385, figure 5).
func plain(in, width, stride int) (tape.Sequential, int) {
	return tape.Sequential{
		tape.As("conv1", layer.Conv2d{In: in, Out: width, Kernel: 3, Stride: stride, Padding: 1, NoBias: true}),
		tape.As("bn1", layer.BatchNorm{Features: width}),
		tape.As("relu", layer.ReLU{InPlace: true}),
		tape.As("conv2", layer.Conv2d{In: width, Out: width, Kernel: 3, Padding: 1, NoBias: true}),
		tape.As("bn2", layer.BatchNorm{Features: width}),
	}, width
}

// bottleneck is the block of three convolutions; base is the width of a group where
// the block has 64 channels (arXiv:1611.05431, arXiv:1605.07146). The stride is that of the
// middle one, as torchvision has it.
func bottleneck(base, groups int) block {
	return func(in, planes, stride int) (tape.Sequential, int) {
		width, out := planes*base/64*groups, 4*planes
		return tape.Sequential{
			tape.As("conv1", layer.Conv2d{In: in, Out: width, Kernel: 1, NoBias: true}),
			tape.As("bn1", layer.BatchNorm{Features: width}),
			tape.As("relu", layer.ReLU{InPlace: true}),
			tape.As("conv2", layer.Conv2d{In: width, Out: width, Kernel: 3, Stride: stride, Padding: 1, Groups: groups, NoBias: true}),
			tape.As("bn2", layer.BatchNorm{Features: width}),
			tape.As("relu", layer.ReLU{InPlace: true}),
			tape.As("conv3", layer.Conv2d{In: width, Out: out, Kernel: 1, NoBias: true}),
			tape.As("bn3", layer.BatchNorm{Features: out}),
		}, out
	}
}

func resnet(b block, depths ...int) func() []tape.Layer {
	return func() []tape.Layer {
		layers := []tape.Layer{
			tape.As("conv1", layer.Conv2d{In: 3, Out: 64, Kernel: 7, Stride: 2, Padding: 3, NoBias: true}),
			tape.As("bn1", layer.BatchNorm{Features: 64}),
			tape.As("relu", layer.ReLU{InPlace: true}),
			tape.As("maxpool", layer.MaxPool{Kernel: 3, Stride: 2, Padding: 1}),
		}
		in := 64
		for i, depth := range depths {
			var stage tape.Sequential
			for j := range depth {
				stride := 1
				if i > 0 && j == 0 {
					stride = 2
				}
				var r tape.Residual
				r, in = residual(b, in, 64<<i, stride)
				stage = append(stage, r)
			}
			layers = append(layers, tape.As([]string{"layer1", "layer2", "layer3", "layer4"}[i], stage))
		}
		return append(layers,
			tape.As("avgpool", layer.AdaptiveAvgPool{Out: 1}), layer.Flatten{},
			tape.As("fc", layer.Linear{In: in, Out: 1000}))
	}
}

func residual(b block, in, width, stride int) (tape.Residual, int) {
	body, out := b(in, width, stride)
	r := tape.Residual{Body: body, After: tape.As("relu", layer.ReLU{InPlace: true})}
	if stride != 1 || in != out {
		r.Shortcut = tape.As("downsample", tape.Sequential{
			layer.Conv2d{In: in, Out: out, Kernel: 1, Stride: stride, NoBias: true},
			layer.BatchNorm{Features: out},
		})
	}
	return r, out
}
