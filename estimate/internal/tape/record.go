package tape

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Input returns the i-th input of the model, the first being the input of its first layer. It fails
// if there are fewer.
func (t *Tape) Input(i int) Tensor {
	if i < 0 || i >= len(t.Inputs) {
		t.Failf("the layer reads input %d, but the model was given %d: give more, with InputShape or Tokens", i, len(t.Inputs))
	}
	t.InputsRead = max(t.InputsRead, i+1)
	return t.Inputs[i]
}

// Const returns a tensor that depends on no input and needs no gradient, such as a mask or a table
// of positions. A zero type means the type of the model's activations. It fails for a shape that is
// not valid, or too large.
func (t *Tape) Const(d alloc.DType, dims ...int) Tensor {
	d = setting.Or(d, t.Activation())
	shape := alloc.Shape(slices.Clone(dims))
	if shape == nil {
		shape = alloc.Shape{}
	}
	bytes := t.bytes(shape, d, false)
	at := int32(len(t.Ops))
	id := t.NewStorage(Storage{Bytes: bytes, Last: at, LastRun: at, Alias: -1, made: true})
	return Tensor{Shape: shape, DType: d, Ref: Ref{tape: t, storage: id}}
}

// AddInput gives the model one more input, whose memory is counted as given.
func (t *Tape) AddInput(shape alloc.Shape, d alloc.DType, bytes alloc.Bytes) {
	t.Total += bytes
	id := t.NewStorage(Storage{Bytes: int64(bytes), Alias: -1, Input: true})
	t.Inputs = append(t.Inputs, Tensor{Shape: shape, DType: d, Ref: Ref{tape: t, storage: id}})
}

// Activation returns the element type of the model's activations.
func (t *Tape) Activation() alloc.DType { return t.Cfg.Activations }

// On returns the backend whose kernels are modelled.
func (t *Tape) On() setting.Backend { return t.Cfg.Backend }

// Resized returns the shape with its last dimensions replaced.
func (t *Tape) Resized(shape alloc.Shape, last ...int) alloc.Shape {
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

// Record runs the layer that is the whole model, and returns its output. The error is the
// *LayerError with which a layer failed.
func (t *Tape) Record(root Layer, x Tensor) (y Tensor, err error) {
	err = caught(func() { y = root.Forward(t, x) })
	return y, err
}

// Failf ends the forward pass with an error that names the current layer.
func (t *Tape) Failf(format string, args ...any) { t.fail(fmt.Sprintf(format, args...), nil) }

// fail ends the forward pass with an error of the current layer.
func (t *Tape) fail(reason string, err error) {
	panic(failure{&LayerError{Path: t.path, Layer: t.kind(), Reason: reason, Err: err}})
}

func (t *Tape) kind() string {
	if t.Row >= 0 && t.Row < len(t.Rows) {
		return t.Rows[t.Row].Kind
	}
	return t.Cfg.Name
}

// moduleOf returns the module whose parameters operation i reads, or -1.
func (t *Tape) moduleOf(i int) int {
	row := t.Ops[i].Row
	if row < 0 {
		return 0
	}
	return t.Rows[row].Owner
}

func (t *Tape) NewStorage(s Storage) int32 {
	t.Storages = append(t.Storages, s)
	return int32(len(t.Storages) - 1)
}

// use notes that the operation reads x.
func (t *Tape) use(x Tensor, at int32, trainingOnly bool) {
	s := &t.Storages[x.storage]
	s.Last = max(s.Last, at)
	for w := s; w.Part; {
		w = &t.Storages[w.Alias]
		w.Last, w.read = max(w.Last, at), max(w.read, at)
	}
	for !trainingOnly {
		s.LastRun = max(s.LastRun, at)
		if s.Alias < 0 {
			break
		}
		s = &t.Storages[s.Alias]
	}
}

// Hold keeps tensors alive up to the last operation so far, as if a variable of the layer's code
// held them.
func (t *Tape) Hold(xs ...Tensor) {
	n := int32(len(t.Ops))
	for _, x := range xs {
		if n > 0 && x.tape == t {
			t.use(x, n-1, false)
		}
	}
}

// bytes returns the size of a tensor on one device.
func (t *Tape) bytes(shape alloc.Shape, d alloc.DType, split bool) int64 {
	b, err := shape.Bytes(d)
	if err != nil {
		t.fail("", err)
	}
	if split {
		b = (b + alloc.Bytes(t.Cfg.Sharding.Tensor) - 1) / alloc.Bytes(t.Cfg.Sharding.Tensor)
	}
	if t.Total += b; b > setting.MaxTotal || t.Total > setting.MaxTotal {
		t.Failf("the tensors of the model take more than %v", alloc.Bytes(setting.MaxTotal))
	}
	return int64(b)
}

// Slot is a place on a tape where layers of one kind leave things for each other while they record,
// such as rotary tables, or keys and values that later layers borrow. The package of these layers
// declares the slot as a variable; each tape has its own value there, at first the zero value. In
// this way the tape needs to know no layer.
type Slot[T any] struct {
	_ byte // a byte, so that no two slots have one address
}

// Of returns the tape's value of the slot, to read and to change.
func (s *Slot[T]) Of(t *Tape) *T {
	for i := range t.slots {
		if t.slots[i].slot == any(s) {
			return t.slots[i].value.(*T)
		}
	}
	v := new(T)
	t.slots = append(t.slots, filled{s, v})
	return v
}

// lasting is a slot's value that holds tensors alive until the forward pass is over.
type lasting interface{ Lasting() []Tensor }

// HoldLasting keeps the tensors of such slots alive until the forward pass is over.
func (t *Tape) HoldLasting() {
	for _, s := range t.slots {
		if l, ok := s.value.(lasting); ok {
			for _, x := range l.Lasting() {
				t.Hold(x)
			}
		}
	}
}

// Size returns the memory of x on one device, or 0 if it is not valid.
func (t *Tape) Size(x Tensor) alloc.Bytes {
	bytes, err := x.Shape.Bytes(x.DType)
	if err != nil || bytes > setting.MaxTotal {
		return 0 // the operation reports the error
	}
	if x.split {
		bytes = alloc.Bytes(setting.Part(int64(bytes), t.Cfg.Sharding.Tensor))
	}
	return bytes
}

// Whole returns the size of a weight in an element type, on one device.
func (t *Tape) Whole(shape alloc.Shape, d alloc.DType) alloc.Bytes {
	n, err := shape.Bytes(d)
	if err != nil {
		return 0 // the declaration has already reported it
	}
	return min(n/alloc.Bytes(t.Cfg.Sharding.Tensor), setting.MaxTotal)
}
