// Package tape records one forward pass of a model: the operations that its layers run, the storages that
// these read, make and keep for the backward pass, and what the layers declare. It computes no
// tensor, knows no layer by name, and reads of the options only what bears on every operation.
package tape

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

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

	path     string
	Row      int // of the layer being called
	depth    int
	inside   bool             // of a checkpointed layer
	products int              // without a bias, in that layer so far
	shared   *reuse           // the innermost Shared being called again
	Homes    map[Layer]string // the path where each was called first
}

// filled is a slot's value on a tape.
type filled struct{ slot, value any }

// lingering is what the code around the model may keep alive besides, as storages unless it says bytes.
type lingering struct {
	inputs       []int32 // that products of quantized weights may keep
	inputsInside []int32 // those of the checkpointed layer that is being called
	mostInside   int64   // the most bytes that one checkpointed layer may so keep besides
	keys         []int32 // keys and values that the model may return
	passed       []int32 // those of checkpointed layers, which live until the forward pass is over
	copies       int64   // bytes of keys in float32 that it may return
}

type Storage struct {
	Bytes   int64
	Last    int32 // the last operation that uses it
	LastRun int32 // the same in inference
	read    int32 // the last operation that reads it, where last may be a variable that holds it
	Alias   int32 // the storage that serves in inference, where the operation is the identity
	Part    bool  // it is a part of the storage of Alias; Bytes is what its gradient takes
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
	saved          bool // a checkpointed layer keeps what it returns
	params         bool // it reads parameters of its layer
	apart          bool // it reads those that are apart
	Promotes       bool // an input of a narrower type than the output gets a gradient of its own
}

// Segment is a checkpointed layer: the operations from begin up to end.
type Segment struct {
	Begin, End int32
	Inputs     []int32 // storages that it reads and did not make: these are kept
	Saved      []int32 // those that it made and keeps until it has run again
}

// reuse is a further call of a Shared layer: what lies below at was declared
// below home.
type reuse struct{ home, at string }

// Tensor is an activation that the layers pass on: a shape and an element
// type over a storage, which views of a tensor and operations in place share.
// Tensors come from the Tape and are good for that one only; the zero Tensor is none.
type Tensor struct {
	Shape alloc.Shape
	DType alloc.DType

	Tape    *Tape
	Storage int32 // index on the tape
	Grad    bool  // the loss depends on a parameter through it
	split   bool  // each device of a tensor parallel group holds a part
	Strewn  bool  // its rows do not lie one after another, as after Permute
}

// NeedsGrad reports whether the backward pass computes a gradient of x, which
// decides what many operations keep.
func (x Tensor) NeedsGrad() bool { return x.Grad }

// Dim is the length of a dimension, counted from the end where it is negative, and 1 where there is
// none, as after an error.
func (x Tensor) Dim(i int) int {
	if i < 0 {
		i += len(x.Shape)
	}
	if i < 0 || i >= len(x.Shape) {
		return 1
	}
	return x.Shape[i]
}

// Row is one call of a layer: what estimate.Row says of it, and more.
type Row struct {
	Path   string
	Kind   string
	Depth  int  // 1 for the layers of the list
	Leaf   bool // it has no parts
	Input  alloc.Shape
	Output alloc.Shape
	Params int64 // its own, not its parts'
	FLOPs  int64 // its own
	// Allocated is what a forward pass in training takes from the layer's
	// beginning to its end, its parts' included, freed meanwhile or not:
	// outputs that have memory of their own and what operations keep, but no
	// workspace. sections.Row.Allocated is that, measured.
	Allocated alloc.Bytes
	// Kept is the memory that the layer is the first to keep for the backward
	// pass.
	Kept alloc.Bytes

	InPlace bool
	Module  int // of the declaration; -1 where it had a row before
	Owner   int // module whose parameters it reads: another's where it is Shared
}
