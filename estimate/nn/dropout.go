package nn

// Dropout is torch.torch.nn.Dropout. It keeps a mask of a byte an element on CUDA, and one
// of the input's type on the CPU; in inference it does nothing.
type Dropout struct {
	P       float64 // 0 means 0.5
	InPlace bool
}

// ChannelDropout is torch.torch.nn.Dropout1d, 2d and 3d, which drop whole channels of a sample; it keeps a
// number for each.
type ChannelDropout struct{}

// StochasticDepth is torchvision's, which drops whole samples; it keeps a
// number a sample.
type StochasticDepth struct{}
