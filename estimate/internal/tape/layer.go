package tape

import (
	"fmt"
	"reflect"

	"github.com/gpumemtrack/gpumemtrack/alloc"
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

	Apart bool // its gradient appears at the operations that set Op.Apart
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
