package estimate

import (
	"fmt"
	"reflect"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Layer is a part of a model, as nn.Module is in PyTorch. Layers are plain
// values that hold their settings and nothing else: one layer may stand at
// several places of a model, and then has parameters of its own at each of
// them, unless Share says otherwise.
//
// A type of your own becomes a layer with two methods, which correspond to
// __init__ and forward of a module.
type Layer interface {
	// Declare names the parameters, buffers and parts of the layer. It is
	// called once, before Forward, and must not depend on an input.
	Declare(d *Declaration)
	// Forward records on t what the layer does with x, and returns its output.
	// It returns the errors that t gives it, and reports what does not fit
	// with t.Errorf; it must not panic, whatever shape x has.
	Forward(t *Tape, x Tensor) (Tensor, error)
}

// Param is a parameter or a buffer as a layer declares it.
type Param struct {
	Name  string      // within its layer, such as "weight"
	Shape alloc.Shape // as PyTorch has it
	DType alloc.DType // the zero value is the model's type of weights

	// Buffer marks memory that belongs to the model and is not trained, such
	// as running means.
	Buffer bool
	// Tied is the path from the model's root of the parameter that this one
	// is: "model.embed_tokens.weight". Both must have the same shape. It is
	// counted where it is first declared.
	Tied string
	// Split marks a parameter that tensor parallelism divides among devices.
	Split bool
}

// maxLayers bounds a model, so that a mistyped Repeat is an error and not the
// end of the program's memory.
const maxLayers = 1 << 18

// maxDepth bounds the nesting of layers.
const maxDepth = 64

// Declaration collects what the layers of a model declare.
type Declaration struct {
	path    string
	depth   int
	current int
	modules []module
	params  []ownedParam
	index   map[string]int // module of a path
	shared  map[*Shared]bool
	text    strings.Builder // of paths, taken for many of them at a time
	err     error
}

type module struct {
	path, kind string
	depth      int
	own        int   // parameters and buffers, its parts' not counted
	params     int64 // elements of its trained parameters, its parts' not counted
}

type ownedParam struct {
	Param
	elements int64
	module   int
}

func newDeclaration(memory *scratch) *Declaration {
	return &Declaration{
		modules: memory.modules[:0], params: memory.params[:0], index: memory.index, shared: make(map[*Shared]bool),
	}
}

// run lets the model declare itself.
func (d *Declaration) run(root Layer, name string) error {
	d.modules = append(d.modules, module{kind: name})
	d.index[""] = 0
	root.Declare(d)
	if d.err == nil {
		d.err = d.checkTies()
	}
	return d.err
}

// Layer declares a part under a name, with all that it declares itself. It
// reports whether there is any sense in going on: a layer that declares many
// parts in a loop should leave it when the answer is no.
func (d *Declaration) Layer(name string, l Layer) bool {
	if d.err != nil {
		return false
	}
	l = unwrap(l)
	path := d.join(d.path, name)
	switch {
	case isNil(l):
		d.err = &LayerError{Path: path, Layer: "nil", Reason: "there is no layer here: give one, or take the entry out"}
	case len(d.modules) >= maxLayers:
		d.err = &LayerError{Path: path, Layer: kindOf(l), Reason: fmt.Sprintf("the model has more than %d layers", maxLayers)}
	case d.depth >= maxDepth:
		d.err = &LayerError{Path: path, Layer: kindOf(l), Reason: fmt.Sprintf("layers are nested more than %d deep", maxDepth)}
	}
	if d.err != nil {
		return false
	}
	outer, current := d.path, d.current
	d.path, d.depth = path, d.depth+1
	if at, seen := d.index[path]; seen {
		d.current = at // the same module called again, as torchvision does with relu
		if d.modules[at].own > 0 {
			d.err = &LayerError{Path: path, Layer: kindOf(l), Reason: "two layers with parameters have this name: name them apart, or Share one"}
			return false
		}
	} else {
		d.current = len(d.modules)
		d.index[path] = d.current
		d.modules = append(d.modules, module{path: path, kind: kindOf(l), depth: d.depth})
	}
	l.Declare(d)
	d.path, d.depth, d.current = outer, d.depth-1, current
	return d.err == nil
}

// Param declares a parameter of the layer that is being declared.
func (d *Declaration) Param(name string, dims ...int) {
	d.Add(Param{Name: name, Shape: dims})
}

// Buffer declares a buffer of the model's type of weights.
func (d *Declaration) Buffer(name string, dims ...int) {
	d.Add(Param{Name: name, Shape: dims, Buffer: true})
}

// Add declares a parameter or a buffer with all that Param can say.
func (d *Declaration) Add(p Param) {
	if d.err != nil {
		return
	}
	n, err := p.Shape.Elements()
	if err == nil && p.DType != 0 {
		_, err = p.Shape.Bytes(p.DType)
	}
	if err != nil {
		m := d.modules[d.current]
		d.err = &LayerError{Path: m.path, Layer: m.kind, Reason: "parameter " + p.Name, Err: err}
		return
	}
	d.params = append(d.params, ownedParam{Param: p, elements: n, module: d.current})
	m := &d.modules[d.current]
	m.own++
	if !p.Buffer && p.Tied == "" {
		m.params = addSat(m.params, n)
	}
}

// Errorf ends the declaration with an error that names the current layer.
func (d *Declaration) Errorf(format string, args ...any) {
	if d.err == nil {
		m := d.modules[d.current]
		d.err = &LayerError{Path: m.path, Layer: m.kind, Reason: fmt.Sprintf(format, args...)}
	}
}

func (d *Declaration) checkTies() error {
	for _, p := range d.params {
		if p.Tied == "" {
			continue
		}
		m := d.modules[p.module]
		owner := d.ownerOf(p.Tied)
		if owner == nil {
			return &LayerError{Path: m.path, Layer: m.kind, Reason: fmt.Sprintf("parameter %s is tied to %q, which the model does not have", p.Name, p.Tied)}
		}
		if !owner.Shape.Equal(p.Shape) {
			return &LayerError{Path: m.path, Layer: m.kind, Reason: fmt.Sprintf("parameter %s has shape %v, but %q, to which it is tied, has %v", p.Name, p.Shape, p.Tied, owner.Shape)}
		}
	}
	return nil
}

// ownerOf is the parameter of a path, or nil.
func (d *Declaration) ownerOf(path string) *ownedParam {
	at := strings.LastIndexByte(path, '.')
	module, ok := d.index[path[:max(0, at)]]
	if !ok {
		return nil
	}
	for i := range d.params {
		if p := &d.params[i]; p.module == module && p.Name == path[at+1:] && p.Tied == "" {
			return p
		}
	}
	return nil
}

// LayerError says which layer of a model is wrong, and how.
type LayerError struct {
	Path   string // such as "layer1.0.conv1"; empty for the model itself
	Layer  string // its type, such as "Conv2d"
	Reason string
	Err    error // the cause, if there is one
}

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

func (e *LayerError) Unwrap() error { return e.Err }

func join(path, name string) string {
	if path == "" {
		return name
	}
	if name == "" {
		return path
	}
	return path + "." + name
}

// join is join without an allocation for each path: most of them are long and alike.
func (d *Declaration) join(path, name string) string {
	if path == "" || name == "" {
		return join(path, name)
	}
	if n := len(path) + 1 + len(name); d.text.Cap()-d.text.Len() < n {
		d.text = strings.Builder{}
		d.text.Grow(max(4096, n))
	}
	begin := d.text.Len()
	d.text.WriteString(path)
	d.text.WriteByte('.')
	d.text.WriteString(name)
	return d.text.String()[begin:]
}

// kindOf is the name that a layer's rows carry: its type's, or what its Kind
// method says.
func kindOf(l Layer) string {
	if k, ok := l.(interface{ Kind() string }); ok {
		return k.Kind()
	}
	t := reflect.TypeOf(l)
	if t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	return t.Name()
}

func isNil(l Layer) bool {
	if l == nil {
		return true
	}
	v := reflect.ValueOf(l)
	return v.Kind() == reflect.Pointer && v.IsNil()
}
