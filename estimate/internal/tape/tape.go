// Package tape records one forward pass of a model: which operations the layers run, which storages
// these read, make and keep for the backward pass, and what the layers declare. It computes no
// tensor and knows no layer by name. Of the options it reads only those that concern every
// operation.
package tape

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Tape is the record of one forward pass. Layers write on it; only shapes and sizes are computed. A
// Tape serves one call of Model and is used by one goroutine.
type Tape struct {
	Memory     *Scratch
	Cfg        *setting.Config
	Decl       *Declaration
	Inputs     []Tensor
	InputsRead int    // how many of the inputs, from the first, a layer has asked for
	Out        Tensor // the model's output
	Storages   []Storage
	Ops        []Recorded
	Refs       []int32 // storages that operations read and keep: each operation has a range of it
	Rows       []Row
	Called     []bool    // modules that have a row
	Next       int       // the module that is expected to be called next
	Segments   []Segment // ranges of operations of checkpointed layers
	Matched    []bool    // the patterns of Checkpointed that match a layer
	Answer     []int32   // storages that the first loss reads and that the caller sees
	Total      alloc.Bytes

	slots     []filled
	lingering lingering
	shown     alloc.Shape // output shape of the current layer for its row, if Forward returns another

	beside []Tensor // tensors that the current layer was given beside its input

	dims []int // memory for shapes, taken for many at a time

	path     string
	Row      int // of the current layer
	depth    int
	inside   bool             // the current layer is in a checkpointed one
	products int              // products without a bias in that layer so far
	shared   *reuse           // the innermost Shared layer that is called again now, or nil
	Homes    map[Layer]string // the path of the first call of each
}

// filled is a slot with its value on a tape.
type filled struct{ slot, value any }

// lingering lists storages that the code around the model may keep alive in addition. Some fields
// are bytes.
type lingering struct {
	inputs       []int32 // inputs that products with quantized weights may keep
	inputsInside []int32 // such inputs in the current checkpointed layer
	mostInside   int64   // the most bytes of such inputs in one checkpointed layer
	keys         []int32 // keys and values that the model may return
	passed       []int32 // what checkpointed layers return, which lives until the forward pass is over
	copies       int64   // bytes of keys in float32 that the model may return
}

type Storage struct {
	Bytes   int64
	Last    int32 // the last operation that uses it
	LastRun int32 // the last operation that uses it in inference
	read    int32 // the last operation that reads it; Last may be later, where a variable holds it
	Alias   int32 // the storage that it shares in inference, where the operation does nothing
	Part    bool  // it is part of the storage Alias; Bytes is the size of its gradient
	Input   bool
	made    bool // made by Const
	Own     bool // an operation made it for itself and passes it to no other
	Cached  bool // kept by autocast until the forward pass is over
	Kept    bool
	Grad    bool
	Hidden  bool // kept only by a checkpointed layer, which drops it
	Lingers bool // kept until the loop's code drops what the model returned
}

type Recorded struct {
	Row            int32
	In, Keep, End  int32 // Refs[In:Keep] are read, Refs[Keep:End] are kept
	Out            int32
	Parts          int32 // this many storages from Out on are parts of the input; 0 means none
	Workspace      int64
	Backward       int64 // workspace of the backward pass
	Kernels        int64 // workspace of the kernels that make the parameters' gradients, seen on the device only
	Grad, PassGrad bool
	InPlace, View  bool
	TrainingOnly   bool
	saved          bool // a checkpointed layer keeps its output
	params         bool // it reads parameters of its layer
	apart          bool // it reads parameters that are marked Apart
	Promotes       bool // an input whose type is narrower than the output's gets a gradient of its own
}

// Segment is a checkpointed layer: the operations from Begin up to End.
type Segment struct {
	Begin, End int32
	Inputs     []int32 // storages that it reads but did not make: these are kept
	Saved      []int32 // storages that it made and keeps until it has run again
}

// reuse is a repeated call of a Shared layer, at the path at; its parts were declared under the
// path home.
type reuse struct{ home, at string }

// Tensor is an activation that layers pass on: a shape and an element type over a storage. Views
// and operations in place share one storage. A Tensor comes from a Tape and is valid for that one
// only; the zero Tensor is none.
type Tensor struct {
	Shape alloc.Shape
	DType alloc.DType
	Ref
}

// Ref is what a tape knows of a Tensor. It is a type of its own so that nn.Tensor has the fields of Tensor, and a
// conversion between the two copies nothing.
type Ref struct {
	tape    *Tape
	storage int32 // its index on the tape
	grad    bool  // the loss depends on a parameter through it
	split   bool  // each device of a tensor parallel group holds a part of it
	strewn  bool  // its rows do not lie at equal steps in memory, as after Permute
}

// Storage returns the index of x's storage on its tape.
func (x Tensor) Storage() int32 { return x.storage }

// Strewn reports whether the rows of x do not lie at equal steps in memory, as after Permute.
func (x Tensor) Strewn() bool { return x.strewn }

// NeedsGrad reports whether the backward pass computes a gradient of x. Many operations keep more
// if it does.
func (x Tensor) NeedsGrad() bool { return x.grad }

// Dim returns the length of dimension i. A negative i counts from the last dimension; a dimension
// that does not exist, as after an error, has length 1.
func (x Tensor) Dim(i int) int {
	if i < 0 {
		i += len(x.Shape)
	}
	if i < 0 || i >= len(x.Shape) {
		return 1
	}
	return x.Shape[i]
}

// Row is one call of a layer: estimate.Row and a few more fields.
type Row struct {
	Path   string
	Kind   string
	Depth  int  // 1 for the layers of the model's list
	Leaf   bool // it has no parts
	Input  alloc.Shape
	Output alloc.Shape
	Params int64 // without those of its parts
	FLOPs  int64 // without those of its parts
	// Allocated is the sum of all allocations from the beginning of the layer to its end in a
	// forward pass of training, its parts included, whether freed meanwhile or not: outputs with
	// memory of their own and what operations keep, but no workspace. It can be compared with the
	// measured sections.Row.Allocated.
	Allocated alloc.Bytes
	// Kept is the memory for the backward pass that this layer is the first to keep.
	Kept alloc.Bytes

	InPlace bool
	Module  int // index in the declaration; -1 if an earlier call has that row
	Owner   int // module whose parameters it reads: for a Shared layer, that of its first place
}
