package layer

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// window is what convolutions and pooling slide over their input.
type window struct {
	dims                              int
	kernel, stride, padding, dilation [3]int
}

// cube returns a window with the same settings in each dimension. A stride or dilation of 0 means
// 1.
func cube(dims, kernel, stride, padding, dilation int) window {
	w := window{dims: dims}
	for i := range dims {
		w.kernel[i], w.stride[i], w.padding[i], w.dilation[i] = kernel, setting.Or(stride, 1), padding, setting.Or(dilation, 1)
	}
	return w
}

// set replaces the settings of single dimensions that are not 0.
func (w *window) set(kernel, stride, padding [3]int) {
	for i := range w.dims {
		w.kernel[i] = setting.Or(kernel[i], w.kernel[i])
		w.stride[i] = setting.Or(stride[i], w.stride[i])
		w.padding[i] = setting.Or(padding[i], w.padding[i])
	}
}

func (w window) check(d *tape.Declaration) bool {
	for i := range w.dims {
		d.Want("Kernel", w.kernel[i], 1)
		d.Want("Stride", w.stride[i], 1)
		d.Want("Padding", w.padding[i], 0)
		d.Want("Dilation", w.dilation[i], 1)
	}
	return true
}

// places returns the number of places of the window along dimension i of the input, as
// torch.nn.Conv2d and MaxPool2d document it, or 0 if it does not fit. With ceil, a last place may
// reach beyond the end if it begins within the input.
func (w window) places(i, length int, ceil bool) int {
	room := length + 2*w.padding[i] - w.dilation[i]*(w.kernel[i]-1) - 1
	if room < 0 {
		return 0
	}
	n := room/w.stride[i] + 1
	if ceil && room%w.stride[i] != 0 && n*w.stride[i] < length+w.padding[i] {
		n++
	}
	return n
}

// grown returns the length of a transposed convolution's output.
func (w window) grown(i, length int) int {
	if length > setting.MaxField {
		return 0
	}
	return (length-1)*w.stride[i] - 2*w.padding[i] + w.dilation[i]*(w.kernel[i]-1) + 1
}
