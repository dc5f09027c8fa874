package estimate

import (
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Call runs a part of the layer that is being called, under the name that the layer declared
// it by. Further tensors are those that the part reads by Beside. The error is a *LayerError,
// the part's own, or says that the part was not declared.
func (t *Tape) Call(name string, l Layer, x Tensor, beside ...Tensor) (Tensor, error) {
	l = unwrap(l)
	module, declared, at := t.declared(name)
	if isNil(l) || t.depth >= maxDepth || len(t.rows) >= maxLayers {
		return Tensor{}, &LayerError{Path: at, Layer: "layer", Reason: "it is nil, nested too deep or one too many"}
	}
	if !declared && t.shared == nil {
		return Tensor{}, &LayerError{Path: at, Layer: kindOf(l), Reason: "it is called but was not declared: Declare must name it"}
	}
	outerPath, outerRow, outerBeside := t.path, t.row, t.beside
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
	t.path, t.row, t.depth, t.beside = at, row, t.depth+1, beside
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
	if r, ok := l.(interface{ replaces() bool }); !ok || !r.replaces() {
		t.hold(x) // the call's arguments hold it until it returns
	}
	for _, b := range beside {
		t.hold(b)
	}
	t.rows[row].Output = y.Shape
	for _, s := range t.storages[before:] {
		t.rows[row].Allocated += alloc.Bytes(s.bytes)
	}
	if t.rowOutput != nil {
		t.rows[row].Output, t.rowOutput = t.rowOutput, nil
	}
	t.path, t.row, t.depth, t.beside = outerPath, outerRow, t.depth-1, outerBeside
	return y, nil
}

// Beside returns the i-th of the further tensors that the layer which is being called was
// given. An index out of range is a *LayerError.
func (t *Tape) Beside(i int) (Tensor, error) {
	if i < 0 || i >= len(t.beside) {
		return Tensor{}, t.Errorf("the layer reads tensor %d beside its input, but was called with %d: give more of them to Call", i, len(t.beside))
	}
	return t.beside[i], nil
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

// learns reports whether the parameters of the layer that is being called are trained.
func (t *Tape) learns() bool {
	if t.row < 0 {
		return !t.decl.modules[0].frozen
	}
	owner := t.rows[t.row].owner
	return owner < 0 || !t.decl.modules[owner].frozen
}

// forWeights is what an operation reads if the gradient of the layer's parameters needs it.
func (t *Tape) forWeights(reads []Tensor) []Tensor {
	if t.learns() {
		return reads
	}
	return nil
}

// declaredPath is the path by which the layer that is being called was declared.
func (t *Tape) declaredPath() string {
	if t.row >= 0 {
		if owner := t.rows[t.row].owner; owner >= 0 {
			return t.decl.modules[owner].path
		}
	}
	return t.path
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
	t.keptInside()
	if end := int32(len(t.ops)); err == nil && t.backward(begin, end) {
		t.segments = append(t.segments, t.segment(begin, end))
	}
	return y, err
}

// backward reports whether the backward pass comes to one of the operations.
func (t *Tape) backward(begin, end int32) bool {
	return slices.ContainsFunc(t.ops[begin:end], func(o op) bool { return o.grad })
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
			if id = t.home(id); !made[id] {
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
