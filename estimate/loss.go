package estimate

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// CrossEntropy is nn.CrossEntropyLoss, with a number of the right class for each vector
// of logits. It keeps the logarithms of the probabilities and the targets. Losses make
// their own targets.
type CrossEntropy struct {
	// Dim is the dimension of the classes; 0 means the last, as language models have
	// it. Where each pixel of an image has a class it is 1.
	Dim int
}

// MSE is nn.MSELoss; it keeps its input and the target.
type MSE struct{}

// L1 is nn.L1Loss; it keeps the difference.
type L1 struct{}

// BCEWithLogits is nn.BCEWithLogitsLoss; it keeps its input and the target.
type BCEWithLogits struct{}

// Declare implements Layer.
func (l CrossEntropy) Declare(d *Declaration) { d.want("Dim", l.Dim, 0) }

// Declare implements Layer.
func (MSE) Declare(*Declaration) {}

// Declare implements Layer.
func (L1) Declare(*Declaration) {}

// Declare implements Layer.
func (BCEWithLogits) Declare(*Declaration) {}

// Forward implements Layer.
func (l CrossEntropy) Forward(t *Tape, x Tensor) (Tensor, error) {
	if len(x.Shape) < 2 || l.Dim >= len(x.Shape) {
		return Tensor{}, t.Errorf("input %v has no classes: want (batch, ..., classes), or those in dimension Dim", x.Shape)
	}
	dim := or(l.Dim, len(x.Shape)-1)
	target, err := t.Const(alloc.Int64, slices.Delete(slices.Clone(x.Shape), dim, dim+1)...)
	if err != nil {
		return Tensor{}, err
	}
	log, err := keepOutput(t, x)
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{
		In: []Tensor{log, target}, Shape: alloc.Shape{}, Keep: []Tensor{target},
		KeepOwn: []Own{{Shape: alloc.Shape{}}}, // the weight of all targets
	})
}

// Forward implements Layer.
func (MSE) Forward(t *Tape, x Tensor) (Tensor, error) { return against(t, x) }

// Forward implements Layer.
func (BCEWithLogits) Forward(t *Tape, x Tensor) (Tensor, error) { return against(t, x) }

// Forward implements Layer.
func (L1) Forward(t *Tape, x Tensor) (Tensor, error) {
	return t.Op(Op{In: []Tensor{x}, Shape: alloc.Shape{}, KeepOwn: []Own{{Shape: x.Shape}}})
}

// against is a loss that keeps the input and a target like it.
func against(t *Tape, x Tensor) (Tensor, error) {
	target, err := t.Const(x.DType, x.Shape...)
	if err != nil {
		return Tensor{}, err
	}
	return t.Op(Op{In: []Tensor{x, target}, Shape: alloc.Shape{}, Keep: []Tensor{x, target}})
}
