package estimate

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Tensor is an activation that the layers pass on: a shape and an element
// type over a storage, which views of a tensor and operations in place share.
// Tensors come from the Tape and are good for that one only; the zero Tensor is none.
type Tensor struct {
	Shape alloc.Shape
	DType alloc.DType

	tape    *Tape
	storage int32 // index on the tape
	grad    bool  // the loss depends on a parameter through it
	split   bool  // each device of a tensor parallel group holds a part
}

// NeedsGrad reports whether the backward pass computes a gradient of x, which
// decides what many operations keep.
func (x Tensor) NeedsGrad() bool { return x.grad }

// Tape is the record of one forward pass. Layers write on it; nothing is
// computed but shapes and sizes.
type Tape struct {
	cfg        *config
	decl       *Declaration
	inputs     []Tensor
	inputsRead int    // the first so many were asked for
	out        Tensor // of the model
	storages   []storage
	ops        []op
	refs       []int32 // storages that operations read and keep, one stretch after another
	rows       []Row
	called     []bool    // modules that have a row
	next       int       // module that is expected to be called next
	segments   []segment // checkpointed stretches of ops
	matched    []bool    // patterns of Checkpointed that match a layer
	recurrent  bool      // a layer is recurrent
	held       bool      // parts are there and do not run
	rounded    bool      // a convolution computes in another type than float32
	total      alloc.Bytes
	cos, sin   Tensor      // of rotary positions, which all layers share
	masks      Tensor      // of eager attention, which all layers share
	attention  Tensor      // the weights that eager attention returned last
	rowOutput  alloc.Shape // of the layer being called, where it is not what Forward returns
	scores     Tensor      // of the router that was called last

	dims []int // memory of shapes, taken for many of them at a time

	path   string
	row    int // of the layer being called
	depth  int
	inside bool               // of a checkpointed layer
	shared *reuse             // the innermost Shared being called again
	homes  map[*Shared]string // the path where each was called first
}

type storage struct {
	bytes   int64
	last    int32 // the last operation that uses it
	lastRun int32 // the same in inference
	read    int32 // the last operation that reads it, where last may be a variable that holds it
	alias   int32 // the storage that serves in inference, where the operation is the identity
	input   bool
	made    bool // by Const
	own     bool // kept by an operation, never passed on
	kept    bool
	grad    bool
	hidden  bool // kept by nobody but a checkpointed layer, which drops it
}

type op struct {
	row            int32
	in, keep, end  int32 // refs[in:keep] are read, refs[keep:end] are kept
	out            int32
	workspace      int64
	backward       int64 // workspace besides
	grad, passGrad bool
	inPlace, view  bool
	trainingOnly   bool
	params         bool // it reads parameters of its layer
}

// segment is a checkpointed layer: the operations from begin up to end.
type segment struct {
	begin, end int32
	inputs     []int32 // storages that it reads and did not make: these are kept
}

// maxTotal bounds the sum of all tensors, so that no later sum can overflow.
const maxTotal = 1 << 56

// Call runs a part of the layer that is being called, under the name that the
// layer declared it by.
func (t *Tape) Call(name string, l Layer, x Tensor) (Tensor, error) {
	l = unwrap(l)
	module, declared, at := t.declared(name)
	if isNil(l) || t.depth >= maxDepth || len(t.rows) >= maxLayers {
		return Tensor{}, &LayerError{Path: at, Layer: "layer", Reason: "it is nil, nested too deep or one too many"}
	}
	if !declared && t.shared == nil {
		return Tensor{}, &LayerError{Path: at, Layer: kindOf(l), Reason: "it is called but was not declared: Declare must name it"}
	}
	outerPath, outerRow := t.path, t.row
	row := len(t.rows)
	r := Row{Path: at, Depth: t.depth + 1, Leaf: true, Input: x.Shape, module: -1, owner: module}
	if declared {
		r.Kind = t.decl.modules[module].kind
	} else {
		r.Kind, r.owner = kindOf(l), t.owner(at)
	}
	if declared && !t.called[module] {
		t.called[module] = true
		r.module, r.Params = module, t.decl.modules[module].params
	}
	t.rows = append(t.rows, r)
	if outerRow >= 0 {
		t.rows[outerRow].Leaf = false
	}
	t.path, t.row, t.depth = at, row, t.depth+1
	before := len(t.storages)
	var y Tensor
	var err error
	if t.checkpointed(at) {
		y, err = t.checkpoint(l, x)
	} else {
		y, err = l.Forward(t, x)
	}
	if err == nil && y.tape != t {
		err = t.Errorf("Forward returned no tensor of this model")
	}
	if err != nil {
		return Tensor{}, err
	}
	t.hold(x) // the call's arguments hold it until it returns
	t.rows[row].Output = y.Shape
	for _, s := range t.storages[before:] {
		t.rows[row].Allocated += alloc.Bytes(s.bytes)
	}
	if t.rowOutput != nil {
		t.rows[row].Output, t.rowOutput = t.rowOutput, nil
	}
	t.path, t.row, t.depth = outerPath, outerRow, t.depth-1
	return y, nil
}

// declared finds the declaration of a part of the current layer. Layers are mostly
// called in the order in which they were declared, so that is tried first.
func (t *Tape) declared(name string) (module int, ok bool, at string) {
	if t.next < len(t.decl.modules) {
		if at = t.decl.modules[t.next].path; isPart(at, t.path, name) {
			t.next++
			return t.next - 1, true, at
		}
	}
	at = join(t.path, name)
	if module, ok = t.decl.index[at]; ok {
		t.next = module + 1
	}
	return module, ok, at
}

// reuse is a further call of a Shared layer: what lies below at was declared
// below home.
type reuse struct{ home, at string }

// owner is the module whose parameters the layer at a path reads, or -1.
func (t *Tape) owner(at string) int {
	if t.shared != nil {
		at = t.shared.home + strings.TrimPrefix(at, t.shared.at)
	}
	if module, ok := t.decl.index[at]; ok {
		return module
	}
	return -1
}

// isPart reports whether at is join(parent, name), without building that.
func isPart(at, parent, name string) bool {
	if parent == "" {
		return at == name
	}
	n := len(parent)
	return len(at) == n+1+len(name) && at[:n] == parent && at[n] == '.' && at[n+1:] == name
}

// checkpointed reports whether an option names the layer.
func (t *Tape) checkpointed(at string) bool {
	found := false
	for i, pattern := range t.cfg.checkpoints {
		if ok, err := path.Match(pattern, at); ok && err == nil {
			t.matched[i], found = true, true
		}
	}
	return found
}

// checkpoint runs a layer as a stretch of operations whose kept tensors are
// computed again in the backward pass. Within another such stretch it does
// nothing of its own.
func (t *Tape) checkpoint(l Layer, x Tensor) (Tensor, error) {
	if t.inside {
		return l.Forward(t, x)
	}
	begin := int32(len(t.ops))
	t.inside = true
	y, err := l.Forward(t, x)
	t.inside = false
	if end := int32(len(t.ops)); err == nil && end > begin {
		t.segments = append(t.segments, t.segment(begin, end))
	}
	return y, err
}

// segment describes the operations from begin up to end, whose inputs are kept: by
// autograd, except for what was made without any input, which the closure holds that
// runs them again.
func (t *Tape) segment(begin, end int32) segment {
	s := segment{begin: begin, end: end}
	made := make(map[int32]bool)
	for i := begin; i < end; i++ {
		o := &t.ops[i]
		for _, id := range t.refs[o.in:o.keep] {
			if !made[id] {
				made[id] = true
				s.inputs = append(s.inputs, id)
			}
		}
		made[o.out] = true
	}
	for _, id := range s.inputs {
		held := &t.storages[id]
		if !held.made && (!held.kept || held.hidden) {
			held.kept, held.hidden = true, false
			if t.row >= 0 {
				t.rows[t.row].Kept += alloc.Bytes(held.bytes)
			}
		}
	}
	return s
}

// Input returns the i-th input of the model, the first being that which its
// first layer gets.
func (t *Tape) Input(i int) (Tensor, error) {
	if i < 0 || i >= len(t.inputs) {
		return Tensor{}, t.Errorf("the layer reads input %d, but the model was given %d", i, len(t.inputs))
	}
	t.inputsRead = max(t.inputsRead, i+1)
	return t.inputs[i], nil
}

// Const returns a tensor that the layer makes without any input, such as a
// mask or a table of positions, and that needs no gradient.
func (t *Tape) Const(d alloc.DType, dims ...int) (Tensor, error) {
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
