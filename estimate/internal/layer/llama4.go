package layer

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// unitHeads divides each head by its length, in float32.
func unitHeads(t *tape.Tape, x tape.Tensor, heads, size int) (tape.Tensor, error) {
	d := x.DType
	y := x
	var err error
	if d.Bits() < 32 {
		if y, err = t.Op(tape.Op{In: []tape.Tensor{x}, Shape: x.Shape, DType: alloc.Float32}); err != nil {
			return tape.Tensor{}, err
		}
	}
	stats := tape.Own{Shape: alloc.Shape{x.Shape[0], x.Shape[1], heads, 1}, DType: alloc.Float32}
	y, err = t.Op(tape.Op{In: []tape.Tensor{y}, Shape: x.Shape, Keep: []tape.Tensor{y}, KeepOwn: []tape.Own{stats}})
	if err != nil || d == y.DType {
		return y, err
	}
	return t.Op(tape.Op{In: []tape.Tensor{y}, Shape: x.Shape, DType: d})
}
