package tape

import (
	"fmt"
	"reflect"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Layer is a part of a model, as nn.Module is in PyTorch. Layers are plain values that hold
// their settings and nothing else: one layer may stand at several places of a model, and then
// has parameters of its own at each of them, unless Share says otherwise.
type Layer interface {
	// Forward records on t what the layer does with x, and returns its output.
	// It returns the errors that t gives it, and reports what does not fit
	// with t.Errorf; it must not panic, whatever shape x has.
	Forward(t *Tape, x Tensor) (Tensor, error)
}

// Declarer is a layer that has parameters, buffers or parts, or settings that can be wrong.
type Declarer interface {
	// Declare names the parameters, buffers and parts of the layer. It is
	// called once, before Forward, and must not depend on an input.
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
	// Tied is the path from the model's root of the parameter that this one
	// is: "model.embed_tokens.weight". One that begins with a dot is relative to the
	// layer that holds this one, as ".model.embed_tokens.weight" of "lm_head" is, so that
	// the whole may be a part of another model; each further dot is a layer up. Both must
	// have the same shape. It is counted where it is first declared.
	Tied string
	// Split marks a parameter that tensor parallelism divides among devices.
	Split bool

	Apart bool // its gradient appears at the operations that are apart
}

// MaxLayers bounds a model, so that a mistyped Repeat is an error and not the
// end of the program's memory.
const MaxLayers = 1 << 18

// maxDepth bounds the nesting of layers.
const maxDepth = 64

// KindOf is the name that a layer's rows carry: its type's, or what its Kind
// method says.
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

// Unwrap takes the name off a layer that is given one elsewhere.
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
