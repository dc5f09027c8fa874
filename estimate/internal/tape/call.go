package tape

import (
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Call runs a part of the current layer, by the name under which that layer declared it. The part
// reads the tensors of beside with Tape.Beside. It fails for a name that was not declared.
func (t *Tape) Call(name string, l Layer, x Tensor, beside ...Tensor) Tensor {
	l = Unwrap(l)
	module, declared, at := t.declared(name)
	if IsNil(l) || t.depth >= maxDepth || len(t.Rows) >= MaxLayers {
		panic(failure{&LayerError{Path: at, Layer: "layer", Reason: "it is nil, nested too deep or one too many"}})
	}
	if !declared && t.shared == nil {
		panic(failure{&LayerError{Path: at, Layer: KindOf(l), Reason: "it is called but was not declared: Declare must name it"}})
	}
	outerPath, outerRow, outerBeside := t.path, t.Row, t.beside
	row := len(t.Rows)
	r := Row{Path: at, Depth: t.depth + 1, Leaf: true, Input: x.Shape, Module: -1, Owner: module}
	if declared {
		r.Kind = t.Decl.Modules[module].Kind
	} else {
		r.Kind, r.Owner = KindOf(l), t.owner(at)
	}
	if declared && !t.Called[module] {
		t.Called[module] = true
		r.Module, r.Params = module, t.Decl.Modules[module].Params
	}
	t.Rows = append(t.Rows, r)
	if outerRow >= 0 {
		t.Rows[outerRow].Leaf = false
	}
	t.path, t.Row, t.depth, t.beside = at, row, t.depth+1, beside
	before := len(t.Storages)
	var y Tensor
	if t.checkpointed(at) {
		y = t.checkpoint(l, x)
	} else {
		y = l.Forward(t, x)
	}
	if y.tape != t {
		t.Failf("Forward returned no tensor of this model")
	}
	if r, ok := l.(interface{ Replaces(*Tape) bool }); !ok || !r.Replaces(t) {
		t.Hold(x) // the call's arguments hold it until it returns
	}
	for _, b := range beside {
		t.Hold(b)
	}
	t.Rows[row].Output = y.Shape
	for _, s := range t.Storages[before:] {
		t.Rows[row].Allocated += alloc.Bytes(s.Bytes)
	}
	if t.shown != nil {
		t.Rows[row].Output, t.shown = t.shown, nil
	}
	t.path, t.Row, t.depth, t.beside = outerPath, outerRow, t.depth-1, outerBeside
	return y
}

// Show sets the output shape that the current layer's row shows, where it differs from the shape
// that Forward returns.
func (t *Tape) Show(output alloc.Shape) { t.shown = output }

// Beside returns the i-th tensor that the current layer was given beside its input, such as the
// encoder's output for cross-attention. It fails if there are fewer.
func (t *Tape) Beside(i int) Tensor {
	if i < 0 || i >= len(t.beside) {
		t.Failf("the layer reads tensor %d beside its input, but was called with %d: give more of them to Call", i, len(t.beside))
	}
	return t.beside[i]
}

// AllBeside returns all tensors that the current layer was given beside its input.
func (t *Tape) AllBeside() []Tensor { return t.beside }

// declared finds the declaration of a part of the current layer. Layers are mostly
// called in the order in which they were declared, so that is tried first.
func (t *Tape) declared(name string) (module int, ok bool, at string) {
	if t.Next < len(t.Decl.Modules) {
		if at = t.Decl.Modules[t.Next].Path; isPart(at, t.path, name) {
			t.Next++
			return t.Next - 1, true, at
		}
	}
	at = join(t.path, name)
	if module, ok = t.Decl.index[at]; ok {
		t.Next = module + 1
	}
	return module, ok, at
}

// owner returns the module whose parameters the layer at this path reads, or -1.
func (t *Tape) owner(at string) int {
	if t.shared != nil {
		at = t.shared.home + strings.TrimPrefix(at, t.shared.at)
	}
	if module, ok := t.Decl.index[at]; ok {
		return module
	}
	return -1
}

// Learns reports whether the parameters of the current layer are trained.
func (t *Tape) Learns() bool {
	if t.Row < 0 {
		return !t.Decl.Modules[0].Frozen
	}
	owner := t.Rows[t.Row].Owner
	return owner < 0 || !t.Decl.Modules[owner].Frozen
}

// ForWeights returns reads if the layer's parameters are trained, and nil if not: only a
// parameter's gradient needs them.
func (t *Tape) ForWeights(reads []Tensor) []Tensor {
	if t.Learns() {
		return reads
	}
	return nil
}

// DeclaredPath returns the path under which the current layer was declared.
func (t *Tape) DeclaredPath() string {
	if t.Row >= 0 {
		if owner := t.Rows[t.Row].Owner; owner >= 0 {
			return t.Decl.Modules[owner].Path
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

// checkpointed reports whether a pattern of the option Checkpointed names the layer.
func (t *Tape) checkpointed(at string) bool {
	found := false
	for i, pattern := range t.Cfg.Checkpoints {
		if ok, err := path.Match(pattern, at); ok && err == nil {
			t.Matched[i], found = true, true
		}
	}
	return found
}

// checkpoint runs a layer whose operations the backward pass runs again instead of keeping what
// they need. A checkpointed layer inside another one changes nothing.
func (t *Tape) checkpoint(l Layer, x Tensor) Tensor {
	if t.inside {
		return l.Forward(t, x)
	}
	begin := int32(len(t.Ops))
	t.inside, t.products = true, 0
	y := l.Forward(t, x)
	t.inside = false
	t.keptInside()
	if end := int32(len(t.Ops)); t.backward(begin, end) {
		t.Segments = append(t.Segments, t.segment(begin, end))
	}
	return y
}

// backward reports whether the backward pass goes through any of the operations from begin up to
// end.
func (t *Tape) backward(begin, end int32) bool {
	return slices.ContainsFunc(t.Ops[begin:end], func(o Recorded) bool { return o.Grad })
}

// segment describes the operations from begin up to end, which a checkpoint runs again. Their
// inputs are kept for that: autograd keeps those that an operation made, and the checkpoint's
// closure the others.
func (t *Tape) segment(begin, end int32) Segment {
	s := Segment{Begin: begin, End: end}
	made := make(map[int32]bool)
	for i := begin; i < end; i++ {
		o := &t.Ops[i]
		for _, id := range t.Refs[o.In:o.Keep] {
			if id = t.Home(id); !made[id] {
				made[id] = true
				s.Inputs = append(s.Inputs, id)
			}
		}
		made[o.Out] = true
		if o.saved {
			s.Saved = append(s.Saved, t.returned(o)...)
		}
	}
	for _, id := range slices.Concat(s.Inputs, s.Saved) {
		held := &t.Storages[id]
		if !held.made && (!held.Kept || held.Hidden) {
			held.Kept, held.Hidden = true, false
			if t.Row >= 0 {
				t.Rows[t.Row].Kept += alloc.Bytes(held.Bytes)
			}
		}
	}
	return s
}

// returned lists the storages that stay when an operation returns: its output, and the tensor that
// its kernel keeps for itself, if there is one.
func (t *Tape) returned(o *Recorded) []int32 {
	all := []int32{t.Home(o.Out)}
	if n := o.End; n > o.Keep && t.Storages[t.Refs[n-1]].Own {
		all = append(all, t.Refs[n-1])
	}
	return all
}
