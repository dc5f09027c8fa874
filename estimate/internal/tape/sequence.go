package tape

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Sequence parallelism (arXiv:2205.05198, section 4.2.2) divides the tokens of what tensor parallelism leaves whole: the
// inputs of blocks, norms and dropouts. A layer that is split gathers its input, and what it returns is summed over the
// devices and scattered.

// gathered holds the tensor that was gathered last, and what it was gathered from.
var gathered Slot[struct{ from, whole Tensor }]

// Gathered returns x with the tokens of all devices. Layers that read the same x one after another share the result, as
// they do with torch.distributed.tensor.parallel's PrepareModuleInput.
func Gathered(t *Tape, x Tensor) Tensor {
	if !x.sequence {
		return x
	}
	last := gathered.Of(t)
	if from := last.from; from.tape == t && from.storage == x.storage && from.DType == x.DType && slices.Equal(from.Shape, x.Shape) {
		return last.whole
	}
	y := t.Op(Op{In: []Tensor{x}, Shape: x.Shape, Whole: true})
	last.from, last.whole = x, y
	return y
}

// EntersSplit prepares an operation of a layer that is split for an input of which each device holds a part of the tokens:
// the layer either keeps the gathered input, or gathers it again in the backward pass, where the gradient of the whole
// input is there too (Megatron-LM's core/tensor_parallel/layers.py, LinearWithGradAccumulationAndAsyncCommunication).
func EntersSplit(t *Tape, o *Op, x Tensor) Tensor {
	if !x.sequence || t.Cfg.Sharding.Sequence == setting.SequenceKept {
		return Gathered(t, x)
	}
	whole := allTokens(x.Shape, x.DType)
	o.Workspace += whole
	o.BackwardWorkspace += whole
	return x
}

// LeavesSplit counts the whole output of a layer that is split, which exists until it is scattered; in the backward pass
// that is its gradient.
func LeavesSplit(t *Tape, o *Op, d alloc.DType) {
	if t.Cfg.Sharding.Sequence != "" {
		o.Workspace += allTokens(o.Shape, d)
	}
}

// allTokens returns the size of a tensor of all tokens.
func allTokens(shape alloc.Shape, d alloc.DType) alloc.Bytes {
	n, err := shape.Bytes(d)
	if err != nil {
		return 0 // the operation reports it
	}
	return min(n, setting.MaxTotal)
}
