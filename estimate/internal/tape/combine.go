package tape

import (
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Sequential calls one layer after another. Each layer is named by its index unless it is Named,
// and may read the tensors that the Sequential was given beside its input: see Tape.Call.
type Sequential []Layer

func (s Sequential) Declare(d *Declaration) {
	for i, l := range s {
		declarePart(d, strconv.Itoa(i), l)
	}
}

func (s Sequential) Forward(t *Tape, x Tensor) Tensor {
	for i, l := range s {
		x = callPart(t, strconv.Itoa(i), l, x)
	}
	return x
}

// Named is a layer with a name of its own, in place of its index in the layer that holds it.
type Named struct {
	Name  string
	Layer Layer
}

// As returns Named{name, l}.
func As(name string, l Layer) Named { return Named{Name: name, Layer: l} }

func (n Named) Declare(d *Declaration) { d.Layer(n.Name, n.Layer) }

func (n Named) Forward(t *Tape, x Tensor) Tensor {
	return t.Call(n.Name, n.Layer, x, t.beside...)
}

// Inner returns the layer without its name.
func (n Named) Inner() Layer { return n.Layer }

// Residual is After(Body(x) + Shortcut(x)). The layers of a Body that is a Sequential belong to the
// Residual itself, without a name between, as in a ResNet's block.
type Residual struct {
	Body     Layer
	Shortcut Layer // nil passes x on unchanged
	After    Layer // called with the sum; may be nil
}

func (r Residual) Declare(d *Declaration) {
	if body, ok := r.Body.(Sequential); ok {
		body.Declare(d)
	} else {
		declarePart(d, "body", r.Body)
	}
	if r.Shortcut != nil {
		declarePart(d, "shortcut", r.Shortcut)
	}
	if r.After != nil {
		declarePart(d, "after", r.After)
	}
}

func (r Residual) Forward(t *Tape, x Tensor) Tensor {
	var y Tensor
	if body, ok := r.Body.(Sequential); ok {
		y = body.Forward(t, x)
	} else {
		y = callPart(t, "body", r.Body, x)
	}
	if r.Shortcut != nil {
		x = callPart(t, "shortcut", r.Shortcut, x)
	}
	if y = t.Sum(y, x); r.After != nil {
		y = callPart(t, "after", r.After, y)
	}
	return y
}

// Concat calls each branch with the same input and joins their outputs along
// a dimension.
type Concat struct {
	Branches []Layer
	Dim      int // 0 means 1, the channels
}

func (c Concat) Declare(d *Declaration) { Sequential(c.Branches).Declare(d) }

func (c Concat) Forward(t *Tape, x Tensor) Tensor {
	outputs := make([]Tensor, len(c.Branches))
	for i, l := range c.Branches {
		outputs[i] = callPart(t, strconv.Itoa(i), l, x)
	}
	return t.Cat(setting.Or(c.Dim, 1), outputs...)
}

// Repeat calls N copies of a layer one after another. Each copy has its own parameters and is named
// by its index: "0", "1" and so on.
type Repeat struct {
	N     int
	Layer Layer

	first int // the number of the first copy
}

func (r Repeat) Declare(d *Declaration) {
	if r.N < 0 {
		d.Failf("N is %d: want 0 or more", r.N)
	}
	for i := range max(0, r.N) {
		d.Layer(strconv.Itoa(r.first+i), r.Layer)
	}
}

func (r Repeat) Forward(t *Tape, x Tensor) Tensor {
	for i := range max(0, r.N) {
		x = t.Call(strconv.Itoa(r.first+i), r.Layer, x, t.beside...)
	}
	return x
}

// Share makes a layer that can stand at several places of a model. All of them use one set of
// parameters, which is counted once.
func Share(l Layer) *Shared { return &Shared{l} }

// Shared is a layer that Share made. Two Shared are the same layer if they are the same pointer.
type Shared struct{ layer Layer }

// Kind returns the kind of the layer that is shared.
func (s *Shared) Kind() string {
	if IsNil(Unwrap(s.layer)) {
		return "Shared"
	}
	return KindOf(Unwrap(s.layer))
}

func (s *Shared) Declare(d *Declaration) {
	if d.Shared[s] {
		return
	}
	d.Shared[s] = true
	inner := Unwrap(s.layer)
	if IsNil(inner) {
		d.Failf("Share was given no layer")
	}
	d.Declare(inner)
}

func (s *Shared) Forward(t *Tape, x Tensor) Tensor {
	outer := t.shared
	if home, again := t.Homes[s]; again { // its parts were declared at its first place
		t.shared = &reuse{home: home, at: t.path}
	} else {
		t.Homes[s] = t.path
	}
	if t.Row >= 0 {
		t.Rows[t.Row].Owner = t.owner(t.path)
	}
	y := Unwrap(s.layer).Forward(t, x)
	t.shared = outer
	return y
}

// Skip adds the output of the layers to their input x. It takes no name of its own in the path.
func Skip(body ...Layer) Layer { return Inlined{Residual{Body: Sequential(body)}} }
