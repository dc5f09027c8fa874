package nn

// BatchNorm is torch.nn.BatchNorm1d, 2d and 3d, of that many features. It keeps its input and two vectors
// of statistics; its running statistics are buffers.
type BatchNorm int

// LayerNorm is torch.nn.LayerNorm over the last dimension. It keeps its input, and
// mean and deviation of each vector.
type LayerNorm struct {
	Size     int
	NoAffine bool
	NoBias   bool
}

// GroupNorm is torch.nn.GroupNorm. It keeps its input, and mean and deviation of each
// group of each sample.
type GroupNorm struct {
	Groups, Channels int
}

// InstanceNorm is torch.nn.InstanceNorm1d, 2d and 3d. It keeps its input and two numbers for each channel
// of each sample, and with Affine the weight for each of them.
type InstanceNorm struct {
	Features int
	Affine   bool
}

// LocalResponseNorm is torch.nn.LocalResponseNorm of a size over (batch, channels, ...), in elementary operations.
type LocalResponseNorm int

// RMSNorm is torch.nn.RMSNorm over the last dimension, of a size. On CUDA it keeps its input and one number a
// vector; on the CPU it keeps its normalised input besides.
type RMSNorm int

// Dropout is torch.nn.Dropout. It keeps a mask of a byte an element on CUDA, and one
// of the input's type on the CPU; in inference it does nothing.
type Dropout struct {
	P       float64 // 0 means 0.5
	InPlace bool
}
