package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

type Flatten nn.Flatten

func (l Flatten) Declare(d *tape.Declaration) { d.Want("Start", l.Start, 0) }

func (l Flatten) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	start := setting.Or(l.Start, 1)
	if start >= len(x.Shape) {
		t.Failf("input %v has no dimension %d to flatten from", x.Shape, start)
	}
	return t.View(x, append(x.Shape[:start:start], -1)...)
}

type Reshape nn.Reshape

func (l Reshape) Declare(d *tape.Declaration) {
	unknown := 0
	for _, n := range l {
		if n == -1 {
			unknown++
		} else {
			d.Want("each dimension", n, 1)
		}
	}
	if unknown > 1 {
		d.Failf("dimensions %v: at most one may be -1", []int(l))
	}
}

func (l Reshape) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if len(x.Shape) == 0 {
		t.Failf("input () has no batch")
	}
	return t.View(x, append([]int{x.Shape[0]}, l...)...)
}

type PixelShuffle nn.PixelShuffle

func (l PixelShuffle) Declare(d *tape.Declaration) { d.Want("the factor", int(l), 1) }

func (l PixelShuffle) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 4, "(batch, channels, height, width)")
	square := int64(l) * int64(l)
	if l < 1 || int64(x.Shape[1])%square != 0 || max(x.Shape[2], x.Shape[3]) > setting.MaxField {
		t.Failf("input %v does not have channels for pixels of %d x %d", x.Shape, l, l)
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], int(int64(x.Shape[1]) / square), x.Shape[2] * int(l), x.Shape[3] * int(l)}})
}

type ZeroPad2d nn.ZeroPad2d

func (l ZeroPad2d) Declare(d *tape.Declaration) {
	for i, side := range [...]string{"left", "right", "top", "bottom"} {
		d.Want(side, l[i], -setting.MaxField)
	}
}

func (l ZeroPad2d) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 4, "(batch, channels, height, width)")
	high, wide := int64(x.Shape[2])+int64(l[2])+int64(l[3]), int64(x.Shape[3])+int64(l[0])+int64(l[1])
	if min(high, wide) < 1 || max(high, wide) > setting.MaxField {
		t.Failf("input %v padded to %d x %d pixels: want at least one, and at most %d a side", x.Shape, high, wide, setting.MaxField)
	}
	return t.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{x.Shape[0], x.Shape[1], int(high), int(wide)}})
}

// PatchMerging makes one pixel with twice the channels of two by two, over (batch, height, width,
// channels), as Swin does between its stages (arXiv:2103.14030, section 3.1). An odd side is padded.
type PatchMerging struct{ Channels int }

// module returns the norm and the projection.
func (l PatchMerging) module() tape.Module {
	return tape.Module{
		Parts: tape.Sequential{
			tape.As("norm", LayerNorm{Size: 4 * l.Channels}),
			tape.As("reduction", Linear{In: 4 * l.Channels, Out: 2 * l.Channels, NoBias: true}),
		},
		Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			quarter := f.Part(f.Part(f.Copy(x), 1, (x.Dim(1)+1)/2), 2, (x.Dim(2)+1)/2)
			return f.Call("reduction", f.Call("norm", f.Cat(3, quarter, quarter, quarter, quarter)))
		},
	}
}

func (l PatchMerging) Declare(d *tape.Declaration) {
	d.Want("Channels", l.Channels, 1)
	l.module().Declare(d)
}

func (l PatchMerging) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	t.Rank(x, 4, "(batch, height, width, channels)")
	t.Width(x, 3, l.Channels, "channels")
	return l.module().Forward(t, x)
}
