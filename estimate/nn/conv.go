package nn

// Conv2d is torch.nn.Conv2d over (batch, channels, height, width), and torch.nn.ConvTranspose2d where it is
// Transposed. Convolutions keep their input. Kernels, Strides and Paddings hold a value for
// each of the dimensions, here two, and win over the plain ones where they are not zero.
type Conv2d struct {
	In, Out, Kernel            int
	Stride                     int // 0 means 1
	Padding                    int
	Dilation                   int // 0 means 1
	Groups                     int // 0 means 1
	NoBias                     bool
	Kernels, Strides, Paddings [3]int
	Transposed                 bool
	OutputPadding              int // where it is Transposed
}

// Conv1d is torch.nn.Conv1d over (batch, channels, length), with the settings of Conv2d.
type Conv1d Conv2d

// Conv3d is torch.nn.Conv3d over (batch, channels, depth, height, width), with the settings of Conv2d.
type Conv3d Conv2d
