package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type (
	Conv1d          Conv2d
	Conv3d          Conv2d
	ConvTranspose1d Conv2d // a Conv1d that is Transposed, whose rows show a kind of their own
	ConvTranspose2d Conv2d
	ConvTranspose3d Conv2d
)

// Conv2d is an nn.Conv2d. Kernels, Strides and Paddings, one for each dimension, win where they are not zero.
type Conv2d struct {
	In, Out, Kernel                                  int
	Stride, Padding, Dilation, Groups, OutputPadding int
	NoBias                                           bool
	Kernels, Strides, Paddings                       [3]int
	Last                                             bool // the input has its channels last in memory
}

// convOf is the convolution of package nn.
func convOf(l nn.Conv2d) Conv2d {
	return Conv2d{
		In: l.In, Out: l.Out, Kernel: l.Kernel, Stride: l.Stride, Padding: l.Padding, Dilation: l.Dilation,
		Groups: l.Groups, OutputPadding: l.OutputPadding, NoBias: l.NoBias,
	}
}

func (l Conv1d) Declare(d *tape.Declaration) { l.conv().declare(d) }

func (l Conv2d) Declare(d *tape.Declaration) { l.conv().declare(d) }

func (l Conv3d) Declare(d *tape.Declaration) { l.conv().declare(d) }

func (l ConvTranspose1d) Declare(d *tape.Declaration) { l.conv().declare(d) }

func (l ConvTranspose2d) Declare(d *tape.Declaration) { l.conv().declare(d) }

func (l ConvTranspose3d) Declare(d *tape.Declaration) { l.conv().declare(d) }

func (l Conv1d) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return l.conv().forward(t, x) }

func (l Conv2d) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return l.conv().forward(t, x) }

func (l Conv3d) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor { return l.conv().forward(t, x) }

func (l ConvTranspose1d) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return l.conv().forward(t, x)
}

func (l ConvTranspose2d) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return l.conv().forward(t, x)
}

func (l ConvTranspose3d) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return l.conv().forward(t, x)
}

func (l Conv1d) conv() conv { return convolution(1, Conv2d(l)) }

func (l Conv2d) conv() conv { return convolution(2, l) }

func (l Conv3d) conv() conv { return convolution(3, Conv2d(l)) }

func (l ConvTranspose1d) conv() conv { return transposed(1, Conv2d(l)) }

func (l ConvTranspose2d) conv() conv { return transposed(2, Conv2d(l)) }

func (l ConvTranspose3d) conv() conv { return transposed(3, Conv2d(l)) }

func convolution(dims int, l Conv2d) conv {
	c := conv{in: l.In, out: l.Out, groups: l.Groups, noBias: l.NoBias, outputPadding: l.OutputPadding, last: l.Last,
		window: cube(dims, l.Kernel, l.Stride, l.Padding, l.Dilation)}
	c.window.set(l.Kernels, l.Strides, l.Paddings)
	return c
}

func transposed(dims int, l Conv2d) conv {
	c := convolution(dims, l)
	c.transposed = true
	return c
}

// conv is what all convolutions are made of.
type conv struct {
	in, out, groups int
	noBias          bool
	transposed      bool
	outputPadding   int
	last            bool
	window          window
}

func (c conv) declare(d *tape.Declaration) {
	groups := setting.Or(c.groups, 1)
	d.Want("In", c.in, 1)
	d.Want("Out", c.out, 1)
	d.Want("Groups", groups, 1)
	d.Want("OutputPadding", c.outputPadding, 0)
	c.window.check(d)
	if c.in%groups != 0 || c.out%groups != 0 {
		d.Failf("%d channels in and %d out do not divide into %d groups", c.in, c.out, groups)
	}
	if c.outputPadding > 0 && !c.transposed {
		d.Failf("OutputPadding is %d: want 0, or a convolution that is Transposed", c.outputPadding)
	}
	for i := range c.window.dims {
		if c.outputPadding > 0 && c.outputPadding >= max(c.window.stride[i], c.window.dilation[i]) {
			d.Failf("OutputPadding is %d: want less than the stride or the dilation", c.outputPadding)
		}
	}
	shape := alloc.Shape{c.out, c.in / groups}
	if c.transposed {
		shape = alloc.Shape{c.in, c.out / groups}
	}
	d.Param("weight", append(shape, c.window.kernel[:c.window.dims]...)...)
	if !c.noBias {
		d.Param("bias", c.out)
	}
}

var spatial = [...]string{1: "(batch, channels, length)", 2: "(batch, channels, height, width)", 3: "(batch, channels, depth, height, width)"}

func (c conv) forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, c.window.dims+2, spatial[c.window.dims])
	t.Width(x, 1, c.in, "channels")
	shape := slices.Clone(x.Shape)
	shape[1] = c.out
	for i := range c.window.dims {
		if c.transposed {
			shape[2+i] = c.window.grown(i, x.Shape[2+i]) + c.outputPadding
		} else {
			shape[2+i] = c.window.outputs(i, x.Shape[2+i], false)
		}
		if shape[2+i] <= 0 {
			w, n := c.window, c.window.dims
			t.Failf("input %v is too small for a kernel of %v with padding %v and dilation %v",
				x.Shape, alloc.Shape(w.kernel[:n]), alloc.Shape(w.padding[:n]), alloc.Shape(w.dilation[:n]))
		}
	}
	each := shape // each output element takes in/groups x kernel products
	if c.transposed {
		each = x.Shape
	}
	work := append(slices.Clone(each), c.window.kernel[:c.window.dims]...)
	if c.transposed {
		work = append(work, c.out/setting.Or(c.groups, 1), 2)
	} else {
		work = append(work, c.in/setting.Or(c.groups, 1), 2)
	}
	x = t.Lower(x)
	reads := []tape.Tensor{x}
	o := tape.Op{In: reads, Shape: shape, DType: t.Computes(), Params: true, Keep: t.ForWeights(reads), FLOPs: setting.FLOPs(work...)}
	Ran.Of(t).Convolutions++
	Ran.Of(t).convolve(t.Computes(), x.Shape, shape)
	if c.window.dims == 1 && setting.Or(c.groups, 1) == 1 {
		Ran.Of(t).Lengthwise++
	}
	Ran.Of(t).Rounded = Ran.Of(t).Rounded || t.Activation() != alloc.Float32
	if t.On() == setting.CPU {
		o.Workspace = c.blocked(t, x, shape)
		o.BackwardWorkspace = max(c.padded(t), c.patched(t)-o.Workspace)
	} else {
		o.Kernels = c.winograd(t, x.Shape[0], shape)
		Ran.Of(t).Transformed = max(Ran.Of(t).Transformed, o.Kernels)
	}
	t.Cast(&o, append([]int{c.out, c.in / setting.Or(c.groups, 1)}, c.window.kernel[:c.window.dims]...)...)
	return t.Op(o)
}

// winograd returns the workspace in which cuDNN computes the weight's gradient in float32 from
// transformed tensors (CUDNN_CONVOLUTION_BWD_FILTER_ALGO_WINOGRAD_NONFUSED), for a 3 x 3 window
// without stride or dilation. Each tile of 4 x 4 positions of input and output, and each kernel,
// becomes 6 x 6 numbers (arXiv:1509.09308, section 4). PyTorch takes the algorithm that cuDNN
// expects to be fastest, whatever its memory. With few channels that is another one, as the
// transformation then costs more than it saves. Sizes and channels fit measurements on V100s
// (docs/estimate.md).
func (c conv) winograd(t *tape.Tape, batch int, out alloc.Shape) alloc.Bytes {
	const tile, numbers, channels = 4, 6 * 6, 128
	w := c.window
	if c.transposed || w != (window{2, [3]int{3, 3}, [3]int{1, 1}, w.padding, [3]int{1, 1}}) || setting.Or(c.groups, 1) != 1 ||
		min(c.in, c.out) < channels || t.Computes() != alloc.Float32 || !t.Learns() {
		return 0
	}
	kernels := setting.FLOPs(c.in, c.out, numbers, 4)
	tiles := setting.FLOPs(batch, (out[2]+tile-1)/tile, (out[3]+tile-1)/tile, c.in+c.out, numbers, 4)
	return alloc.Bytes(min(setting.AddSat(kernels, tiles), setting.MaxTotal))
}

// padded returns the memory of the weight's gradient where oneDNN has no kernel for a large window
// with groups. It pads each group to a block of 16 x 16 channels. In low precision it also sums in
// float32.
func (c conv) padded(t *tape.Tape) alloc.Bytes {
	groups := setting.Or(c.groups, 1)
	if c.in/groups >= 16 || groups == 1 || c.window.kernel[0] < 7 {
		return 0
	}
	weight := append(alloc.Shape{groups, 16, 16}, c.window.kernel[:c.window.dims]...)
	n, err := weight.Bytes(t.Cfg.Weights)
	if err != nil || n > setting.MaxTotal {
		return 0 // the operation reports what is too large
	}
	if bits := t.Cfg.Weights.Bits(); bits < 32 {
		n += n * alloc.Bytes(32/max(1, bits))
	}
	return n
}

// patched returns the memory of the weight's gradient of a convolution that cuts an image of a few
// channels into patches, or is wide and has groups, as the positional one of wav2vec 2.0.
// In float32, each thread of oneDNN adds up four copies of the gradient, with 16 more elements for each
// kernel of a patch; patches of 14 x 14 use another kernel, without copies. In low precision, groups
// have three copies, in float32. Measured with one to eight threads, and groups with two.
func (c conv) patched(t *tape.Tape) alloc.Bytes {
	w, groups, low := c.window, setting.Or(c.groups, 1), t.Activation() != alloc.Float32
	var copies alloc.Shape
	switch {
	case c.transposed:
	case w.dims == 1 && groups > 1 && c.in > groups && w.kernel[0] >= 16:
		copies = alloc.Shape{setting.OneDNNThreads, 4, c.out, c.in / groups, w.kernel[0]}
		if low {
			copies[1] = 3
		}
	case w.dims == 2 && !low && c.in < 16 && w.kernel[0]%16 == 0 && w.kernel == w.stride:
		copies = alloc.Shape{setting.OneDNNThreads, 4, c.out, c.in, w.kernel[0]*w.kernel[1] + 16}
	}
	if copies == nil {
		return 0
	}
	n, err := copies.Bytes(alloc.Float32)
	if err != nil {
		return 0 // the operation reports what is too large
	}
	return min(n, setting.MaxTotal)
}

// blocked returns the memory of oneDNN's copies on the CPU, which are in blocks of channels: of the
// weight, of the input and then of the output. If the channels are last, it copies the weight alone, twice. The sizes fit
// what the profiler shows (testdata/torch).
func (c conv) blocked(t *tape.Tape, x tape.Tensor, out alloc.Shape) alloc.Bytes {
	weight := append(alloc.Shape{c.out, c.in / setting.Or(c.groups, 1)}, c.window.kernel[:c.window.dims]...)
	w, err := weight.Bytes(t.Cfg.Weights)
	if err != nil || w > setting.MaxTotal {
		return 0 // the declaration has already reported it
	}
	if c.last {
		return 2 * w
	}
	y, err := out.Bytes(t.Activation())
	if err != nil || y > setting.MaxTotal {
		return 0 // the operation reports the error
	}
	return w + max(t.Size(x), y)
}
