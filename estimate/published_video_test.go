package estimate_test

import (
	"fmt"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// conv makes a convolution without bias, padded by half of its kernel, over (frames, height, width).
type conv func(in, out int, kernel, stride [3]int) tape.Layer

func halved(kernel [3]int) [3]int { return [3]int{kernel[0] / 2, kernel[1] / 2, kernel[2] / 2} }

func inFrames(in, out int, kernel, stride [3]int) tape.Layer {
	return layer.Conv2d{In: in, Out: out, Kernel: kernel[1], Stride: stride[1], Padding: kernel[1] / 2, NoBias: true}
}

func overFrames(in, out int, kernel, stride [3]int) tape.Layer {
	return layer.Conv3d{In: in, Out: out, Kernels: kernel, Strides: stride, Paddings: halved(kernel), NoBias: true}
}

// inThenOverFrames is R(2+1)D's convolution (arXiv:1711.11248), with as many channels between its parts as make
// it as large as a whole one.
func inThenOverFrames(in, out int, kernel, stride [3]int) tape.Layer {
	area := kernel[1] * kernel[2]
	middle := 3 * in * out * area / (in*area + 3*out)
	return tape.Sequential{
		overFrames(in, middle, [3]int{1, kernel[1], kernel[2]}, [3]int{1, stride[1], stride[2]}),
		layer.BatchNorm{Features: middle}, layer.ReLU{InPlace: true},
		overFrames(middle, out, [3]int{kernel[0], 1, 1}, [3]int{stride[0], 1, 1}),
	}
}

// shift moves channels between neighbouring frames, which copies all of them (arXiv:1811.08383).
func shift(f *tape.Flow, x tape.Tensor) tape.Tensor { return f.Copy(x) }

// videoResNet is mmaction2's ResNet and ResNet3d: their settings of the same names.
type videoResNet struct {
	conv         conv
	blocks       [4]int
	basic        bool // blocks of two convolutions in place of bottlenecks
	channels     int
	conv1        int // the length of its kernel over frames; 0 for a network of single frames
	inflate      func(stage, block int) bool
	conv1Stride  int // over frames
	pool1Stride  int // over frames
	pool2        bool
	frameStrides [4]int
	lateral      int // channels that come from another pathway, for eight of its own
	shifted      bool
}

var (
	depth50  = [4]int{3, 4, 6, 3} // and of depth 34
	depth101 = [4]int{3, 4, 23, 3}
)

func always(int, int) bool            { return true }
func never(int, int) bool             { return false }
func lastStages(stage, _ int) bool    { return stage >= 2 }
func alternate(stage, block int) bool { return stage == 0 || block%2 == stage/3 }

func (n videoResNet) normed(in, out int, kernel, stride [3]int) tape.Sequential {
	return tape.Sequential{n.conv(in, out, kernel, stride), layer.BatchNorm{Features: out}}
}

func relued(s tape.Sequential) tape.Sequential {
	return append(s, layer.ReLU{InPlace: true})
}

func (n videoResNet) stem() tape.Sequential {
	pool := layer.MaxPool{Kernel: 3, Stride: 2, Padding: 1}
	if n.dims() == 3 {
		pool = layer.MaxPool{Kernels: [3]int{1, 3, 3}, Strides: [3]int{max(1, n.pool1Stride), 2, 2}, Paddings: [3]int{0, 1, 1}}
	}
	return append(relued(n.normed(3, n.channels, [3]int{n.conv1, 7, 7}, [3]int{max(1, n.conv1Stride), 2, 2})), pool)
}

func (n videoResNet) dims() int {
	if n.conv1 == 0 {
		return 2
	}
	return 3
}

func (n videoResNet) expansion() int {
	if n.basic {
		return 1
	}
	return 4
}

func (n videoResNet) stage(i int) tape.Sequential {
	width, one, unit := n.channels<<i, [3]int{1, 1, 1}, [3]int{1, 1, 1}
	out := width * n.expansion()
	in := n.channels
	if i > 0 {
		in = out / 2
	}
	in += in * n.lateral / 8
	var stage tape.Sequential
	for b := range n.blocks[i] {
		stride, frames := unit, 1
		if i > 0 && b == 0 {
			stride = [3]int{max(1, n.frameStrides[i]), 2, 2}
		}
		if n.inflate(i, b) {
			frames = 3
		}
		var body tape.Sequential
		if n.shifted {
			body = append(body, tape.Module{Name: "Shift", Run: shift})
		}
		if n.basic {
			body = append(body, relued(n.normed(in, width, [3]int{frames, 3, 3}, stride))...)
			body = append(body, n.normed(width, width, [3]int{frames, 3, 3}, unit)...)
		} else {
			body = append(body, relued(n.normed(in, width, [3]int{frames, 1, 1}, unit))...)
			body = append(body, relued(n.normed(width, width, [3]int{1, 3, 3}, stride))...)
			body = append(body, n.normed(width, out, one, unit)...)
		}
		r := tape.Residual{Body: body, After: layer.ReLU{InPlace: true}}
		if in != out || stride != unit {
			r.Shortcut = n.normed(in, out, one, stride)
		}
		stage, in = append(stage, r), out
	}
	return stage
}

func (n videoResNet) layers() []tape.Layer {
	layers := []tape.Layer{tape.As("stem", n.stem())}
	for i := range 4 {
		layers = append(layers, tape.As("layer"+strconv.Itoa(i+1), n.stage(i)))
		if n.pool2 && i == 0 {
			layers = append(layers, layer.MaxPool{Kernels: [3]int{2, 1, 1}})
		}
	}
	return append(layers, layer.AdaptiveAvgPool(1), layer.Flatten{}, layer.Dropout{},
		layer.Linear{In: 8 * n.channels * n.expansion(), Out: 400}, layer.CrossEntropy{})
}

// slowFast is two pathways (arXiv:1812.03982). The slow one has one of every so many frames, and the fast one an eighth of
// the channels: after each stage it tells the slow one what it saw, by a kernel over so many frames.
func slowFast(every, kernel int) []tape.Layer {
	slow := videoResNet{conv: overFrames, blocks: depth50, channels: 64, conv1: 1, inflate: lastStages, lateral: 2}
	fast := videoResNet{conv: overFrames, blocks: depth50, channels: 8, conv1: 5, inflate: always}
	var parts tape.Sequential
	for i := range 5 {
		of, width, slows, fasts := "stem", fast.channels, slow.stem(), fast.stem()
		if i > 0 {
			of, width = "layer"+strconv.Itoa(i), fast.channels<<(i-1)*fast.expansion()
			slows, fasts = slow.stage(i-1), fast.stage(i-1)
		}
		parts = append(parts, tape.As("slow."+of, slows), tape.As("fast."+of, fasts))
		if i < 4 {
			parts = append(parts, tape.As("lateral."+of, overFrames(width, 2*width, [3]int{kernel, 1, 1}, [3]int{every, 1, 1})))
		}
	}
	parts = append(parts, tape.As("fc", tape.Sequential{layer.Dropout{}, layer.Linear{In: 2304, Out: 400}}))
	return []tape.Layer{tape.Module{Name: "SlowFast", Parts: parts, Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		slow := f.Resize(x, x.Dim(2)/every, x.Dim(3), x.Dim(4))
		fast := x
		for _, of := range []string{"stem", "layer1", "layer2", "layer3", "layer4"} {
			slow, fast = f.Call("slow."+of, slow), f.Call("fast."+of, fast)
			if of != "layer4" {
				slow = f.Cat(1, slow, f.Call("lateral."+of, fast))
			}
		}
		mean := func(x tape.Tensor) tape.Tensor {
			return f.Apply(layer.Flatten{}, f.Apply(layer.AdaptiveAvgPool(1), x))
		}
		return f.Apply(layer.CrossEntropy{}, f.Call("fc", f.Cat(1, mean(slow), mean(fast))))
	}}}
}

// The parameters are those that mmaction2 gives (configs/recognition/slowfast/metafile.yml at 09f41cb4).
func TestSlowFastParameters(t *testing.T) {
	assert.EqualValues(t, 34_479_288, model(t, layer.Public(slowFast(8, 5))).Params.Count)
	assert.EqualValues(t, 34_565_560, model(t, layer.Public(slowFast(4, 7))).Params.Count)
}

// c3d is a VGG of 3 x 3 x 3 windows (arXiv:1412.0767).
func c3d() []tape.Layer {
	var layers []tape.Layer
	pool := layer.MaxPool{Kernel: 2}
	in := 3
	for stage, widths := range [][]int{{64}, {128}, {256, 256}, {512, 512}, {512, 512}} {
		for _, width := range widths {
			layers = append(layers, layer.Conv3d{In: in, Out: width, Kernel: 3, Padding: 1}, layer.ReLU{InPlace: true})
			in = width
		}
		last := pool
		switch stage {
		case 0:
			last.Kernels = [3]int{1, 2, 2}
		case 4:
			last.Paddings = [3]int{0, 1, 1}
		}
		layers = append(layers, last)
	}
	layers = append(layers, layer.Flatten{})
	in = 8192
	for range 2 {
		layers = append(layers, layer.Linear{In: in, Out: 4096}, layer.ReLU{InPlace: true}, layer.Dropout{})
		in = 4096
	}
	return append(layers, layer.Dropout{}, layer.Linear{In: in, Out: 101}, layer.CrossEntropy{})
}

// openMMLab is how mmcv 1 trains on V100s, with PyTorch 1.5: it sets gradients to zero, SGD has a weight decay, and what a
// step returns has the losses alone.
var openMMLab = together(
	estimate.Loop{ZeroGrad: "kept", Output: "dropped", Form: "one-by-one", Decay: "used"},
	estimate.Installed("torch==1.5"), estimate.Machine{GPU: "volta"},
)

// videoRows are mmaction2's, each on one of 8 replicas.
func videoRows() []owned {
	row := func(model string, layers []tape.Layer, dims ...int) owned {
		setting := fmt.Sprintf("%d frames", dims[0])
		if len(dims) == 5 {
			setting = fmt.Sprintf("%d videos of %d frames", dims[0], dims[2])
		}
		return owned{
			model: model, setting: setting + ", SGD with momentum, one of 8 replicas", layers: layers,
			opts: opts(estimate.InputShape(dims...), estimate.Train("momentum"), openMMLab, estimate.Sharding{Data: 8}),
		}
	}
	tsn := videoResNet{conv: inFrames, blocks: depth50, channels: 64, inflate: never}
	tsm := tsn
	tsm.shifted = true
	slowOnly := videoResNet{conv: overFrames, blocks: depth50, channels: 64, conv1: 1, inflate: lastStages}
	i3d := videoResNet{conv: overFrames, blocks: depth50, channels: 64, conv1: 5, inflate: alternate, conv1Stride: 2, pool1Stride: 2, pool2: true}
	r2plus1d := videoResNet{conv: inThenOverFrames, blocks: depth50, basic: true, channels: 64, conv1: 3, inflate: always, frameStrides: [4]int{1, 2, 2, 2}}
	return []owned{
		row("TSN ResNet-50", tsn.layers(), 96, 3, 224, 224),
		row("TSM ResNet-50", tsm.layers(), 64, 3, 224, 224),
		row("SlowOnly ResNet-50", slowOnly.layers(), 8, 3, 4, 224, 224),
		row("SlowOnly ResNet-50", slowOnly.layers(), 8, 3, 8, 224, 224),
		row("SlowOnly ResNet-50", slowOnly.layers(), 24, 3, 4, 224, 224),
		row("I3D ResNet-50", i3d.layers(), 8, 3, 32, 224, 224),
		row("R(2+1)D-34", r2plus1d.layers(), 8, 3, 8, 224, 224),
		row("R(2+1)D-34", r2plus1d.layers(), 6, 3, 32, 224, 224),
		row("C3D", c3d(), 30, 3, 16, 112, 112),
		row("SlowFast ResNet-50, 4 x 16", slowFast(8, 5), 8, 3, 32, 224, 224),
		row("SlowFast ResNet-50, 8 x 8", slowFast(4, 7), 8, 3, 32, 224, 224),
	}
}
