package nn

// MaxPool is torch.nn.MaxPool1d, 2d and 3d. It keeps its input, and the places of
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

// AvgPool is torch.nn.AvgPool1d, 2d and 3d; it keeps its input.
type AvgPool struct {
	Kernel  int
	Stride  int // 0 means Kernel
	Padding int
	Ceil    bool
	Dims    int // 0 means 2
}

// AdaptiveAvgPool is torch.nn.AdaptiveAvgPool1d, 2d and 3d. It keeps its input,
// except where the output is a single number a channel: that is a mean.
type AdaptiveAvgPool struct {
	Out  int // length of each dimension of the output
	Dims int // 0 means 2
}

// AdaptiveMaxPool is torch.nn.AdaptiveMaxPool1d, 2d and 3d. It keeps its input, and the places of the
// maxima in 64 bits.
type AdaptiveMaxPool AdaptiveAvgPool

// Flatten is torch.nn.Flatten: all dimensions from the first on become one. The output
// is a view.
type Flatten struct {
	Start int // 0 means 1, after the batch
}

// Reshape gives its input another shape, as a view. The batch, dimension 0, stays;
// one of Dims may be -1 and is then computed.
type Reshape struct {
	Dims []int // those after the batch
}

// Upsample is torch.nn.Upsample; it keeps nothing.
type Upsample struct {
	Scale int // factor of each dimension after the channels
}

// PixelShuffle is torch.nn.PixelShuffle: channels become pixels, Factor more each way.
type PixelShuffle struct{ Factor int }

// ZeroPad2d is torch.nn.ZeroPad2d over (batch, channels, height, width); it keeps nothing. Numbers below
// zero cut pixels off.
type ZeroPad2d struct{ Left, Right, Top, Bottom int }

// Permute puts the dimensions into another order, as a view. A Linear that reads the view copies it
// first, if its rows are not one matrix in memory.
type Permute struct{ Dims []int } // such as (0, 2, 3, 1)
