package layer

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// PatchMerging makes one pixel with twice the channels of two by two, over (batch, height, width,
// channels), as Swin does between its stages (arXiv:2103.14030, section 3.1). An odd side is padded.
type PatchMerging struct{ Channels int }

// module is its norm and projection.
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
	if d.Want("Channels", l.Channels, 1) {
		l.module().Declare(d)
	}
}

func (l PatchMerging) Forward(t *tape.Tape, x tape.Tensor) (tape.Tensor, error) {
	if err := t.Rank(x, 4, "(batch, height, width, channels)"); err != nil {
		return tape.Tensor{}, err
	}
	if err := t.Width(x, 3, l.Channels, "channels"); err != nil {
		return tape.Tensor{}, err
	}
	return l.module().Forward(t, x)
}
