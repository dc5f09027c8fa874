package layer

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// rotate rotates queries or keys by their positions: x cos + rotate_half(x) sin. Only the tables
// are kept, and all layers share them.
func rotate(t *tape.Tape, x tape.Tensor, size, rotated, kinds int, tables alloc.DType) tape.Tensor {
	cos, sin := rotary(t, x.Shape[1], rotated, kinds, tables)
	part := t.Resized(x.Shape, x.Shape[2]/size*rotated)
	product := t.Op(tape.Op{In: []tape.Tensor{x, cos}, Shape: part, DType: tables, Keep: []tape.Tensor{cos}})
	half := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: part})
	half = t.Op(tape.Op{In: []tape.Tensor{half, sin}, Shape: part, DType: tables, Keep: []tape.Tensor{sin}})
	y := t.Op(tape.Op{In: []tape.Tensor{product, half}, Shape: part, PassGrad: true})
	if tables != 0 && x.DType != tables { // the sum is then rounded from the tables' type
		y = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: part, DType: x.DType})
	}
	if rotated == size {
		return y
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
func rotary(t *tape.Tape, length, size, kinds int, d alloc.DType) (cos, sin tape.Tensor) {
	d = setting.Or(d, t.Activation())
	shape := alloc.Shape{kinds, 1, length, size}
	r := rotaryTables.Of(t).of(shape, d)
	if r.cos.Shape != nil {
		return r.cos, r.sin
	}
	r.cos = t.Const(d, shape...)
	r.sin = t.Const(d, shape...)
	return r.cos, r.sin
}

// rotatePairs rotates the first size elements of each head by their position, in pairs. table is
// the width of the tables.
func rotatePairs(t *tape.Tape, x tape.Tensor, heads, size, table int) tape.Tensor {
	cos, sin := rotary(t, x.Shape[1], table, 1, 0)
	half := t.Resized(x.Shape, heads*size/2)
	var halves [2]tape.Tensor
	for i := range halves {
		a := t.Op(tape.Op{In: []tape.Tensor{x, cos}, Shape: half, Keep: []tape.Tensor{cos}})
		b := t.Op(tape.Op{In: []tape.Tensor{x, sin}, Shape: half, Keep: []tape.Tensor{sin}})
		halves[i] = t.Op(tape.Op{In: []tape.Tensor{a, b}, Shape: half, PassGrad: true})
	}
	return t.Op(tape.Op{In: halves[:], Shape: t.Resized(x.Shape, heads*size), PassGrad: true})
}

// rotateComplex rotates the first size elements of each head as complex numbers in float32, by one
// table.
func rotateComplex(t *tape.Tape, x tape.Tensor, heads, size int) tape.Tensor {
	shape := t.Resized(x.Shape, heads*size)
	wide := alloc.Shape{1, 1, x.Shape[1], size}
	r := rotaryTables.Of(t).of(wide, alloc.Float32)
	if r.cos.Shape == nil {
		r.cos = t.Const(alloc.Float32, wide...) // half as many numbers, of eight bytes each
	}
	y := t.Op(tape.Op{In: []tape.Tensor{x}, Shape: shape, DType: alloc.Float32})
	y = t.Op(tape.Op{In: []tape.Tensor{y, r.cos}, Shape: shape, Keep: []tape.Tensor{r.cos}})
	return t.In(x.DType, y)
}
