package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// rotate rotates queries or keys by their positions: x cos + rotate_half(x) sin. Only the tables
// are kept, and all layers share them.
func rotate(t *tape.Tape, x tape.Tensor, size, rotated, kinds int, tables alloc.DType) (tape.Tensor, error) {
	cos, sin, err := rotary(t, x.Shape[1], rotated, kinds, tables)
	if err != nil {
		return tape.Tensor{}, err
	}
	part := t.Resized(x.Shape, x.Shape[2]/size*rotated)
	product, err := t.Op(tape.Op{In: []tape.Tensor{x, cos}, Shape: part, DType: tables, Keep: []tape.Tensor{cos}})
	if err != nil {
		return tape.Tensor{}, err
	}
	half, err := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: part})
	if err != nil {
		return tape.Tensor{}, err
	}
	if half, err = t.Op(tape.Op{In: []tape.Tensor{half, sin}, Shape: part, DType: tables, Keep: []tape.Tensor{sin}}); err != nil {
		return tape.Tensor{}, err
	}
	y, err := t.Op(tape.Op{In: []tape.Tensor{product, half}, Shape: part, PassGrad: true})
	if err == nil && tables != 0 && x.DType != tables { // the sum is then rounded from the tables' type
		y, err = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: part, DType: x.DType})
	}
	if err != nil || rotated == size {
		return y, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{y, x}, Shape: x.Shape})
}

// tables holds the cosines and sines of rotary positions, for each width of heads. All layers share
// them, and they live as long as the model runs.
type tables []*table

type table struct{ cos, sin tape.Tensor }

// Lasting returns all tables.
func (r *tables) Lasting() []tape.Tensor {
	var all []tape.Tensor
	for _, one := range *r {
		all = append(all, one.cos, one.sin)
	}
	return all
}

// of returns the table of a shape and type. A new one has no cosines yet.
func (r *tables) of(shape alloc.Shape, d alloc.DType) *table {
	for _, one := range *r {
		if slices.Equal(one.cos.Shape, shape) && one.cos.DType == d {
			return one
		}
	}
	*r = append(*r, &table{})
	return (*r)[len(*r)-1]
}

var rotaryTables tape.Slot[tables]

// rotary returns the tables for heads of one width, which the first such layer makes. Some models
// have several kinds of layers with different tables; these are all made at once.
func rotary(t *tape.Tape, length, size, kinds int, d alloc.DType) (cos, sin tape.Tensor, err error) {
	d = setting.Or(d, t.Activation())
	shape := alloc.Shape{kinds, 1, length, size}
	r := rotaryTables.Of(t).of(shape, d)
	if r.cos.Shape != nil {
		return r.cos, r.sin, nil
	}
	if r.cos, err = t.Const(d, shape...); err == nil {
		r.sin, err = t.Const(d, shape...)
	}
	return r.cos, r.sin, err
}

// rotatePairs rotates the first size elements of each head by their position, in pairs. table is
// the width of the tables.
func rotatePairs(t *tape.Tape, x tape.Tensor, heads, size, table int) (tape.Tensor, error) {
	cos, sin, err := rotary(t, x.Shape[1], table, 1, 0)
	if err != nil {
		return tape.Tensor{}, err
	}
	half := t.Resized(x.Shape, heads*size/2)
	var halves [2]tape.Tensor
	for i := range halves {
		a, err := t.Op(tape.Op{In: []tape.Tensor{x, cos}, Shape: half, Keep: []tape.Tensor{cos}})
		if err != nil {
			return tape.Tensor{}, err
		}
		b, err := t.Op(tape.Op{In: []tape.Tensor{x, sin}, Shape: half, Keep: []tape.Tensor{sin}})
		if err != nil {
			return tape.Tensor{}, err
		}
		if halves[i], err = t.Op(tape.Op{In: []tape.Tensor{a, b}, Shape: half, PassGrad: true}); err != nil {
			return tape.Tensor{}, err
		}
	}
	return t.Op(tape.Op{In: halves[:], Shape: t.Resized(x.Shape, heads*size), PassGrad: true})
}

// rotateComplex rotates the first size elements of each head as complex numbers in float32, by one
// table.
func rotateComplex(t *tape.Tape, x tape.Tensor, heads, size int) (tape.Tensor, error) {
	shape := t.Resized(x.Shape, heads*size)
	wide := alloc.Shape{1, 1, x.Shape[1], size}
	r := rotaryTables.Of(t).of(wide, alloc.Float32)
	if r.cos.Shape == nil {
		var err error
		if r.cos, err = t.Const(alloc.Float32, wide...); err != nil { // half as many numbers, of eight bytes each
			return tape.Tensor{}, err
		}
	}
	y, err := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, DType: alloc.Float32})
	if err == nil {
		y, err = t.Op(tape.Op{In: []tape.Tensor{y, r.cos}, Shape: shape, Keep: []tape.Tensor{r.cos}})
	}
	if err != nil || y.DType == x.DType {
		return y, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{y}, Shape: shape, DType: x.DType})
}
