package estimate

// PatchMerging makes one pixel with twice the channels of two by two, over (batch, height, width,
// channels), as Swin does between its stages (arXiv:2103.14030, section 3.1). An odd side is padded.
type PatchMerging struct{ Channels int }

// module is its norm and projection.
func (l PatchMerging) module() Module {
	return Module{
		Parts: Sequential{
			As("norm", LayerNorm{Size: 4 * l.Channels}),
			As("reduction", Linear{In: 4 * l.Channels, Out: 2 * l.Channels, NoBias: true}),
		},
		Run: func(f *Flow, x Tensor) Tensor {
			quarter := f.Part(f.Part(f.Copy(x), 1, (x.Dim(1)+1)/2), 2, (x.Dim(2)+1)/2)
			return f.Call("reduction", f.Call("norm", f.Cat(3, quarter, quarter, quarter, quarter)))
		},
	}
}

// Declare implements Layer.
func (l PatchMerging) Declare(d *Declaration) {
	if d.want("Channels", l.Channels, 1) {
		l.module().Declare(d)
	}
}

// Forward implements Layer.
func (l PatchMerging) Forward(t *Tape, x Tensor) (Tensor, error) {
	if err := t.rank(x, 4, "(batch, height, width, channels)"); err != nil {
		return Tensor{}, err
	}
	if err := t.width(x, 3, l.Channels, "channels"); err != nil {
		return Tensor{}, err
	}
	return l.module().Forward(t, x)
}
