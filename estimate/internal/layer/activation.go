package layer

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type ReLU nn.ReLU

type ReLU6 nn.ReLU

type SiLU nn.ReLU

type GELU struct{}

type Sigmoid struct{}

type Tanh struct{}

type Softmax struct{}

type LogSoftmax struct{}

// NewGELU is GPT-2's GELU: 0.5x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) in
// elementary operations, which keep four tensors.
type NewGELU struct{}

// QuickGELU is x * sigmoid(1.702x) in elementary operations.
type QuickGELU struct{}

func (l ReLU) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if t.Cfg.Release.Before(1, 10) && !l.InPlace { // github.com/pytorch/pytorch/pull/63089
		return KeepInput(t, x, false)
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, InPlace: l.InPlace, KeepOutput: true})
}

func (l ReLU6) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return KeepInput(t, x, l.InPlace)
}

func (l SiLU) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return KeepInput(t, x, l.InPlace)
}

func (GELU) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return KeepInput(t, x, false) }

func (Sigmoid) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return KeepOutput(t, x) }

func (Tanh) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return KeepOutput(t, x) }

func (Softmax) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return keepSoftmax(t, x) }

func (LogSoftmax) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return keepLogSoftmax(t, x)
}

func (NewGELU) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	half := t.Scale(x)
	base := t.Raise(x)
	cube := t.Op(tape.Op{In: []tape.Tensor{base}, Shape: x.Shape, Keep: []tape.Tensor{base}})
	sum := t.Op(tape.Op{In: []tape.Tensor{x, cube}, Shape: x.Shape})
	tanh := KeepOutput(t, sum)
	one := t.Op(tape.Op{In: []tape.Tensor{tanh}, Shape: x.Shape, PassGrad: true})
	return t.Mul(half, one)
}

func (QuickGELU) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	scaled := t.Scale(x)
	gate := KeepOutput(t, scaled)
	return t.Mul(x, gate)
}

// KeepInput records an element-wise operation whose derivative needs the input. In place, autograd
// keeps a copy of the overwritten input.
func KeepInput(t *tape.Tape, x tape.Tensor, inPlace bool) tape.Tensor {
	o := tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, InPlace: inPlace}
	if inPlace {
		o.KeepOwn = []tape.Own{{Shape: x.Shape}}
	} else {
		o.Keep = o.In
	}
	return t.Op(o)
}

// KeepOutput records an element-wise operation whose derivative needs the output.
func KeepOutput(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, KeepOutput: true})
}

// keepSoftmax records a softmax. On CUDA its backward pass first multiplies gradient and output
// (aten/src/ATen/native/cuda/SoftMax.cu, softmax_backward_cuda_out).
func keepSoftmax(t *tape.Tape, x tape.Tensor) tape.Tensor {
	x = t.Raise(x)
	o := tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, KeepOutput: true}
	if t.On() == setting.CUDA {
		o.BackwardWorkspace = t.Size(x)
	}
	return softmaxOf(t, o)
}

// keepLogSoftmax records the logarithm of a softmax.
func keepLogSoftmax(t *tape.Tape, x tape.Tensor) tape.Tensor {
	x = t.Raise(x)
	return softmaxOf(t, tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, KeepOutput: true})
}

// softmaxOf records a softmax. Before PyTorch 1.11 it kept its input too
// (github.com/pytorch/pytorch/pull/65242).
func softmaxOf(t *tape.Tape, o tape.Op) tape.Tensor {
	if t.Cfg.Release.Before(1, 11) {
		o.Keep = o.In
	}
	return t.Op(o)
}

type Dropout nn.Dropout

// StochasticDepth is torchvision's, which drops whole samples.
type StochasticDepth struct{}

// ChannelDropout is torch.nn.Dropout1d, 2d and 3d, which drop whole channels of a sample.
type ChannelDropout struct{}

func (l Dropout) Declare(d *tape.Declaration) {
	if !(l.P >= 0 && l.P < 1) {
		d.Failf("P is %v: want 0 or more and less than 1", l.P)
	}
}

func (l Dropout) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	mask := tape.Own{Shape: x.Shape, DType: alloc.Bool}
	if t.On() == setting.CPU {
		mask.DType = x.DType
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, InPlace: l.InPlace, KeepOwn: []tape.Own{mask}, TrainingOnly: true})
}

func (StochasticDepth) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if len(x.Shape) == 0 {
		t.Failf("input () has no batch")
	}
	noise := alloc.Shape{x.Shape[0]}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, KeepOwn: []tape.Own{{Shape: noise}}, TrainingOnly: true})
}

func (ChannelDropout) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if len(x.Shape) < 3 {
		t.Failf("input %v has nothing after its channels", x.Shape)
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, KeepOwn: []tape.Own{{Shape: x.Shape[:2]}}, TrainingOnly: true})
}

// Activation is the function in the middle of an MLP.
type Activation uint8

// The activations.
const (
	DefaultActivation Activation = iota
	UseSiLU
	UseGELU
	UseGELUTanh // PyTorch's own tanh approximation, one operation
	UseNewGELU  // the same formula in elementary operations, as in GPT-2
	UseReLU
	UseQuickGELU   // x * sigmoid(1.702 x)
	UseSquaredReLU // max(0, x)^2
	UseBloomGELU
	UseXIELU // with two parameters, as in Apertus
)

func (a Activation) Layer(otherwise Activation) tape.Layer {
	switch a = setting.Or(a, otherwise); a {
	case UseSiLU:
		return SiLU{}
	case UseGELU, UseGELUTanh:
		return GELU{}
	case UseNewGELU:
		return NewGELU{}
	case UseReLU:
		return ReLU{}
	case UseQuickGELU:
		return QuickGELU{}
	case UseBloomGELU:
		return bloomGELU{}
	case UseSquaredReLU:
		return squaredReLU{}
	case UseXIELU:
		return xIELU{}
	default:
		return tape.Wrong(fmt.Sprintf("Activation is %d: want one of the constants, from UseSiLU to UseXIELU", a))
	}
}

// squaredReLU is the square of a ReLU; both operations keep the ReLU's output.
type squaredReLU struct{}

func (squaredReLU) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	x = KeepOutput(t, x)
	// The derivative multiplies the gradient by twice the ReLU, which needs a tensor of its own.
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Keep: []tape.Tensor{x}, BackwardWorkspace: 2 * t.Size(x)})
}

// xIELU is arXiv:2411.13010 in elementary operations, as transformers runs it without a package of CUDA kernels
// (XIELUActivation of activations.py, 5.24): where(x > 0, p x x + b x, (expm1(min(x, e)) - x) n + b x).
type xIELU struct{}

func (xIELU) Declare(d *tape.Declaration) {
	d.Param("alpha_p", 1)
	d.Param("alpha_n", 1)
	d.Buffer("beta")
	d.Buffer("eps")
}

func (xIELU) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	positive := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Params: true, Keep: []tape.Tensor{x}})
	positive = t.Op(tape.Op{In: []tape.Tensor{positive, x}, Shape: x.Shape, Keep: []tape.Tensor{positive, x}})
	positive = t.Op(tape.Op{In: []tape.Tensor{positive, t.Scale(x)}, Shape: x.Shape, PassGrad: true})
	smaller := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Keep: []tape.Tensor{x}})
	negative := t.Op(tape.Op{In: []tape.Tensor{KeepOutput(t, smaller), x}, Shape: x.Shape})
	negative = t.Op(tape.Op{In: []tape.Tensor{negative}, Shape: x.Shape, Params: true, Keep: []tape.Tensor{negative}})
	negative = t.Op(tape.Op{In: []tape.Tensor{negative, t.Scale(x)}, Shape: x.Shape, PassGrad: true})
	return t.Op(tape.Op{In: []tape.Tensor{positive, negative}, Shape: x.Shape, KeepOwn: []tape.Own{{Shape: x.Shape, DType: alloc.Bool}}})
}

// bloomGELU is the tanh approximation as an autograd function of Bloom's code: it keeps its input
// and computes everything else again.
type bloomGELU struct{}

func (bloomGELU) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Keep: []tape.Tensor{x}, Workspace: 2 * t.Size(x), BackwardWorkspace: 2 * t.Size(x)})
}

type Hardswish nn.ReLU

type Hardsigmoid nn.ReLU

type LeakyReLU nn.ReLU

type ELU nn.ReLU

type Mish nn.ReLU

type PReLU nn.PReLU

func (l PReLU) Declare(d *tape.Declaration) {
	n := setting.Or(int(l), 1)
	d.Want("the number of slopes", n, 1)
	d.Param("weight", n)
}

func (l Hardswish) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return KeepInput(t, x, l.InPlace)
}

func (l Hardsigmoid) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return KeepInput(t, x, l.InPlace)
}

func (l LeakyReLU) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return keepEither(t, x, l.InPlace)
}

func (l ELU) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return keepEither(t, x, l.InPlace)
}

func (l Mish) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return KeepInput(t, x, l.InPlace)
}

func (l PReLU) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if n := setting.Or(int(l), 1); n > 1 {
		t.Width(x, 1, n, "channels")
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, Keep: []tape.Tensor{x}, Params: true})
}

// keepEither keeps the input or, in place, the output.
func keepEither(t *tape.Tape, x tape.Tensor, inPlace bool) tape.Tensor {
	if !inPlace {
		return KeepInput(t, x, false)
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, InPlace: true, KeepOutput: true})
}
