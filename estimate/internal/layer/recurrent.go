package layer

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"

	"github.com/gpumemtrack/gpumemtrack/estimate/nn"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

type RNN nn.RNN

type LSTM nn.LSTM

type GRU nn.GRU

func (l RNN) Declare(d *tape.Declaration) { l.declare(d, 1) }

func (l LSTM) Declare(d *tape.Declaration) { RNN(l).declare(d, 4) }

func (l GRU) Declare(d *tape.Declaration) { RNN(l).declare(d, 3) }

// Forward records one state for each step, and the first two.
func (l RNN) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return l.forward(t, x, 1, 1, 1)
}

// Forward records four gates, the cell state and the output of each step.
func (l LSTM) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	if t.On() == setting.CPU {
		return RNN(l).oneDNN(t, x)
	}
	return RNN(l).forward(t, x, 4, 6, 2)
}

// Forward records three gates, their inputs and the state of each step.
func (l GRU) Forward(t *tape.Tape, x tape.Tensor) tape.Tensor {
	return RNN(l).forward(t, x, 3, 7, 0)
}

func (l RNN) directions() int {
	if l.Bidirectional {
		return 2
	}
	return 1
}

func (l RNN) declare(d *tape.Declaration, gates int) {
	layers := setting.Or(l.Layers, 1)
	d.Want("In", l.In, 1)
	d.Want("Hidden", l.Hidden, 1)
	d.Want("Layers", layers, 1)
	if layers > tape.MaxLayers/8 {
		d.Failf("Layers is %d: want at most %d", layers, tape.MaxLayers/8)
	}
	in := l.In
	for i := range layers {
		for j := range l.directions() {
			suffix := fmt.Sprintf("_l%d", i)
			if j == 1 {
				suffix += "_reverse"
			}
			d.Param("weight_ih"+suffix, gates*l.Hidden, in)
			d.Param("weight_hh"+suffix, gates*l.Hidden, l.Hidden)
			if !l.NoBias {
				d.Param("bias_ih"+suffix, gates*l.Hidden)
				d.Param("bias_hh"+suffix, gates*l.Hidden)
			}
		}
		in = l.Hidden * l.directions()
	}
}

// fits fails if the layer does not take the input, and notes on the tape that a recurrent layer ran.
func (l RNN) fits(t *tape.Tape, x tape.Tensor) {
	t.Rank(x, 3, "(batch, length, features)")
	t.Width(x, 2, l.In, "features")
	Ran.Of(t).Recurrent = true
	if x.Shape[1] > setting.MaxField/8 {
		t.Failf("input %v is too long: want at most %d steps", x.Shape, setting.MaxField/8)
	}
}

// forward keeps for each layer and direction its input in the order of steps, states tensors for
// each step, and more tensors once.
func (l RNN) forward(t *tape.Tape, x tape.Tensor, gates, states, more int) tape.Tensor {
	l.fits(t, x)
	batch, length, directions := x.Shape[0], x.Shape[1], l.directions()
	for i := range setting.Or(l.Layers, 1) {
		in := x.Shape[2]
		var kept []tape.Own
		for j := range directions {
			// In a batch of one, the input already has the order of steps. Both directions of a
			// later layer read one tensor.
			if i == 0 && batch > 1 || i > 0 && j == 0 {
				kept = append(kept, tape.Own{Shape: alloc.Shape{length, batch, in}})
			}
			kept = append(kept, tape.Own{Shape: alloc.Shape{length*states + more, batch, l.Hidden}})
		}
		o := tape.Op{
			In: []tape.Tensor{x}, Shape: alloc.Shape{batch, length, l.Hidden * directions}, DType: t.Activation(), Params: true,
			KeepOwn: kept, FLOPs: setting.FLOPs(2*directions, batch, length, gates, l.Hidden, in+l.Hidden),
		}
		if i == 0 && batch == 1 {
			o.Keep = o.In
		}
		x = t.Op(o)
	}
	return x
}

// oneDNN is an LSTM as PyTorch runs it on the CPU: a kernel for each layer and
// direction, which keeps its input and output, the first and last states, and
// a workspace of its own.
func (l RNN) oneDNN(t *tape.Tape, x tape.Tensor) tape.Tensor {
	l.fits(t, x)
	if x.Shape[0] > 1 { // the kernel reads step by step
		x = t.Copy(x)
	}
	for range setting.Or(l.Layers, 1) {
		x = l.oneDNNLayer(t, x)
	}
	return x
}

func (l RNN) oneDNNLayer(t *tape.Tape, x tape.Tensor) tape.Tensor {
	batch, length, in := x.Shape[0], x.Shape[1], x.Shape[2]
	outputs := make([]tape.Tensor, l.directions())
	for i := range outputs {
		outputs[i] = t.Op(tape.Op{
			In: []tape.Tensor{x}, Shape: alloc.Shape{batch, length, l.Hidden}, DType: t.Activation(), Params: true,
			Keep: []tape.Tensor{x}, KeepOutput: true, KeepOwn: []tape.Own{l.workspace(batch, length), {Shape: alloc.Shape{4, batch, l.Hidden}}},
			Workspace: l.reordered(t, in), FLOPs: setting.FLOPs(2, batch, length, 4, l.Hidden, in+l.Hidden),
		})
	}
	if len(outputs) == 1 {
		return outputs[0]
	}
	return t.Cat(2, outputs...)
}

// workspace returns what the kernel keeps for all steps: the gates twice, three pairs of states and
// one more, in padded rows of float32 and whole pages. The sizes are within 1 % of what
// saved-tensor hooks show for ten shapes.
func (l RNN) workspace(batch, length int) tape.Own {
	gates, state := padded(4*l.Hidden, 64), padded(l.Hidden, 256)
	pages := (setting.FLOPs(4, batch, 2*length*gates+6*(length+1)*state+length*state)-1)/4096 + 1
	return tape.Own{Shape: alloc.Shape{int(min(pages, setting.MaxTotal/4096)), 4096}, DType: alloc.Uint8}
}

// padded returns the length of a row of n elements: whole cache lines of 16 elements, and one more
// line if rows of that length would collide in the cache.
func padded(n, collide int) int {
	n = (n + 15) / 16 * 16
	if n%collide == 0 {
		n += 16
	}
	return n
}

// reordered returns the memory of one direction's weights in the kernel's order.
func (l RNN) reordered(t *tape.Tape, in int) alloc.Bytes {
	weights, err := alloc.Shape{4 * l.Hidden, in + l.Hidden}.Bytes(t.Cfg.Weights)
	if err != nil || weights > setting.MaxTotal {
		return 0 // the declaration has already reported it
	}
	return weights
}
