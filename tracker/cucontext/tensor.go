//go:build cuda && cgo

package cucontext

import (
	"fmt"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Tensor describes an allocation. A Shape must have as many bytes as are allocated; nil means
// as many elements as there are bytes. A pitched allocation has bytes between its rows, so
// only Kind and Label count for it.
type Tensor struct {
	Kind  tracker.Kind
	Shape alloc.Shape
	DType alloc.DType
	Label string
}

// With returns a tracked context, one from Track or TrackBatched, that enters what it
// allocates as what. It is the same context as ctx: either can free the memory. It panics if
// ctx is not tracked.
func With[C cu.Context](ctx C, what Tensor) C {
	return Describe(ctx, func(int64) Tensor { return what })
}

// Describe is With for a function that is asked, on the calling goroutine, before each
// allocation is entered.
func Describe[C cu.Context](ctx C, describe func(bytes int64) Tensor) C {
	t, ok := any(ctx).(interface {
		described(func(int64) Tensor) cu.Context
	})
	if !ok {
		panic(fmt.Sprintf("cucontext: describe: a %T is not tracked: call Track first", ctx))
	}
	return t.described(describe).(C)
}

// describe is the tensor of an allocation of these dimensions in bytes; problem says why it
// is not the one that was described.
func describe(as func(int64) Tensor, dims ...int64) (t Tensor, problem error) {
	bytes := int64(1)
	shape := make(alloc.Shape, len(dims))
	for i, d := range dims {
		shape[i] = int(d)
		bytes *= d
	}
	if as != nil {
		t = as(bytes)
	}
	if t.Shape == nil || len(dims) > 1 {
		t.Shape, t.DType = shape, alloc.Uint8
		return t, nil
	}
	if n, err := t.Shape.Bytes(t.DType); err != nil || int64(n) != bytes {
		problem = fmt.Errorf("an allocation of %d bytes was described as %v %v, which has %d: it is entered as bytes", bytes, t.Shape, t.DType, n)
		t.Shape, t.DType = shape, alloc.Uint8
	}
	return t, problem
}
