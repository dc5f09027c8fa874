package nn

// MaxPool is torch.torch.nn.MaxPool1d, 2d and 3d. It keeps its input, and the places of
// the maxima in 64 bits. Kernels, Strides and Paddings hold a value for each of the dimensions, and
// win over Kernel, Stride and Padding where they are not zero.
type MaxPool struct {
	Kernel                     int
	Stride                     int // 0 means Kernel
	Padding                    int
	Dilation                   int // 0 means 1
	Ceil                       bool
	Dims                       int // 0 means 2
	Kernels, Strides, Paddings [3]int
}

// AvgPool is torch.torch.nn.AvgPool1d, 2d and 3d; it keeps its input.
type AvgPool struct {
	Kernel  int
	Stride  int // 0 means Kernel
	Padding int
	Ceil    bool
	Dims    int // 0 means 2
}

// AdaptiveAvgPool is torch.torch.nn.AdaptiveAvgPool1d, 2d and 3d. It keeps its input,
// except where the output is a single number a channel: that is a mean.
type AdaptiveAvgPool struct {
	Out  int // length of each dimension of the output
	Dims int // 0 means 2
}

// AdaptiveMaxPool is torch.torch.nn.AdaptiveMaxPool1d, 2d and 3d. It keeps its input, and the places of the
// maxima in 64 bits.
type AdaptiveMaxPool AdaptiveAvgPool
