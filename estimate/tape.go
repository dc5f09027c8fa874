package estimate

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Input returns the i-th input of the model, the first being the input of its first layer.
// An index out of range is a *LayerError.
func (t *Tape) Input(i int) (Tensor, error) {
	if i < 0 || i >= len(t.inputs) {
		return Tensor{}, t.Errorf("the layer reads input %d, but the model was given %d: give more, with InputShape or Tokens", i, len(t.inputs))
	}
	t.inputsRead = max(t.inputsRead, i+1)
	return t.inputs[i], nil
}

// Const returns a tensor that the layer makes without any input, such as a mask or a table of
// positions, and that needs no gradient; a zero type is that of activations. A shape that is not valid,
// or too large, is an error.
func (t *Tape) Const(d alloc.DType, dims ...int) (Tensor, error) {
	d = or(d, t.Activation())
	shape := alloc.Shape(slices.Clone(dims))
	if shape == nil {
		shape = alloc.Shape{}
	}
	bytes, err := t.bytes(shape, d, false)
	if err != nil {
		return Tensor{}, err
	}
	at := int32(len(t.ops))
	id := t.newStorage(storage{bytes: bytes, last: at, lastRun: at, alias: -1, made: true})
	return Tensor{Shape: shape, DType: d, tape: t, storage: id}, nil
}

// Activation is the model's type of activations.
func (t *Tape) Activation() alloc.DType { return t.cfg.activations }

// On is the backend whose kernels are modelled.
func (t *Tape) On() Backend { return t.cfg.backend }

// resized is a shape with its last dimensions replaced.
func (t *Tape) resized(shape alloc.Shape, last ...int) alloc.Shape {
	y := t.clone(shape)
	copy(y[max(0, len(y)-len(last)):], last)
	return y
}

// clone copies a shape, which the report may keep.
func (t *Tape) clone(shape alloc.Shape) alloc.Shape {
	if cap(t.dims)-len(t.dims) < len(shape) {
		t.dims = make([]int, 0, max(512, len(shape)))
	}
	begin := len(t.dims)
	t.dims = append(t.dims, shape...)
	return t.dims[begin:len(t.dims):len(t.dims)]
}

// Errorf makes an error that names the layer which is being called.
func (t *Tape) Errorf(format string, args ...any) error {
	return &LayerError{Path: t.path, Layer: t.kind(), Reason: fmt.Sprintf(format, args...)}
}

func (t *Tape) wrap(reason string, err error) error {
	return &LayerError{Path: t.path, Layer: t.kind(), Reason: reason, Err: err}
}

func (t *Tape) kind() string {
	if t.row >= 0 && t.row < len(t.rows) {
		return t.rows[t.row].Kind
	}
	return t.cfg.name
}

// moduleOf is the module whose parameters operation i reads, or -1.
func (t *Tape) moduleOf(i int) int {
	row := t.ops[i].row
	if row < 0 {
		return 0
	}
	return t.rows[row].owner
}

func (t *Tape) newStorage(s storage) int32 {
	t.storages = append(t.storages, s)
	return int32(len(t.storages) - 1)
}

// use notes that the operation reads x.
func (t *Tape) use(x Tensor, at int32, trainingOnly bool) {
	s := &t.storages[x.storage]
	s.last = max(s.last, at)
	for w := s; w.part; {
		w = &t.storages[w.alias]
		w.last, w.read = max(w.last, at), max(w.read, at)
	}
	for !trainingOnly {
		s.lastRun = max(s.lastRun, at)
		if s.alias < 0 {
			break
		}
		s = &t.storages[s.alias]
	}
}

// hold keeps x alive up to the last operation so far, as a variable of the
// layer's code does.
func (t *Tape) hold(x Tensor) {
	if n := int32(len(t.ops)); n > 0 && x.tape == t {
		t.use(x, n-1, false)
	}
}

// bytes is the size of a tensor on one device.
func (t *Tape) bytes(shape alloc.Shape, d alloc.DType, split bool) (int64, error) {
	b, err := shape.Bytes(d)
	if err != nil {
		return 0, t.wrap("", err)
	}
	if split {
		b = (b + alloc.Bytes(t.cfg.sharding.Tensor) - 1) / alloc.Bytes(t.cfg.sharding.Tensor)
	}
	if t.total += b; b > maxTotal || t.total > maxTotal {
		return 0, t.Errorf("the tensors of the model take more than %v", alloc.Bytes(maxTotal))
	}
	return int64(b), nil
}
