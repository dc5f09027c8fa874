package zoo

import "github.com/gpumemtrack/gpumemtrack/estimate"

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
type block func(in, width, stride int) (estimate.Sequential, int)

// plain is the block of two convolutions (arXiv:1512.03385, figure 5).
func plain(in, width, stride int) (estimate.Sequential, int) {
	return estimate.Sequential{
		estimate.As("conv1", estimate.Conv2d{In: in, Out: width, Kernel: 3, Stride: stride, Padding: 1, NoBias: true}),
		estimate.As("bn1", estimate.BatchNorm{Features: width}),
		estimate.As("relu", estimate.ReLU{InPlace: true}),
		estimate.As("conv2", estimate.Conv2d{In: width, Out: width, Kernel: 3, Padding: 1, NoBias: true}),
		estimate.As("bn2", estimate.BatchNorm{Features: width}),
	}, width
}

// bottleneck is the block of three convolutions; base is the width of a group where
// the block has 64 channels (arXiv:1611.05431, arXiv:1605.07146). The stride is that of the
// middle one, as torchvision has it.
func bottleneck(base, groups int) block {
	return func(in, planes, stride int) (estimate.Sequential, int) {
		width, out := planes*base/64*groups, 4*planes
		return estimate.Sequential{
			estimate.As("conv1", estimate.Conv2d{In: in, Out: width, Kernel: 1, NoBias: true}),
			estimate.As("bn1", estimate.BatchNorm{Features: width}),
			estimate.As("relu", estimate.ReLU{InPlace: true}),
			estimate.As("conv2", estimate.Conv2d{In: width, Out: width, Kernel: 3, Stride: stride, Padding: 1, Groups: groups, NoBias: true}),
			estimate.As("bn2", estimate.BatchNorm{Features: width}),
			estimate.As("relu", estimate.ReLU{InPlace: true}),
			estimate.As("conv3", estimate.Conv2d{In: width, Out: out, Kernel: 1, NoBias: true}),
			estimate.As("bn3", estimate.BatchNorm{Features: out}),
		}, out
	}
}

func resnet(b block, depths ...int) func() []estimate.Layer {
	return func() []estimate.Layer {
		layers := []estimate.Layer{
			estimate.As("conv1", estimate.Conv2d{In: 3, Out: 64, Kernel: 7, Stride: 2, Padding: 3, NoBias: true}),
			estimate.As("bn1", estimate.BatchNorm{Features: 64}),
			estimate.As("relu", estimate.ReLU{InPlace: true}),
			estimate.As("maxpool", estimate.MaxPool{Kernel: 3, Stride: 2, Padding: 1}),
		}
		in := 64
		for i, depth := range depths {
			var stage estimate.Sequential
			for j := range depth {
				stride := 1
				if i > 0 && j == 0 {
					stride = 2
				}
				var r estimate.Residual
				r, in = residual(b, in, 64<<i, stride)
				stage = append(stage, r)
			}
			layers = append(layers, estimate.As([]string{"layer1", "layer2", "layer3", "layer4"}[i], stage))
		}
		return append(layers,
			estimate.As("avgpool", estimate.AdaptiveAvgPool{Out: 1}), estimate.Flatten{},
			estimate.As("fc", estimate.Linear{In: in, Out: 1000}))
	}
}

func residual(b block, in, width, stride int) (estimate.Residual, int) {
	body, out := b(in, width, stride)
	r := estimate.Residual{Body: body, After: estimate.As("relu", estimate.ReLU{InPlace: true})}
	if stride != 1 || in != out {
		r.Shortcut = estimate.As("downsample", estimate.Sequential{
			estimate.Conv2d{In: in, Out: out, Kernel: 1, Stride: stride, NoBias: true},
			estimate.BatchNorm{Features: out},
		})
	}
	return r, out
}
