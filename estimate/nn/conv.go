package nn

// Conv1d is torch.torch.nn.Conv1d over (batch, channels, length). Convolutions keep their input.
type Conv1d struct {
	In, Out, Kernel int
	Stride          int // 0 means 1
	Padding         int
	Dilation        int // 0 means 1
	Groups          int // 0 means 1
	NoBias          bool
}

// Conv2d is torch.torch.nn.Conv2d over (batch, channels, height, width). The fields that
// end in HW hold a value for each of the two dimensions, and win over the
// plain ones where they are not zero.
type Conv2d struct {
	In, Out, Kernel                           int
	Stride                                    int // 0 means 1
	Padding                                   int
	Dilation                                  int // 0 means 1
	Groups                                    int // 0 means 1
	NoBias                                    bool
	KernelHW, StrideHW, PaddingHW, DilationHW [2]int
}

// Conv3d is torch.torch.nn.Conv3d over (batch, channels, depth, height, width); see Conv2d.
type Conv3d struct {
	In, Out, Kernel                               int
	Stride                                        int // 0 means 1
	Padding                                       int
	Dilation                                      int // 0 means 1
	Groups                                        int // 0 means 1
	NoBias                                        bool
	KernelDHW, StrideDHW, PaddingDHW, DilationDHW [3]int
}

// ConvTranspose1d is torch.torch.nn.ConvTranspose1d.
type ConvTranspose1d struct {
	In, Out, Kernel        int
	Stride                 int // 0 means 1
	Padding, OutputPadding int
	Dilation               int // 0 means 1
	Groups                 int // 0 means 1
	NoBias                 bool
}

// ConvTranspose2d is torch.nn.ConvTranspose2d, with the settings of ConvTranspose1d.
type ConvTranspose2d ConvTranspose1d

// ConvTranspose3d is torch.nn.ConvTranspose3d, with the settings of ConvTranspose1d.
type ConvTranspose3d ConvTranspose1d
