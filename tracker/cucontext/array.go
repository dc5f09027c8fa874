//go:build cuda && cgo

package cucontext

import (
	"fmt"
	"unsafe"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// MakeArray calls cu.MakeArray in a tracked context, one from Track or TrackBatched, entered in its
// ledger: at its handle, with the bytes of its elements. The context's DestroyArray takes it out.
// The errors are the context's MemAlloc's. It panics if ctx is not tracked.
func MakeArray(ctx cu.Context, desc cu.ArrayDesc) (cu.Array, error) {
	its := cu.Array3Desc{Width: desc.Width, Height: desc.Height, Format: desc.Format, NumChannels: desc.NumChannels}
	return makeArray(ctx, its, func() (cu.Array, error) { return cu.MakeArray(desc) })
}

// Make3DArray calls cu.Make3DArray as MakeArray calls cu.MakeArray. The errors are the same.
func Make3DArray(ctx cu.Context, desc cu.Array3Desc) (cu.Array, error) {
	return makeArray(ctx, desc, func() (cu.Array, error) { return cu.Make3DArray(desc) })
}

func makeArray(ctx cu.Context, desc cu.Array3Desc, create func() (cu.Array, error)) (array cu.Array, err error) {
	var ledger *contextLedger
	var as func(bytes int64) Tensor
	switch t := ctx.(type) {
	case *tracked:
		ledger, as = t.ledger, t.as
	case *batched:
		ledger, as = t.ledger, t.as
	default:
		panic(fmt.Sprintf("cucontext: make array: a %T is not tracked: call Track first", ctx))
	}
	t := tensorOf(desc)
	n, invalid := t.Shape.Bytes(t.DType)
	if as != nil && invalid == nil {
		its := as(int64(n))
		t.Kind, t.Label = its.Kind, its.Label
	}
	err = ctx.Do(func() (err error) {
		array, err = create()
		return err
	})
	if err != nil {
		return cu.Array{}, explainError(ledger.tr, err, func(int64) Tensor { return t }, int64(n))
	}
	ledger.registerAs(handleOf(array), alloc.ArrayMemory, t, invalid)
	return array, nil
}

// handleOf returns the CUarray as an address: it points into the host's memory, so no device buffer
// can have it.
func handleOf(array cu.Array) cu.DevicePtr {
	return cu.DevicePtr(**(**uintptr)(unsafe.Pointer(&array))) // its only field is a *CUarray
}

var _ [unsafe.Sizeof(uintptr(0))]byte = [unsafe.Sizeof(cu.Array{})]byte{}

var formats = map[cu.Format]alloc.DType{
	cu.Uint8: alloc.Uint8, cu.Uint16: alloc.Uint16, cu.Uin32: alloc.Uint32,
	cu.Int8: alloc.Int8, cu.Int16: alloc.Int16, cu.Int32: alloc.Int32,
	cu.Float16: alloc.Float16, cu.Float32: alloc.Float32,
}

// tensorOf is the elements of an array: the dimensions that are not 0, and the channels if there
// are several.
func tensorOf(desc cu.Array3Desc) Tensor {
	t := Tensor{DType: formats[desc.Format]}
	for _, n := range []uint{desc.Depth, desc.Height, desc.Width} {
		if n != 0 {
			t.Shape = append(t.Shape, int(n))
		}
	}
	if desc.NumChannels > 1 {
		t.Shape = append(t.Shape, int(desc.NumChannels))
	}
	return t
}

// DestroyArray has no result; like the context's own, it leaves its error in Error.
func (t *tracked) DestroyArray(array cu.Array) {
	t.ledger.free(handleOf(array), func() error {
		t.Context.DestroyArray(array)
		return t.Context.Error()
	})
}

// DestroyArray is not batched: it goes to the context underneath.
func (b *batched) DestroyArray(array cu.Array) {
	b.ledger.free(handleOf(array), func() error {
		b.BatchedContext.DestroyArray(array)
		return b.Context.Error()
	})
}
