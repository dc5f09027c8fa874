package diffusion

import (
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Clip is the size of latent videos, which an autoencoder of videos decodes.
type Clip struct {
	Side   int // of each frame
	Frames int
	Scale  int // pixels along a side that become one of a latent frame
	Rate   int // frames that become one latent frame; the first frame stays alone; 0 means that it decodes images
}

func (c Clip) clip() Clip { return c }

// resized returns the clip for frames of another side, in pixels.
func (c Clip) resized(side int) (Clip, error) {
	if side%c.Scale != 0 {
		return c, fmt.Errorf("want a multiple of %d pixels", c.Scale)
	}
	c.Side = side / c.Scale
	return c, nil
}

// filmed returns the clip for videos of another length, in frames.
func (c Clip) filmed(frames int) (Clip, error) {
	if c.Rate == 0 {
		return c, errors.New("the model makes no videos")
	}
	var err error
	c.Frames, err = family.LatentFrames(frames, c.Rate)
	return c, err
}

// Video is the number of frames of the usual video, and the side of each in pixels. Both are 0 if it decodes images.
func (c Clip) Video() (frames, side int) {
	if c.Rate == 0 {
		return 0, 0
	}
	return setting.Product(c.Frames-1, c.Rate) + 1, setting.Product(c.Side, c.Scale)
}

// LatentSide is the side of the latent frames.
func (c Clip) LatentSide() int { return c.Side }

// inputs are latent videos with this many channels.
func (c Clip) inputs(batch, channels int) []family.Input {
	return []family.Input{family.Reals(batch, channels, c.Frames, c.Side, c.Side)}
}

// decoding is a model of an encoder, which does not run, and a decoder.
func decoding(name string, parts tape.Sequential, run func(f *tape.Flow, x tape.Tensor) tape.Tensor) []tape.Layer {
	return []tape.Layer{tape.Inline(tape.Module{Name: name, Parts: parts, Run: run})}
}

// tooDeep reports whether a model of convolutions has more blocks than any file may ask for.
func tooDeep(levels int, depths ...int) bool {
	for _, depth := range depths {
		if depth < 0 || depth > maxDenoiserBlocks {
			return true
		}
	}
	return levels < 1 || levels > maxLevels
}

// padded is x with so many frames, rows and columns more.
func padded(t *tape.Tape, x tape.Tensor, frames, rows, columns int) tape.Tensor {
	shape := t.Resized(x.Shape, x.Dim(2)+frames, x.Dim(3)+rows, x.Dim(4)+columns)
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape})
}

// framewise is x, (batch, channels, frames, height, width), as one image for each frame.
func framewise(f *tape.Flow, x tape.Tensor) tape.Tensor {
	y := f.Permute(x, 0, 2, 1, 3, 4)
	if x.Dim(2) > 1 {
		y = f.Copy(y)
	}
	return f.View(y, x.Dim(0)*x.Dim(2), x.Dim(1), x.Dim(3), x.Dim(4))
}

// smallImage is the sum of height and width up to which PyTorch's CPU kernel enlarges an image with its channels last in
// memory, whatever their order is (ATen/native/cpu/UpSampleKernel.cpp, _use_vectorized_kernel_cond_2d).
const smallImage = 128

// nearest makes a contiguous image twice as high and wide. On the CPU a small one and its result are copied.
func nearest(f *tape.Flow, x tape.Tensor) tape.Tensor {
	shape := f.Resized(x.Shape, 2*x.Dim(2), 2*x.Dim(3))
	o := tape.Op{In: []tape.Tensor{x}, Shape: shape}
	if f.On() == setting.CPU && shape[2]+shape[3] <= smallImage && x.Dim(1) > 1 {
		o.Workspace = 5 * f.Size(x)
	}
	return f.Op(o)
}

// filmwise is the reverse of framewise.
func filmwise(f *tape.Flow, x tape.Tensor, batch int) tape.Tensor {
	return f.Permute(f.View(x, batch, -1, x.Dim(1), x.Dim(2), x.Dim(3)), 0, 2, 1, 3, 4)
}

// cube is a convolution over frames, rows and columns that pads nothing itself.
func cube(in, out, kernel int) layer.Conv3d {
	return layer.Conv3d{In: in, Out: out, Kernel: kernel}
}

// inFloat32 runs a layer on x in float32 and casts what it returns back.
func inFloat32(f *tape.Flow, x tape.Tensor, run func(x tape.Tensor) tape.Tensor) tape.Tensor {
	return f.In(x.DType, run(f.In(alloc.Float32, x)))
}
