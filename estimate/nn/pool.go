package nn

// MaxPool is torch.nn.MaxPool1d, 2d and 3d: its input has one to three dimensions after the channels. It keeps its input,
// and the places of the maxima in 64 bits. Uneven makes one whose dimensions differ.
type MaxPool struct {
	Kernel  int
	Stride  int // 0 means Kernel
	Padding int
	Ceil    bool
}

// AvgPool is torch.nn.AvgPool1d, 2d and 3d, with the settings of MaxPool; it keeps its input.
type AvgPool MaxPool

// AdaptiveAvgPool is torch.nn.AdaptiveAvgPool1d, 2d and 3d, for an output of that length in each dimension after the
// channels. It keeps its input, except where the output is a single number a channel: that is a mean.
type AdaptiveAvgPool int

// AdaptiveMaxPool is torch.nn.AdaptiveMaxPool1d, 2d and 3d. It keeps its input, and the places of the
// maxima in 64 bits.
type AdaptiveMaxPool int

// Flatten is torch.nn.Flatten: all dimensions from the first on become one. The output
// is a view.
type Flatten struct {
	Start int // 0 means 1, after the batch
}

// Reshape gives its input another shape, as a view: the dimensions after the batch, which stays. One of them may be -1
// and is then computed.
type Reshape []int

// Upsample is torch.nn.Upsample, with a factor for each dimension after the channels; it keeps nothing.
type Upsample int

// PixelShuffle is torch.nn.PixelShuffle: channels become pixels, that many more each way.
type PixelShuffle int

// ZeroPad2d is torch.nn.ZeroPad2d over (batch, channels, height, width), with the pixels to add on the left, right, top
// and bottom; it keeps nothing. Numbers below zero cut pixels off.
type ZeroPad2d [4]int

// Permute puts the dimensions into another order, such as {0, 2, 3, 1}, as a view. A Linear that reads the view copies it
// first, if its rows are not one matrix in memory.
type Permute []int
