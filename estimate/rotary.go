package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// rotate turns queries or keys by their position: x cos + rotate_half(x) sin.
// Only the tables are kept; all layers have them together.
func rotate(t *Tape, x Tensor, size, rotated, kinds int, tables alloc.DType) (Tensor, error) {
	cos, sin, err := t.rotary(x.Shape[1], rotated, kinds, tables)
	if err != nil {
		return Tensor{}, err
	}
	part := t.resized(x.Shape, x.Shape[2]/size*rotated)
	product, err := t.Op(Op{In: []Tensor{x, cos}, Shape: part, DType: tables, Keep: []Tensor{cos}})
	if err != nil {
		return Tensor{}, err
	}
	half, err := t.Op(Op{In: []Tensor{x}, Shape: part})
	if err != nil {
		return Tensor{}, err
	}
	if half, err = t.Op(Op{In: []Tensor{half, sin}, Shape: part, DType: tables, Keep: []Tensor{sin}}); err != nil {
		return Tensor{}, err
	}
	y, err := t.Op(Op{In: []Tensor{product, half}, Shape: part, PassGrad: true})
	if err == nil && tables != 0 && x.DType != tables { // which the sum is rounded from
		y, err = t.Op(Op{In: []Tensor{y}, Shape: part, DType: x.DType})
	}
	if err != nil || rotated == size {
		return y, err
	}
	return t.Op(Op{In: []Tensor{y, x}, Shape: x.Shape})
}

// rotary returns the tables of the model's rotary positions, made once for so many
// kinds of layers.
func (t *Tape) rotary(length, size, kinds int, d alloc.DType) (cos, sin Tensor, err error) {
	d = or(d, t.Activation())
	if t.cos.Shape.Equal(alloc.Shape{kinds, 1, length, size}) && t.cos.DType == d {
		return t.cos, t.sin, nil
	}
	if cos, err = t.Const(d, kinds, 1, length, size); err == nil {
		sin, err = t.Const(d, kinds, 1, length, size)
	}
	t.cos, t.sin = cos, sin
	return cos, sin, err
}

// rotatePairs turns so many elements of each of the heads by their position, in pairs, by
// tables of so many numbers a position.
func rotatePairs(t *Tape, x Tensor, heads, size, table int) (Tensor, error) {
	cos, sin, err := t.rotary(x.Shape[1], table, 1, 0)
	if err != nil {
		return Tensor{}, err
	}
	half := t.resized(x.Shape, heads*size/2)
	var halves [2]Tensor
	for i := range halves {
		a, err := t.Op(Op{In: []Tensor{x, cos}, Shape: half, Keep: []Tensor{cos}})
		if err != nil {
			return Tensor{}, err
		}
		b, err := t.Op(Op{In: []Tensor{x, sin}, Shape: half, Keep: []Tensor{sin}})
		if err != nil {
			return Tensor{}, err
		}
		if halves[i], err = t.Op(Op{In: []Tensor{a, b}, Shape: half, PassGrad: true}); err != nil {
			return Tensor{}, err
		}
	}
	return t.Op(Op{In: halves[:], Shape: t.resized(x.Shape, heads*size), PassGrad: true})
}

// rotateComplex turns so many elements of each of the heads as complex numbers in float32, by one
// table of them.
func rotateComplex(t *Tape, x Tensor, heads, size int) (Tensor, error) {
	shape := t.resized(x.Shape, heads*size)
	if table := (alloc.Shape{1, 1, x.Shape[1], size}); !t.cos.Shape.Equal(table) {
		var err error
		if t.cos, err = t.Const(alloc.Float32, table...); err != nil { // half as many of eight bytes
			return Tensor{}, err
		}
	}
	y, err := t.Op(Op{In: []Tensor{x}, Shape: shape, DType: alloc.Float32})
	if err == nil {
		y, err = t.Op(Op{In: []Tensor{y, t.cos}, Shape: shape, Keep: []Tensor{t.cos}})
	}
	if err != nil || y.DType == x.DType {
		return y, err
	}
	return t.Op(Op{In: []Tensor{y}, Shape: shape, DType: x.DType})
}
