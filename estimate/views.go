package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// parts splits x along its last dimension into views of these widths, as torch.split and torch.chunk do.
func (t *Tape) parts(x Tensor, widths ...int) ([]Tensor, error) {
	shapes := make([]alloc.Shape, len(widths))
	for i, width := range widths {
		shapes[i] = t.resized(x.Shape, width)
	}
	return t.views(x, shapes...)
}

// views are parts of x of these shapes. Each has a gradient of its own, and the backward pass puts them
// together in a new tensor.
func (t *Tape) views(x Tensor, shapes ...alloc.Shape) ([]Tensor, error) {
	if x.tape != t {
		return nil, t.foreign("splits", x)
	}
	views := make([]Tensor, len(shapes))
	at := int32(len(t.ops))
	for i, shape := range shapes {
		y := x
		y.Shape = t.clone(shape)
		bytes, err := y.Shape.Bytes(y.DType)
		if err != nil || bytes > maxTotal {
			return nil, t.wrap("part", err)
		}
		y.storage = t.newStorage(storage{bytes: int64(t.size(y)), last: at, lastRun: at, alias: x.storage, part: true, grad: x.grad})
		views[i] = y
	}
	in := int32(len(t.refs))
	t.use(x, at, false)
	t.storages[x.storage].read = at
	t.refs = append(t.refs, x.storage)
	t.ops = append(t.ops, op{row: int32(t.row), out: views[0].storage, parts: int32(len(views)), grad: x.grad, in: in, keep: in + 1, end: in + 1})
	return views, nil
}

// slices is parts of which each is taken by itself, as by x[..., :width]: the backward pass makes a tensor as
// large as x for each and adds them up.
func (t *Tape) slices(x Tensor, widths ...int) ([]Tensor, error) {
	var views []Tensor
	for _, width := range widths {
		one, err := t.parts(x, width)
		if err != nil {
			return nil, err
		}
		views = append(views, one...)
	}
	return views, nil
}

// home is the storage that a part is a view of.
func (t *Tape) home(id int32) int32 {
	for t.storages[id].part {
		id = t.storages[id].alias
	}
	return id
}

// join makes the gradient of a tensor of those of its parts.
func (g *gradientSet) join(o *op) (extra int64) {
	t, found := g.a.t, false
	for id := o.out; id < o.out+o.parts; id++ {
		if from := g.of[id]; from != 0 {
			g.of[id], found = 0, true
			g.done = append(g.done, from)
		} else {
			extra += t.storages[id].bytes // zeros
		}
	}
	if !found {
		return 0
	}
	return extra + g.give(t.refs[o.in])
}
