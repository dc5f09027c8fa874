package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// oneDNN is an LSTM as PyTorch runs it on the CPU: a kernel for each layer and
// direction, which keeps its input and output, the first and last states, and
// a workspace of its own.
func (l RNN) oneDNN(t *Tape, x Tensor) (Tensor, error) {
	err := l.fits(t, x)
	if err == nil && x.Shape[0] > 1 { // the kernel reads step by step
		x, err = t.Op(Op{In: []Tensor{x}, Shape: x.Shape})
	}
	for i := 0; i < or(l.Layers, 1) && err == nil; i++ {
		x, err = l.oneDNNLayer(t, x)
	}
	return x, err
}

func (l RNN) oneDNNLayer(t *Tape, x Tensor) (Tensor, error) {
	batch, length, in := x.Shape[0], x.Shape[1], x.Shape[2]
	outputs := make([]Tensor, l.directions())
	for i := range outputs {
		var err error
		outputs[i], err = t.Op(Op{
			In: []Tensor{x}, Shape: alloc.Shape{batch, length, l.Hidden}, DType: t.Activation(), Params: true,
			Keep: []Tensor{x}, KeepOutput: true, KeepOwn: []Own{l.workspace(batch, length), {Shape: alloc.Shape{4, batch, l.Hidden}}},
			Workspace: l.reordered(t, in), FLOPs: FLOPs(2, batch, length, 4, l.Hidden, in+l.Hidden),
		})
		if err != nil {
			return Tensor{}, err
		}
	}
	if len(outputs) == 1 {
		return outputs[0], nil
	}
	return Cat(t, 2, outputs...)
}

// workspace holds of each step the gates twice, three pairs of states and one
// more, in padded rows of float32 and whole pages. The sizes fit within 1 % what
// saved-tensor hooks show of ten shapes.
func (l RNN) workspace(batch, length int) Own {
	gates, state := padded(4*l.Hidden, 64), padded(l.Hidden, 256)
	pages := (FLOPs(4, batch, 2*length*gates+6*(length+1)*state+length*state)-1)/4096 + 1
	return Own{Shape: alloc.Shape{int(min(pages, maxTotal/4096)), 4096}, DType: alloc.Uint8}
}

// padded is the length of a row of n elements: whole cache lines of 16, and one
// more where the rows would lie so many elements apart that they meet in the cache.
func padded(n, collide int) int {
	n = (n + 15) / 16 * 16
	if n%collide == 0 {
		n += 16
	}
	return n
}

// reordered is the memory of a direction's weights in the order of the kernel.
func (l RNN) reordered(t *Tape, in int) alloc.Bytes {
	weights, err := alloc.Shape{4 * l.Hidden, in + l.Hidden}.Bytes(t.cfg.weights)
	if err != nil || weights > maxTotal {
		return 0 // the declaration has reported it
	}
	return weights
}
