// Package tape records one forward pass of a model: which operations the layers run, which storages
// these read, make and keep for the backward pass, and what the layers declare. It computes no
// tensor and knows no layer by name. Of the options it reads only those that concern every
// operation.
package tape

import (
	"fmt"
	"path"
	"slices"
	"strings"

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
	Units      []Unit    // of parameters that are gathered together; nil if none are
	UnitOf     []int32   // of each module
	Owned      []int64   // by how many devices the parameters of each module are shared, whatever the replicas divide
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
	Bytes    int64
	Last     int32 // the last operation that uses it
	LastRun  int32 // the last operation that uses it in inference
	read     int32 // the last operation that reads it; Last may be later, where a variable holds it
	Alias    int32 // the storage that it shares in inference, where the operation does nothing
	Part     bool  // it is part of the storage Alias; Bytes is the size of its gradient
	Input    bool
	made     bool // made by Const
	Own      bool // an operation made it for itself and passes it to no other
	Cached   bool // kept by autocast until the forward pass is over
	Retained bool
	Grad     bool
	Hidden   bool // kept only by a checkpointed layer, which drops it
	Lingers  bool // kept until the loop's code drops what the model returned
}

type Recorded struct {
	Row            int32
	In, Keep, End  int32 // Refs[In:Keep] are read, Refs[Keep:End] are kept
	Out            int32
	Parts          int32 // this many storages from Out on are parts of the input; 0 means none
	Workspace      int64
	Backward       int64 // workspace of the backward pass, besides Workspace
	Forward        int64 // workspace of the forward pass, besides Workspace
	Kernels        int64 // workspace of the kernels that make the parameters' gradients, seen on the device only
	Grad, PassGrad bool
	InPlace, View  bool
	TrainingOnly   bool
	Unreached      bool // the loss reads nothing that it makes, so that no backward pass goes through it
	Drops          bool // after it the model's code drops what it made and the loss does not read
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

// Unit is a group of layers whose parameters a device gathers together when they run, while it keeps a part of each
// otherwise: a block with a number, or what is outside of these. Sizes are in bytes.
type Unit struct {
	Begin, End int32   // its operations
	Params     []int64 // whole parameters, in the type in which the unit computes
	Gathered   int64   // the sum of these
	Cast       int64   // a device's part, in that type, if the parameters are kept in another
	Reduced    int64   // the trained parameters' gradients, in the type in which they are summed up
	Kept       int64   // the part of these that a device keeps
	Stays      bool    // its parameters are whole from its forward pass to its backward pass
	Number     int32   // its index on the tape
	Group      int32   // which gradients a device keeps of it, counted from 1 as in Gradient
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
	tape      *Tape
	storage   int32 // its index on the tape
	grad      bool  // the loss depends on a parameter through it
	split     bool  // each device of a tensor parallel group holds a part of it
	sequence  bool  // each of these devices holds a part of its tokens
	irregular bool  // its rows do not lie at equal steps in memory, as after Permute
}

// Storage returns the index of x's storage on its tape.
func (x Tensor) Storage() int32 { return x.storage }

// Irregular reports whether the rows of x do not lie at equal steps in memory, as after Permute.
func (x Tensor) Irregular() bool { return x.irregular }

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
	// Retained is the memory for the backward pass that this layer is the first to retain.
	Retained alloc.Bytes

	InPlace bool
	Module  int // index in the declaration; -1 if an earlier call has that row
	Owner   int // module whose parameters it reads: for a Shared layer, that of its first place
}

// Input returns the i-th input of the model, the first being the input of its first layer. It fails
// if there are fewer.
func (t *Tape) Input(i int) Tensor {
	if i < 0 || i >= len(t.Inputs) {
		t.Failf("the layer reads input %d, but the model was given %d: give more, with InputShape or Tokens", i, len(t.Inputs))
	}
	t.InputsRead = max(t.InputsRead, i+1)
	return t.Inputs[i]
}

// Const returns a tensor that depends on no input and needs no gradient, such as a mask or a table
// of positions. A zero type means the type of the model's activations. It fails for a shape that is
// not valid, or too large.
func (t *Tape) Const(d alloc.DType, dims ...int) Tensor {
	d = setting.Or(d, t.Activation())
	shape := alloc.Shape(slices.Clone(dims))
	if shape == nil {
		shape = alloc.Shape{}
	}
	bytes := t.bytes(shape, d, false)
	at := int32(len(t.Ops))
	id := t.NewStorage(Storage{Bytes: bytes, Last: at, LastRun: at, Alias: -1, made: true})
	return Tensor{Shape: shape, DType: d, Ref: Ref{tape: t, storage: id}}
}

// AddInput gives the model one more input, whose memory is counted as given.
func (t *Tape) AddInput(shape alloc.Shape, d alloc.DType, bytes alloc.Bytes) {
	t.Total += bytes
	id := t.NewStorage(Storage{Bytes: int64(bytes), Alias: -1, Input: true})
	t.Inputs = append(t.Inputs, Tensor{Shape: shape, DType: d, Ref: Ref{tape: t, storage: id}})
}

// Activation returns the element type of the model's activations.
func (t *Tape) Activation() alloc.DType { return t.Cfg.Activations }

// On returns the backend whose kernels are modelled.
func (t *Tape) On() setting.Backend { return t.Cfg.Backend }

// Resized returns the shape with its last dimensions replaced.
func (t *Tape) Resized(shape alloc.Shape, last ...int) alloc.Shape {
	y := t.clone(shape)
	copy(y[max(0, len(y)-len(last)):], last)
	return y
}

// clone copies a shape, which the report may keep.
func (t *Tape) clone(shape alloc.Shape) alloc.Shape {
	if cap(t.dims)-len(t.dims) < len(shape) {
		t.dims = make([]int, 0, max(512, len(shape)))
	}
	begin := len(t.dims)
	t.dims = append(t.dims, shape...)
	return t.dims[begin:len(t.dims):len(t.dims)]
}

// Record runs the layer that is the whole model, and returns its output. The error is the
// *LayerError with which a layer failed.
func (t *Tape) Record(root Layer, x Tensor) (y Tensor, err error) {
	err = caught(func() { y = root.Forward(t, x) })
	return y, err
}

// Failf ends the forward pass with an error that names the current layer.
func (t *Tape) Failf(format string, args ...any) { t.fail(fmt.Sprintf(format, args...), nil) }

// fail ends the forward pass with an error of the current layer.
func (t *Tape) fail(reason string, err error) {
	panic(failure{&LayerError{Path: t.path, Layer: t.kind(), Reason: reason, Err: err}})
}

func (t *Tape) kind() string {
	if t.Row >= 0 && t.Row < len(t.Rows) {
		return t.Rows[t.Row].Kind
	}
	return t.Cfg.Name
}

// moduleOf returns the module whose parameters operation i reads, or -1.
func (t *Tape) moduleOf(i int) int {
	row := t.Ops[i].Row
	if row < 0 {
		return 0
	}
	return t.Rows[row].Owner
}

func (t *Tape) NewStorage(s Storage) int32 {
	t.Storages = append(t.Storages, s)
	return int32(len(t.Storages) - 1)
}

// use notes that the operation reads x.
func (t *Tape) use(x Tensor, at int32, trainingOnly bool) {
	s := &t.Storages[x.storage]
	s.Last = max(s.Last, at)
	for w := s; w.Part; {
		w = &t.Storages[w.Alias]
		w.Last, w.read = max(w.Last, at), max(w.read, at)
	}
	for !trainingOnly {
		s.LastRun = max(s.LastRun, at)
		if s.Alias < 0 {
			break
		}
		s = &t.Storages[s.Alias]
	}
}

// Hold keeps tensors alive up to the last operation so far, as if a variable of the layer's code
// held them.
func (t *Tape) Hold(xs ...Tensor) {
	n := int32(len(t.Ops))
	for _, x := range xs {
		if n > 0 && x.tape == t {
			t.use(x, n-1, false)
		}
	}
}

// bytes returns the size of a tensor on one device.
func (t *Tape) bytes(shape alloc.Shape, d alloc.DType, split bool) int64 {
	b, err := shape.Bytes(d)
	if err != nil {
		t.fail("", err)
	}
	if split {
		b = (b + alloc.Bytes(t.Cfg.Sharding.Tensor) - 1) / alloc.Bytes(t.Cfg.Sharding.Tensor)
	}
	if t.Total += b; b > setting.MaxTotal || t.Total > setting.MaxTotal {
		t.Failf("the tensors of the model take more than %v", alloc.Bytes(setting.MaxTotal))
	}
	return int64(b)
}

// Slot is a place on a tape where layers of one kind leave things for each other while they record,
// such as rotary tables, or keys and values that later layers borrow. The package of these layers
// declares the slot as a variable; each tape has its own value there, at first the zero value. In
// this way the tape needs to know no layer.
type Slot[T any] struct {
	_ byte // a byte, so that no two slots have one address
}

// Of returns the tape's value of the slot, to read and to change.
func (s *Slot[T]) Of(t *Tape) *T {
	for i := range t.slots {
		if t.slots[i].slot == any(s) {
			return t.slots[i].value.(*T)
		}
	}
	v := new(T)
	t.slots = append(t.slots, filled{s, v})
	return v
}

// lasting is a slot's value that holds tensors alive until the forward pass is over.
type lasting interface{ Lasting() []Tensor }

// Size returns the memory of x on one device, or 0 if it is not valid.
func (t *Tape) Size(x Tensor) alloc.Bytes {
	bytes, err := x.Shape.Bytes(x.DType)
	if err != nil || bytes > setting.MaxTotal {
		return 0 // the operation reports the error
	}
	if x.split || x.sequence {
		bytes = alloc.Bytes(setting.Part(int64(bytes), t.Cfg.Sharding.Tensor))
	}
	return bytes
}

// Whole returns the size of a weight in an element type, on one device.
func (t *Tape) Whole(shape alloc.Shape, d alloc.DType) alloc.Bytes {
	n, err := shape.Bytes(d)
	if err != nil {
		return 0 // the declaration has already reported it
	}
	return min(n/alloc.Bytes(t.Cfg.Sharding.Tensor), setting.MaxTotal)
}

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

// Inside reports whether the current layer is in a checkpointed one.
func (t *Tape) Inside() bool { return t.inside }

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
	begin, first := int32(len(t.Ops)), int32(len(t.Storages))
	t.inside, t.products = true, 0
	y := l.Forward(t, x)
	t.inside = false
	t.keptInside()
	if end := int32(len(t.Ops)); t.backward(begin, end) {
		t.Segments = append(t.Segments, t.segment(begin, end, first))
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
// closure the others. Constants that the layer itself makes, storages from first on, are no inputs: the second run makes
// them anew. Those that the model makes before its layers are recorded in the first layer that reads them, and are inputs.
func (t *Tape) segment(begin, end, first int32) Segment {
	s := Segment{Begin: begin, End: end}
	made := make(map[int32]bool)
	for id := first; id < int32(len(t.Storages)); id++ {
		if t.Storages[id].made && t.Storages[id].Last < end && !t.lasts(id) {
			made[id] = true
		}
	}
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
		if !held.made && (!held.Retained || held.Hidden) {
			held.Retained, held.Hidden = true, false
			if t.Row >= 0 {
				t.Rows[t.Row].Retained += alloc.Bytes(held.Bytes)
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
