package tape

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Layer is a part of a model, like PyTorch's nn.Module. A layer is a plain value that holds only
// its settings. One value may stand at several places of a model: each place has parameters of its
// own, unless the layer comes from Share.
type Layer interface {
	// Forward records on t what the layer does with x, and returns its output. Input that does not
	// fit it reports with t.Failf; as in a test, that ends the forward pass.
	Forward(t *Tape, x Tensor) Tensor
}

// Declarer is a layer that has parameters, buffers or parts, or settings that can be wrong.
type Declarer interface {
	// Declare names the layer's parameters, buffers and parts. It is called once, before Forward,
	// and must not depend on an input.
	Declare(d *Declaration)
}

// Param is a parameter or a buffer as a layer declares it.
type Param struct {
	Name  string      // within its layer, such as "weight"
	Shape alloc.Shape // as PyTorch has it
	DType alloc.DType // the zero value is the model's type of weights

	// Buffer marks memory that belongs to the model and is not trained, such
	// as running means.
	Buffer bool
	// Tied is the full path of the parameter that this one is the same as, such as
	// "model.embed_tokens.weight". Both must have the same shape; the memory is counted where the
	// parameter is first declared. A path that begins with a dot is relative to the layer that
	// holds this one, and each further dot goes one layer up: the Tied of "lm_head" can be
	// ".model.embed_tokens.weight", so that the whole model may be part of another.
	Tied string
	// Split marks a parameter that tensor parallelism divides among devices.
	Split bool

	Expert bool // it has experts, which devices may share
	Apart  bool // its gradient appears at the operations that set Op.Apart
}

// MaxLayers bounds the number of layers, so that a mistyped Repeat is an error instead of using up
// the memory.
const MaxLayers = 1 << 18

// maxDepth bounds the nesting of layers.
const maxDepth = 64

// KindOf returns the kind that a layer's rows show: what its Kind method returns, or the name of
// its type.
func KindOf(l Layer) string {
	if k, ok := l.(interface{ Kind() string }); ok {
		return k.Kind()
	}
	t := reflect.TypeOf(l)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Name()
}

func IsNil(l Layer) bool {
	if l == nil {
		return true
	}
	v := reflect.ValueOf(l)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// Unwrap returns the layer inside of wrappers that only give it a name.
func Unwrap(l Layer) Layer {
	for range maxDepth {
		n, ok := l.(interface{ Inner() Layer })
		if !ok {
			break
		}
		l = n.Inner()
	}
	return l
}

// Wrong takes the place of a layer that cannot be made. Its text says why.
type Wrong string

// Kind returns "layer", since no layer could be made.
func (Wrong) Kind() string { return "layer" }

func (w Wrong) Declare(d *Declaration) { d.Failf("%s", string(w)) }

func (w Wrong) Forward(t *Tape, x Tensor) Tensor {
	t.Failf("%s", string(w))
	return x
}

// LayerError says which layer of a model is wrong, and how.
type LayerError struct {
	Path   string // such as "layer1.0.conv1"; empty for the model itself
	Layer  string // its type, such as "Conv2d"
	Reason string
	Err    error // the cause, if there is one
}

// Error names the layer by its path, and says what is wrong.
func (e *LayerError) Error() string {
	where := e.Path
	if where == "" {
		where = "the model"
	}
	text := fmt.Sprintf("estimate %s (%s)", where, e.Layer)
	if e.Reason != "" {
		text += ": " + e.Reason
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

// Unwrap returns the error beneath, if there is one.
func (e *LayerError) Unwrap() error { return e.Err }

// failure is the value with which a declaration or a forward pass panics when a layer is wrong, so
// that no layer need check the operations that it calls. Only caught recovers it.
type failure struct{ err error }

// caught runs f and returns the error with which it failed, or nil.
func caught(f func()) (err error) {
	defer func() {
		switch v := recover().(type) {
		case nil:
		case failure:
			err = v.err
		default:
			panic(v)
		}
	}()
	f()
	return nil
}

// Module is a layer made of named parts and a function that runs them, for models that Sequential,
// Residual and Concat cannot describe. Name each part once, with As, and call it by that name.
//
//	nn.Module{
//		Name:  "Attention",
//		Parts: nn.Sequential{nn.As("qkv", ...), nn.As("proj", ...)},
//		Run: func(f *nn.Flow, x nn.Tensor) nn.Tensor {
//			qkv := f.Call("qkv", x)
//			...
//			return f.Call("proj", y)
//		},
//	}
type Module struct {
	Name  string // what its rows show as the layer's kind; empty means "Module"
	Parts Sequential
	// Params are those of the layer itself, besides those of its parts.
	Params []Param
	Run    func(f *Flow, x Tensor) Tensor
}

// Kind returns what the layer's rows show as its kind.
func (m Module) Kind() string { return setting.Or(m.Name, "Module") }

func (m Module) Declare(d *Declaration) {
	if m.Run == nil {
		d.Failf("Run is nil: want a function")
	}
	for _, p := range m.Params {
		d.Add(p)
	}
	m.Parts.Declare(d)
}

func (m Module) Forward(t *Tape, x Tensor) Tensor { return m.Run(&Flow{t, m.Parts}, x) }

// Handle is a Flow as a program sees it: nn.Flow is defined by it, and so has none of the methods of a Tape but its own.
type Handle struct{ flow *Flow }

// Handle returns the handle of f.
func (f *Flow) Handle() *Handle { return &Handle{f} }

// Flow returns the Flow of h.
func (h *Handle) Flow() *Flow { return h.flow }

// Flow is a Tape that knows the parts of a Module. It is valid for one call of Run.
type Flow struct {
	*Tape
	Parts Sequential
}

// Call runs the part with this name; "blocks.3" is part 3 of the Sequential or Repeat named blocks.
// The part reads the tensors of beside with Beside; if none are given it reads those that the
// Module was given.
func (f *Flow) Call(name string, x Tensor, beside ...Tensor) Tensor {
	if len(beside) == 0 {
		beside = f.beside
	}
	l := partOf(f.Parts, name)
	if l == nil {
		f.Failf("it calls %q, which is none of its Parts: name them with As", name)
	}
	return f.Tape.Call(name, l, x, beside...)
}

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

// From returns the copies with names that begin at a number other than 0.
func (r Repeat) From(first int) Repeat {
	r.first = first
	return r
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

// Inline makes the parts of a layer parts of the Sequential, Residual, Concat or Module that holds
// it: the layer itself has neither a name nor a row. A transformer's block is an example: the
// residual sums have no name there, and norms and attention are parts of the block itself.
//
//	nn.Sequential{
//		nn.Inline(nn.Residual{Body: nn.Sequential{nn.As("norm1", ...), nn.As("attn", ...)}}),
//		nn.Inline(nn.Residual{Body: nn.Sequential{nn.As("norm2", ...), nn.As("mlp", ...)}}),
//	}
func Inline(l Layer) Layer { return Inlined{l} }

type Inlined struct{ Layer }

// Declare declares the parts of the layer.
func (in Inlined) Declare(d *Declaration) { d.Declare(in.Layer) }

// Inner returns the layer that is inlined.
func (in Inlined) Inner() Layer { return in.Layer }

// If returns l if the condition holds, and Identity if not.
func If(condition bool, l Layer) Layer {
	if condition {
		return l
	}
	return Identity{}
}

// declarePart declares a part under the given name, or under its own if it is Named.
func declarePart(d *Declaration, name string, l Layer) {
	switch part := l.(type) {
	case Inlined:
		if !IsNil(Unwrap(l)) {
			d.Declare(part.Layer)
			return
		}
	case Named:
		name = part.Name
	}
	d.Layer(name, l)
}

// callPart calls a part of a Sequential or a similar layer, with the tensors that this layer was
// given beside its input.
func callPart(t *Tape, name string, l Layer, x Tensor) Tensor {
	switch l.(type) {
	case Inlined, Named:
		return l.Forward(t, x)
	}
	return t.Call(name, l, x, t.beside...)
}

// partOf returns the part of a Sequential or a Repeat at a path, at any depth, or nil.
func partOf(l Layer, path string) Layer {
	switch l := Unwrap(l).(type) {
	case Sequential:
		for i, part := range l {
			if found := partAt(strconv.Itoa(i), part, path); found != nil {
				return found
			}
		}
	case Repeat:
		number, _, _ := strings.Cut(path, ".")
		if i, err := strconv.Atoi(number); err == nil && i >= l.first && i-l.first < l.N {
			return partAt(number, Unwrap(l.Layer), path)
		}
	}
	return nil
}

// partAt returns what is at a path if the path begins with part, or nil. The part has the given
// name, unless it is Named.
func partAt(name string, part Layer, path string) Layer {
	switch part := part.(type) {
	case Inlined:
		return partOf(part, path)
	case Named:
		name = part.Name
	}
	rest, ok := strings.CutPrefix(path, name)
	switch {
	case !ok:
		return nil
	case rest == "":
		return part
	case rest[0] == '.':
		return partOf(part, rest[1:])
	}
	return nil
}

// Identity returns its input.
type Identity struct{}

func (Identity) Forward(_ *Tape, x Tensor) Tensor { return x }
