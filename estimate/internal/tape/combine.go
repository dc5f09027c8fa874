package tape

import (
	"slices"
	"strconv"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Sequential calls one layer after another. Each layer is named by its index unless it is Named,
// and may read the tensors that the Sequential was given beside its input: see Tape.Call.
type Sequential []Layer

func (s Sequential) Declare(d *Declaration) {
	for i, l := range s {
		if !declarePart(d, strconv.Itoa(i), l) {
			return
		}
	}
}

func (s Sequential) Forward(t *Tape, x Tensor) (Tensor, error) {
	var err error
	for i, l := range s {
		if x, err = callPart(t, strconv.Itoa(i), l, x); err != nil {
			return Tensor{}, err
		}
	}
	return x, nil
}

// Named is a layer with a name of its own, in place of its index in the layer that holds it.
type Named struct {
	Name  string
	Layer Layer
}

// As returns Named{name, l}.
func As(name string, l Layer) Named { return Named{Name: name, Layer: l} }

func (n Named) Declare(d *Declaration) { d.Layer(n.Name, n.Layer) }

func (n Named) Forward(t *Tape, x Tensor) (Tensor, error) {
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
	} else if !declarePart(d, "body", r.Body) {
		return
	}
	if r.Shortcut != nil && !declarePart(d, "shortcut", r.Shortcut) {
		return
	}
	if r.After != nil {
		declarePart(d, "after", r.After)
	}
}

func (r Residual) Forward(t *Tape, x Tensor) (Tensor, error) {
	var y Tensor
	var err error
	if body, ok := r.Body.(Sequential); ok {
		y, err = body.Forward(t, x)
	} else {
		y, err = callPart(t, "body", r.Body, x)
	}
	if err == nil && r.Shortcut != nil {
		x, err = callPart(t, "shortcut", r.Shortcut, x)
	}
	if err == nil {
		y, err = Add(t, y, x)
	}
	if err == nil && r.After != nil {
		y, err = callPart(t, "after", r.After, y)
	}
	return y, err
}

// Add records y + x for two tensors of the same shape.
func Add(t *Tape, y, x Tensor) (Tensor, error) {
	if !slices.Equal(y.Shape, x.Shape) {
		return Tensor{}, t.Errorf("adds %v and %v: the shapes must be equal", y.Shape, x.Shape)
	}
	return t.Op(Op{In: []Tensor{y, x}, Shape: y.Shape, PassGrad: true, Gather: !y.split || !x.split})
}

// Concat calls each branch with the same input and joins their outputs along
// a dimension.
type Concat struct {
	Branches []Layer
	Dim      int // 0 means 1, the channels
}

func (c Concat) Declare(d *Declaration) { Sequential(c.Branches).Declare(d) }

func (c Concat) Forward(t *Tape, x Tensor) (Tensor, error) {
	outputs := make([]Tensor, 0, len(c.Branches))
	for i, l := range c.Branches {
		y, err := callPart(t, strconv.Itoa(i), l, x)
		if err != nil {
			return Tensor{}, err
		}
		outputs = append(outputs, y)
	}
	return Cat(t, setting.Or(c.Dim, 1), outputs...)
}

// Cat records the concatenation of tensors along a dimension. Shapes that do not fit together are a
// *LayerError.
func Cat(t *Tape, dim int, xs ...Tensor) (Tensor, error) {
	if len(xs) == 0 || xs[0].Shape == nil {
		return Tensor{}, t.Errorf("concatenates no tensors")
	}
	shape := slices.Clone(xs[0].Shape)
	if dim < 0 || dim >= len(shape) {
		return Tensor{}, t.Errorf("concatenates along dimension %d of %v, which has %d", dim, shape, len(shape))
	}
	for _, x := range xs[1:] {
		if len(x.Shape) != len(shape) || !slices.Equal(x.Shape[:dim], shape[:dim]) || !slices.Equal(x.Shape[dim+1:], shape[dim+1:]) {
			return Tensor{}, t.Errorf("concatenates %v and %v along dimension %d: the others must be equal", xs[0].Shape, x.Shape, dim)
		}
		shape[dim] += x.Shape[dim]
	}
	return t.Op(Op{In: xs, Shape: shape, PassGrad: true})
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
		d.Errorf("N is %d: want 0 or more", r.N)
	}
	for i := range max(0, r.N) {
		if !d.Layer(strconv.Itoa(r.first+i), r.Layer) {
			return
		}
	}
}

func (r Repeat) Forward(t *Tape, x Tensor) (Tensor, error) {
	var err error
	for i := range max(0, r.N) {
		if x, err = t.Call(strconv.Itoa(r.first+i), r.Layer, x, t.beside...); err != nil {
			return Tensor{}, err
		}
	}
	return x, nil
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
		d.Errorf("Share was given no layer")
		return
	}
	d.Declare(inner)
}

func (s *Shared) Forward(t *Tape, x Tensor) (Tensor, error) {
	inner := Unwrap(s.layer)
	if IsNil(inner) {
		return Tensor{}, t.Errorf("Share was given no layer")
	}
	outer := t.shared
	if home, again := t.Homes[s]; again { // its parts were declared at its first place
		t.shared = &reuse{home: home, at: t.path}
	} else {
		t.Homes[s] = t.path
	}
	if t.Row >= 0 {
		t.Rows[t.Row].Owner = t.owner(t.path)
	}
	y, err := inner.Forward(t, x)
	t.shared = outer
	return y, err
}

// Skip adds the output of the layers to their input x. It takes no name of its own in the path.
func Skip(body ...Layer) Layer { return Inlined{Residual{Body: Sequential(body)}} }
