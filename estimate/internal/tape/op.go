package tape

import (
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Aten says which operation of PyTorch's dispatcher this is, if it is one that selective
// checkpointing can name.
type Aten uint8

const (
	OtherAten Aten = iota
	MM             // aten.mm
	AddMM          // aten.addmm: with a bias
	Attention      // aten._scaled_dot_product_*: an attention kernel
)

// saves reports whether a checkpointed layer keeps the output of such an operation.
func (t *Tape) saves(a Aten) bool {
	switch {
	case !t.inside || a == OtherAten || t.Cfg.Saves == "":
		return false
	case a == MM && t.Cfg.Saves == setting.SaveHalf:
		t.products++
		return t.products%2 == 1
	}
	return a != AddMM || t.Cfg.Saves == setting.SaveProducts
}

// Own describes a tensor that an operation makes and keeps for its own backward pass.
type Own struct {
	Shape alloc.Shape
	DType alloc.DType // the zero value means the type of the operation's output
}

// Op is one operation as autograd sees it.
type Op struct {
	In    []Tensor    // what it reads, at least one tensor
	Shape alloc.Shape // of its output; Op copies it
	DType alloc.DType // of its output; the zero value means that of In[0]

	// Params says that the operation reads parameters of the layer. Its output then needs a
	// gradient, whether or not an input does.
	Params bool

	Keep       []Tensor // tensors retained for the backward pass
	KeepOutput bool     // the output is retained too
	KeepOwn    []Own    // indices, masks and statistics retained

	InPlace      bool // the output overwrites In[0]
	View         bool // the output is In[0] in another shape, in the same memory
	PassGrad     bool // the output's gradient serves as the gradient of each input, as in an addition
	TrainingOnly bool // in inference it does nothing, like dropout
	Gather       bool // the output is whole, although tensor parallelism splits an input
	Split        bool // tensor parallelism splits the output
	Whole        bool // the output has the tokens of all devices, although sequence parallelism divides those of an input
	Scatter      bool // with sequence parallelism, each device keeps its part of the output's tokens

	FLOPs     int64       // a multiplication with an addition counts as two
	Workspace alloc.Bytes // memory needed while the operation runs
	// BackwardWorkspace is the memory needed while the backward pass of the operation runs, besides
	// Workspace and the gradients of its output and inputs. ForwardWorkspace is that of the forward pass alone, such as
	// of a loss that computes gradients early, which are then those of its inputs.
	BackwardWorkspace, ForwardWorkspace alloc.Bytes

	As Aten // which operation selective checkpointing takes it for

	Kernels alloc.Bytes // workspace of the kernels that make the parameters' gradients
	Apart   bool        // it reads the parameters that are marked Apart
	cached  bool        // KeepOwn lives until the forward pass is over, even if no operation keeps it
}

// Op records an operation of the current layer and returns its output. It fails if the operation is
// not valid.
func (t *Tape) Op(o Op) Tensor {
	t.own(&o)
	if len(t.Ops) >= math.MaxInt32/16 {
		t.Failf("the model has too many operations")
	}
	o.Params = o.Params && t.Learns()
	promotes := false
	y := Tensor{Shape: t.clone(o.Shape), DType: o.DType, Ref: Ref{tape: t, grad: o.Params, split: o.Split}}
	if y.DType == 0 {
		y.DType = o.In[0].DType
		if t.Cfg.Autocast != 0 && !o.View && !o.InPlace {
			y.DType = Widest(o.In)
			promotes = true
		}
	}
	for _, x := range o.In {
		y.grad = y.grad || x.grad
		y.split = y.split || x.split && !o.Gather
	}
	y.sequence = o.divided(t.Cfg, y)
	at := int32(len(t.Ops))
	rec := Recorded{
		Row: int32(t.Row), Grad: y.grad, PassGrad: o.PassGrad || o.View, Promotes: promotes, InPlace: o.InPlace, View: o.View,
		TrainingOnly: o.TrainingOnly, saved: t.saves(o.As), params: o.Params, apart: o.Apart, Workspace: int64(max(0, o.Workspace)), Backward: int64(max(0, o.BackwardWorkspace)), Forward: int64(max(0, o.ForwardWorkspace)), Kernels: int64(o.Kernels),
	}
	t.output(&y, &o, at)
	rec.Out = y.storage
	rec.In = int32(len(t.Refs))
	for _, x := range o.In {
		t.use(x, at, o.TrainingOnly)
		t.Storages[x.storage].read = at
		t.Refs = append(t.Refs, x.storage)
	}
	rec.Keep = int32(len(t.Refs))
	if y.grad {
		t.keep(&o, y, at)
	}
	rec.End = int32(len(t.Refs))
	t.Ops = append(t.Ops, rec)
	if t.Row >= 0 {
		r := &t.Rows[t.Row]
		r.FLOPs = setting.AddSat(r.FLOPs, max(0, o.FLOPs))
		r.InPlace = o.InPlace
	}
	return y
}

// divided reports whether each device holds only its part of the tokens of the output y of an operation.
func (o *Op) divided(c *setting.Config, y Tensor) bool {
	switch {
	case c.Sharding.Sequence == "" || y.split || o.Whole:
		return false
	case o.Scatter || o.Params:
		return true
	}
	return slices.ContainsFunc(o.In, func(x Tensor) bool { return x.sequence || x.split && o.Gather })
}

// own fails if the operation uses a tensor of another tape.
func (t *Tape) own(o *Op) {
	if len(o.In) == 0 {
		t.Failf("an operation needs a tensor to read")
	}
	for _, x := range o.In {
		if x.tape != t {
			t.foreign("reads", x)
		}
	}
	for _, x := range o.Keep {
		if x.tape != t {
			t.foreign("keeps", x)
		}
	}
}

// foreign fails for an operation that uses a tensor of another tape; does is the verb.
func (t *Tape) foreign(does string, x Tensor) {
	t.Failf("an operation %s a tensor %s that is not of this model", does, x.Shape.String())
}

// output sets the storage of the output y: a new one, or the input's.
func (t *Tape) output(y *Tensor, o *Op, at int32) {
	n, err := y.Shape.Elements()
	if err != nil {
		t.fail("output", err)
	}
	if n == 0 {
		t.Failf("the output %s is empty: input %s is too small", y.Shape.String(), o.In[0].Shape.String())
	}
	if o.View || o.InPlace {
		y.storage = o.In[0].storage
		y.split = o.In[0].split && !o.Gather
		y.sequence = o.In[0].sequence
		t.Storages[y.storage].Grad = t.Storages[y.storage].Grad || y.grad
		return
	}
	bytes := t.bytes(y.Shape, y.DType, y.split || y.sequence)
	y.storage = t.NewStorage(Storage{Bytes: bytes, Last: at, LastRun: at, Alias: -1})
	if o.TrainingOnly {
		t.Storages[y.storage].Alias = o.In[0].storage
	}
	t.Storages[y.storage].Grad = y.grad
}

// keep notes what the operation keeps for the backward pass.
func (t *Tape) keep(o *Op, y Tensor, at int32) {
	for _, x := range o.Keep {
		t.keepStorage(x.storage)
	}
	if o.KeepOutput {
		t.keepStorage(y.storage)
	}
	for _, own := range o.KeepOwn {
		bytes := t.bytes(own.Shape, setting.Or(own.DType, y.DType), y.split || y.sequence)
		t.keepStorage(t.NewStorage(Storage{Bytes: bytes, Last: at, LastRun: at, Alias: -1, Own: true, Cached: o.cached}))
	}
}

func (t *Tape) keepStorage(id int32) {
	id = t.Home(id)
	t.Refs = append(t.Refs, id)
	s := &t.Storages[id]
	if s.Retained && (!s.Hidden || t.inside) {
		return
	}
	s.Retained, s.Hidden = true, t.inside
	if t.Row >= 0 && !t.inside {
		t.Rows[t.Row].Retained += alloc.Bytes(s.Bytes)
	}
}

// Widest returns the element type to which PyTorch promotes the tensors.
func Widest(xs []Tensor) alloc.DType {
	d := xs[0].DType
	for _, x := range xs[1:] {
		if setting.IsFloat(x.DType) && x.DType.Bits() > d.Bits() {
			d = x.DType
		}
	}
	return d
}

// Parts splits x along its last dimension into views of these widths, as torch.split and
// torch.chunk do.
func (t *Tape) Parts(x Tensor, widths ...int) []Tensor {
	shapes := make([]alloc.Shape, len(widths))
	for i, width := range widths {
		shapes[i] = t.Resized(x.Shape, width)
	}
	return t.Views(x, shapes...)
}

// Views returns views of x with these shapes. Each has a gradient of its own, and the backward pass
// joins the gradients in a new tensor.
func (t *Tape) Views(x Tensor, shapes ...alloc.Shape) []Tensor {
	if x.tape != t {
		t.foreign("splits", x)
	}
	views := make([]Tensor, len(shapes))
	at := int32(len(t.Ops))
	for i, shape := range shapes {
		y := x
		y.Shape = t.clone(shape)
		bytes, err := y.Shape.Bytes(y.DType)
		if err != nil || bytes > setting.MaxTotal {
			t.fail("part", err)
		}
		y.storage = t.NewStorage(Storage{Bytes: int64(t.Size(y)), Last: at, LastRun: at, Alias: x.storage, Part: true, Grad: x.grad})
		views[i] = y
	}
	in := int32(len(t.Refs))
	t.use(x, at, false)
	t.Storages[x.storage].read = at
	t.Refs = append(t.Refs, x.storage)
	t.Ops = append(t.Ops, Recorded{Row: int32(t.Row), Out: views[0].storage, Parts: int32(len(views)), Grad: x.grad, In: in, Keep: in + 1, End: in + 1})
	return views
}

// Slices returns views of x that are taken one by one, as by x[..., :width]. The backward pass
// makes a tensor as large as x for each and adds these up.
func (t *Tape) Slices(x Tensor, widths ...int) []Tensor {
	var views []Tensor
	for _, width := range widths {
		views = append(views, t.Parts(x, width)...)
	}
	return views
}

// Home returns the storage whose memory this one is a part of, or the storage itself.
func (t *Tape) Home(id int32) int32 {
	for t.Storages[id].Part {
		id = t.Storages[id].Alias
	}
	return id
}

// Drop notes that the code drops what it made so far and the loss does not read: the graph of it is gone before the model
// returns.
func (t *Tape) Drop() {
	if n := len(t.Ops); n > 0 {
		t.Ops[n-1].Drops = true
	}
}

// Rank fails unless x has as many dimensions as dims. The error lists them by names.
func (t *Tape) Rank(x Tensor, dims int, names string) {
	if len(x.Shape) != dims {
		t.Failf("input %v has %d dimensions: want %d, %s", x.Shape, len(x.Shape), dims, names)
	}
}

// Width fails unless dimension dim of x has the wanted length. A negative dim counts from the last
// dimension.
func (t *Tape) Width(x Tensor, dim, want int, what string) {
	i := dim
	if i < 0 {
		i += len(x.Shape)
	}
	if i < 0 || i >= len(x.Shape) {
		t.Failf("input %v has too few dimensions to hold %d %s", x.Shape, want, what)
	}
	if x.Shape[i] != want {
		t.Failf("input %v has %d %s: want %d", x.Shape, x.Shape[i], what, want)
	}
}

// Sum records y + x for two tensors of the same shape.
func (t *Tape) Sum(y, x Tensor) Tensor {
	if !slices.Equal(y.Shape, x.Shape) {
		t.Failf("adds %v and %v: the shapes must be equal", y.Shape, x.Shape)
	}
	return t.Add(y, x)
}

// Add records x + y, with y broadcast to x.
func (t *Tape) Add(x, y Tensor) Tensor {
	t.fits(x, y)
	return t.Op(Op{In: []Tensor{x, y}, Shape: x.Shape, PassGrad: slices.Equal(x.Shape, y.Shape), Gather: !x.split || !y.split})
}

// AddTo records x += y, in the memory of x.
func (t *Tape) AddTo(x, y Tensor) Tensor {
	t.fits(x, y)
	return t.Op(Op{In: []Tensor{x, y}, Shape: x.Shape, PassGrad: slices.Equal(x.Shape, y.Shape), InPlace: true})
}

// Mul records x * y, with y broadcast to x. It keeps x if y needs a gradient, and y if x does.
func (t *Tape) Mul(x, y Tensor) Tensor {
	t.fits(x, y)
	o := Op{In: []Tensor{x, y}, Shape: x.Shape}
	switch {
	case x.grad && y.grad:
		o.Keep = o.In
	case x.grad:
		o.Keep = o.In[1:]
	case y.grad:
		o.Keep = o.In[:1]
	}
	if y.grad && !slices.Equal(y.Shape, x.Shape) { // y's gradient is summed from a tensor as large as x
		o.BackwardWorkspace = t.Size(x)
	}
	return t.Op(o)
}

// fits fails unless y can be broadcast to x.
func (t *Tape) fits(x, y Tensor) {
	off := len(x.Shape) - len(y.Shape)
	ok := off >= 0
	for i := 0; ok && i < len(y.Shape); i++ {
		ok = y.Shape[i] == 1 || y.Shape[i] == x.Shape[off+i]
	}
	if !ok {
		t.Failf("%v does not broadcast to %v", y.Shape, x.Shape)
	}
}

// Scale records x times a number, or x plus a number, in new memory.
func (t *Tape) Scale(x Tensor) Tensor { return t.Op(Op{In: []Tensor{x}, Shape: x.Shape}) }

// Copy records a copy of x in new memory, as contiguous() makes, or reshape of permuted dimensions.
func (t *Tape) Copy(x Tensor) Tensor { return t.Scale(x) }

// In casts x to an element type.
func (t *Tape) In(d alloc.DType, x Tensor) Tensor {
	if x.DType == d {
		return x
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: d})
}

// MatMul records the product of two tensors and keeps both for the backward pass. The output has
// the given shape; sum is the length of the dimension that is summed over.
func (t *Tape) MatMul(x, y Tensor, sum int, shape ...int) Tensor {
	return t.Op(Op{In: []Tensor{x, y}, Shape: shape, Keep: []Tensor{x, y}, FLOPs: setting.Flops(shape, sum, 2)})
}

// Apply runs a layer that has no parameters, such as SiLU. It gets no row of its own in the report.
func (t *Tape) Apply(l Layer, x Tensor) Tensor {
	if IsNil(l) {
		t.Failf("it applies no layer")
	}
	return l.Forward(t, x)
}

// View returns x in another shape, in the same memory. One of the dimensions may be -1.
func (t *Tape) View(x Tensor, dims ...int) Tensor {
	shape := append(alloc.Shape{}, dims...)
	have, err := x.Shape.Elements()
	if err != nil {
		t.fail("input", err)
	}
	unknown := slices.Index(shape, -1)
	if unknown >= 0 {
		shape[unknown] = 1
	}
	known, err := shape.Elements()
	if err != nil {
		t.fail("Dims", err)
	}
	if unknown >= 0 && known > 0 && have%known == 0 {
		shape[unknown] = int(have / known)
		known = have
	}
	if known != have {
		t.Failf("input %v does not take the shape %v: it has %d elements", x.Shape, alloc.Shape(dims), have)
	}
	return t.Op(Op{In: []Tensor{x}, Shape: shape, View: true})
}

// Permute returns x with its dimensions in another order, in the same memory. Copy it for an
// operation that needs the elements one after another.
func (t *Tape) Permute(x Tensor, dims ...int) Tensor { return Permute(dims).Forward(t, x) }

// Permute returns a view with the dimensions in another order. A Linear that reads the view first
// copies it, unless all its rows lie at equal steps in memory.
type Permute []int // such as {0, 2, 3, 1}

func (l Permute) Declare(d *Declaration) {
	sorted := slices.Sorted(slices.Values(l))
	for i, n := range sorted {
		if n != i {
			d.Failf("dimensions %v: want each of 0 to %d once", []int(l), len(l)-1)
		}
	}
}

func (l Permute) Forward(t *Tape, x Tensor) Tensor {
	t.ranked(x, l)
	shape := make(alloc.Shape, len(l))
	for i, from := range l {
		shape[i] = x.Shape[from]
	}
	y := t.Op(Op{In: []Tensor{x}, Shape: shape, View: true})
	y.irregular = l.makesIrregular(x.Shape)
	return y
}

// ranked fails unless x has these dimensions and no others.
func (t *Tape) ranked(x Tensor, dims []int) {
	if len(dims) != len(x.Shape) {
		t.Failf("input %v has %d dimensions, not the %d of %v", x.Shape, len(x.Shape), len(dims), dims)
	}
	for _, i := range dims {
		if i < 0 || i >= len(x.Shape) {
			t.Failf("input %v has no dimension %d", x.Shape, i)
		}
	}
}

// makesIrregular reports whether the rows of the view (all dimensions but the last) do not lie at equal
// steps in memory. They do if the dimensions longer than 1 follow each other as in the input.
func (l Permute) makesIrregular(shape alloc.Shape) bool {
	next := -1
	for _, from := range l[:max(0, len(l)-1)] {
		if shape[from] == 1 {
			continue
		}
		for next >= 0 && next < from && shape[next] == 1 {
			next++
		}
		if next >= 0 && next != from {
			return true
		}
		next = from + 1
	}
	return false
}

// Resize records x with other lengths of the dimensions after the channels, in new memory, as
// torch.nn.functional.interpolate does. It keeps nothing.
func (t *Tape) Resize(x Tensor, sizes ...int) Tensor {
	if len(sizes) == 0 || len(x.Shape) != 2+len(sizes) {
		t.Failf("resizes %v to %v: want a size for each dimension after the channels", x.Shape, sizes)
	}
	return t.Op(Op{In: []Tensor{x}, Shape: t.Resized(x.Shape, sizes...)})
}

// Cat joins tensors along a dimension. It fails if their other lengths differ.
func (t *Tape) Cat(dim int, xs ...Tensor) Tensor {
	if len(xs) == 0 || xs[0].Shape == nil {
		t.Failf("concatenates no tensors")
	}
	shape := slices.Clone(xs[0].Shape)
	if dim < 0 || dim >= len(shape) {
		t.Failf("concatenates along dimension %d of %v, which has %d", dim, shape, len(shape))
	}
	for _, x := range xs[1:] {
		if len(x.Shape) != len(shape) || !slices.Equal(x.Shape[:dim], shape[:dim]) || !slices.Equal(x.Shape[dim+1:], shape[dim+1:]) {
			t.Failf("concatenates %v and %v along dimension %d: the others must be equal", xs[0].Shape, x.Shape, dim)
		}
		shape[dim] += x.Shape[dim]
	}
	return t.Op(Op{In: xs, Shape: shape, PassGrad: true})
}

// Part returns the first n elements of x along a dimension, in the same memory.
func (t *Tape) Part(x Tensor, dim, n int) Tensor { return t.Split(x, dim, n)[0] }

// From returns x without the first n elements of a dimension, in the same memory, as x[:, n:] does.
func (t *Tape) From(x Tensor, dim, n int) Tensor {
	if dim < 0 || dim >= len(x.Shape) || n < 0 || n >= x.Shape[dim] {
		t.Failf("takes %v from element %d of dimension %d on, which it does not have", x.Shape, n, dim)
	}
	shape := slices.Clone(x.Shape)
	shape[dim] -= n
	y := t.Views(x, shape)[0]
	y.irregular = x.irregular || slices.ContainsFunc(x.Shape[:dim], func(length int) bool { return length > 1 })
	return y
}

// Transposed returns x as it is if its dimensions but the first lie in memory in another order than in its shape, as what
// a convolution of patches made does. Sums keep that order.
func (t *Tape) Transposed(x Tensor) Tensor {
	x.irregular = x.irregular || x.Dim(0) > 1
	return x
}

// Split divides x along a dimension into parts of these lengths, in the same memory, as torch.split
// and torch.chunk do. The backward pass joins their gradients in a new tensor.
func (t *Tape) Split(x Tensor, dim int, lengths ...int) []Tensor {
	shapes := make([]alloc.Shape, len(lengths))
	sum, ok := 0, len(lengths) > 0 && dim >= 0 && dim < len(x.Shape)
	for i, n := range lengths {
		if ok = ok && n > 0 && n <= x.Shape[dim]-sum; ok {
			shapes[i] = slices.Clone(x.Shape)
			shapes[i][dim] = n
			sum += n
		}
	}
	if !ok {
		t.Failf("parts of %v along dimension %d of %v: it does not have those", lengths, dim, x.Shape)
	}
	return t.Views(x, shapes...)
}

// Lower casts x down to autocast's type, as autocast does with the inputs of a product. A narrower
// x is returned as it is. Each call makes a copy of its own.
func (t *Tape) Lower(x Tensor) Tensor {
	if low := t.Cfg.Autocast; low == 0 || x.DType.Bits() <= low.Bits() {
		return x
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: t.Cfg.Autocast})
}

// Widen casts x to float32 if its type is narrower.
func (t *Tape) Widen(x Tensor) Tensor {
	if x.DType.Bits() >= 32 {
		return x
	}
	return t.Op(Op{In: []Tensor{x}, Shape: x.Shape, DType: alloc.Float32})
}

// Raise casts x to float32 where autocast runs, as it does with the inputs of operations that
// compute in float32.
func (t *Tape) Raise(x Tensor) Tensor {
	if t.Cfg.Autocast == 0 {
		return x
	}
	return t.Widen(x)
}

// Computes returns the element type in which matrix products compute.
func (t *Tape) Computes() alloc.DType { return setting.Or(t.Cfg.Autocast, t.Activation()) }

// Cast completes an operation whose weight autocast copies to its own type. The copy is kept for
// the gradient of the input. The copy of a trained weight also stays in autocast's cache until the
// forward pass is over, and the weight's gradient is first made in the copy's type.
func (t *Tape) Cast(o *Op, dims ...int) {
	low := t.Cfg.Autocast
	if low == 0 || t.Cfg.Weights.Bits() <= low.Bits() {
		return
	}
	weight := t.clone(dims)
	bytes, err := weight.Bytes(low)
	if err != nil {
		return // the declaration has already reported it
	}
	bytes = min(bytes, setting.MaxTotal)
	if o.In[0].grad {
		o.KeepOwn = []Own{{Shape: weight, DType: low}}
		o.cached = t.Learns()
	} else {
		o.Workspace += bytes
	}
	if t.Learns() {
		o.BackwardWorkspace += bytes
	}
}
