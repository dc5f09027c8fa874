package nn

// Conv2d is torch.nn.Conv2d over (batch, channels, height, width), and torch.nn.ConvTranspose2d where it is
// Transposed. Convolutions keep their input. Uneven makes one whose dimensions differ.
type Conv2d struct {
	In, Out, Kernel int
	Stride          int // 0 means 1
	Padding         int
	Dilation        int // 0 means 1
	Groups          int // 0 means 1
	NoBias          bool
	Transposed      bool
	OutputPadding   int // where it is Transposed
}

// Conv1d is torch.nn.Conv1d over (batch, channels, length), with the settings of Conv2d.
type Conv1d Conv2d

// Conv3d is torch.nn.Conv3d over (batch, channels, depth, height, width), with the settings of Conv2d.
type Conv3d Conv2d

// Uneven gives a convolution or a pooling a kernel, stride and padding for each of its dimensions. Where a list is nil, or a
// number in it is zero, what the layer has stays.
//
//	nn.Uneven(nn.Conv2d{In: 64, Out: 64}, []int{1, 7}, nil, []int{0, 3})
func Uneven(l Layer, kernel, stride, padding []int) Layer {
	return uneven{l, [3][]int{kernel, stride, padding}}
}

// uneven is a layer that Uneven made.
type uneven struct {
	Layer
	sides [3][]int
}

// Sides returns the layer that Uneven was given, with its kernels, strides and paddings.
func (u uneven) Sides() (Layer, [3][]int) { return u.Layer, u.sides }
