package tape

import (
	"reflect"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
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

// Declaration collects what the layers of a model declare. It belongs to one call
// of Model, and keeps the first error.
type Declaration struct {
	memory  *Scratch
	Cfg     *setting.Config
	path    string
	depth   int
	Current int
	Modules []module
	params  []ownedParam
	index   map[string]int   // module of a path
	Shared  map[any]bool     // what several layers have together and one of them declared
	met     map[pattern]bool // which match a layer
	text    strings.Builder  // of paths, taken for many of them at a time
	Err     error
}

// pattern is one that an option names layers by.
type pattern struct{ option, text string }

type module struct {
	Path, Kind string
	Depth      int
	own        int   // parameters and buffers, its parts' not counted
	Params     int64 // elements of its parameters, its parts' not counted
	Frozen     bool  // its parameters are not trained
}

type ownedParam struct {
	Param
	elements int64
	module   int
	inside   bool // a matrix that is neither an embedding nor the head
}

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

// Tape is the record of one forward pass. Layers write on it; nothing is
// computed but shapes and sizes. It belongs to one call of Model and to the
// goroutine that runs it.
type Tape struct {
	Memory     *Scratch
	Cfg        *setting.Config
	Decl       *Declaration
	Inputs     []Tensor
	InputsRead int    // the first so many were asked for
	Out        Tensor // of the model
	Storages   []Storage
	Ops        []Recorded
	Refs       []int32 // storages that operations read and keep, one stretch after another
	Rows       []Row
	Called     []bool    // modules that have a row
	Next       int       // module that is expected to be called next
	Segments   []Segment // checkpointed stretches of ops
	Matched    []bool    // patterns of Checkpointed that match a layer
	Answer     []int32   // storages that the first loss reads, which the caller sees
	Total      alloc.Bytes

	slots     []filled
	lingering lingering
	shown     alloc.Shape // output of the layer being called, where it is not what Forward returns

	beside []Tensor // further tensors of the layer being called

	dims []int // memory of shapes, taken for many of them at a time

	path   string
	Row    int // of the layer being called
	depth  int
	inside bool             // of a checkpointed layer
	shared *reuse           // the innermost Shared being called again
	Homes  map[Layer]string // the path where each was called first
}

type Storage struct {
	Bytes   int64
	Last    int32 // the last operation that uses it
	LastRun int32 // the same in inference
	read    int32 // the last operation that reads it, where last may be a variable that holds it
	Alias   int32 // the storage that serves in inference, where the operation is the identity
	Part    bool  // of the alias, in which it lies: its bytes are those of its gradient
	Input   bool
	made    bool // by Const
	Own     bool // kept by an operation, never passed on
	Cached  bool // by autocast, until the forward pass is over
	Kept    bool
	Grad    bool
	Hidden  bool // kept by nobody but a checkpointed layer, which drops it
	Lingers bool // kept until the loop's code lets go of what the model returned
}

type Recorded struct {
	Row            int32
	In, Keep, End  int32 // refs[in:keep] are read, refs[keep:end] are kept
	Out            int32
	Parts          int32 // the storages from out on are so many parts of the input; 0 for none
	Workspace      int64
	Backward       int64 // workspace besides
	Kernels        int64 // workspace of the kernels that make the parameters' gradients, which the device alone shows
	Grad, PassGrad bool
	InPlace, View  bool
	TrainingOnly   bool
	params         bool // it reads parameters of its layer
	apart          bool // it reads those that are apart
	Promotes       bool // an input of a narrower type than the output gets a gradient of its own
}

// Segment is a checkpointed layer: the operations from begin up to end.
type Segment struct {
	Begin, End int32
	Inputs     []int32 // storages that it reads and did not make: these are kept
}

// reuse is a further call of a Shared layer: what lies below at was declared
// below home.
type reuse struct{ home, at string }

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
