package nn

// Flatten is torch.torch.nn.Flatten: all dimensions from the first on become one. The output
// is a view.
type Flatten struct {
	Start int // 0 means 1, after the batch
}

// Reshape gives its input another shape, as a view. The batch, dimension 0, stays;
// one of Dims may be -1 and is then computed.
type Reshape struct {
	Dims []int // those after the batch
}

// Upsample is torch.torch.nn.Upsample; it keeps nothing.
type Upsample struct {
	Scale int // factor of each dimension after the channels
}

// PixelShuffle is torch.torch.nn.PixelShuffle: channels become pixels, Factor more each way.
type PixelShuffle struct{ Factor int }

// ZeroPad2d is torch.torch.nn.ZeroPad2d over (batch, channels, height, width); it keeps nothing. Numbers below
// zero cut pixels off.
type ZeroPad2d struct{ Left, Right, Top, Bottom int }

// Permute puts the dimensions into another order, as a view. A Linear that reads it copies it into
// that order first, where a view of the batch's rows is not one matrix.
type Permute struct{ Dims []int } // such as (0, 2, 3, 1)
