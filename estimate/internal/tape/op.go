package tape

import (
	"math"

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

	Keep       []Tensor // tensors kept for the backward pass
	KeepOutput bool     // the output is kept too
	KeepOwn    []Own    // indices, masks and statistics kept

	InPlace      bool // the output overwrites In[0]
	View         bool // the output is In[0] in another shape, in the same memory
	PassGrad     bool // the output's gradient serves as the gradient of each input, as in an addition
	TrainingOnly bool // in inference it does nothing, like dropout
	Gather       bool // the output is whole, although tensor parallelism splits an input
	Split        bool // tensor parallelism splits the output

	FLOPs     int64       // a multiplication with an addition counts as two
	Workspace alloc.Bytes // memory needed while the operation runs
	// BackwardWorkspace is the memory needed while the backward pass of the operation runs, besides
	// Workspace and the gradients of its output and inputs.
	BackwardWorkspace alloc.Bytes

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
	at := int32(len(t.Ops))
	rec := Recorded{
		Row: int32(t.Row), Grad: y.grad, PassGrad: o.PassGrad || o.View, Promotes: promotes, InPlace: o.InPlace, View: o.View,
		TrainingOnly: o.TrainingOnly, saved: t.saves(o.As), params: o.Params, apart: o.Apart, Workspace: int64(max(0, o.Workspace)), Backward: int64(max(0, o.BackwardWorkspace)), Kernels: int64(o.Kernels),
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
		t.Storages[y.storage].Grad = t.Storages[y.storage].Grad || y.grad
		return
	}
	bytes := t.bytes(y.Shape, y.DType, y.split)
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
		bytes := t.bytes(own.Shape, setting.Or(own.DType, y.DType), y.split)
		t.keepStorage(t.NewStorage(Storage{Bytes: bytes, Last: at, LastRun: at, Alias: -1, Own: true, Cached: o.cached}))
	}
}

func (t *Tape) keepStorage(id int32) {
	id = t.Home(id)
	t.Refs = append(t.Refs, id)
	s := &t.Storages[id]
	if s.Kept && (!s.Hidden || t.inside) {
		return
	}
	s.Kept, s.Hidden = true, t.inside
	if t.Row >= 0 && !t.inside {
		t.Rows[t.Row].Kept += alloc.Bytes(s.Bytes)
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
