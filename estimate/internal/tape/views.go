package tape

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Parts splits x along its last dimension into views of these widths, as torch.split and torch.chunk do.
func (t *Tape) Parts(x Tensor, widths ...int) ([]Tensor, error) {
	shapes := make([]alloc.Shape, len(widths))
	for i, width := range widths {
		shapes[i] = t.Resized(x.Shape, width)
	}
	return t.Views(x, shapes...)
}

// Views are parts of x of these shapes. Each has a gradient of its own, and the backward pass puts them
// together in a new tensor.
func (t *Tape) Views(x Tensor, shapes ...alloc.Shape) ([]Tensor, error) {
	if x.Tape != t {
		return nil, t.foreign("splits", x)
	}
	views := make([]Tensor, len(shapes))
	at := int32(len(t.Ops))
	for i, shape := range shapes {
		y := x
		y.Shape = t.clone(shape)
		bytes, err := y.Shape.Bytes(y.DType)
		if err != nil || bytes > setting.MaxTotal {
			return nil, t.Wrap("part", err)
		}
		y.Storage = t.NewStorage(Storage{Bytes: int64(t.Size(y)), Last: at, LastRun: at, Alias: x.Storage, Part: true, Grad: x.Grad})
		views[i] = y
	}
	in := int32(len(t.Refs))
	t.use(x, at, false)
	t.Storages[x.Storage].read = at
	t.Refs = append(t.Refs, x.Storage)
	t.Ops = append(t.Ops, Recorded{Row: int32(t.Row), Out: views[0].Storage, Parts: int32(len(views)), Grad: x.Grad, In: in, Keep: in + 1, End: in + 1})
	return views, nil
}

// Slices is parts of which each is taken by itself, as by x[..., :width]: the backward pass makes a tensor as
// large as x for each and adds them up.
func (t *Tape) Slices(x Tensor, widths ...int) ([]Tensor, error) {
	var views []Tensor
	for _, width := range widths {
		one, err := t.Parts(x, width)
		if err != nil {
			return nil, err
		}
		views = append(views, one...)
	}
	return views, nil
}

// Home is the storage that a part is a view of.
func (t *Tape) Home(id int32) int32 {
	for t.Storages[id].Part {
		id = t.Storages[id].Alias
	}
	return id
}
