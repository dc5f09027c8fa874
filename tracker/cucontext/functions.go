//go:build cuda && cgo

package cucontext

import (
	"errors"
	"fmt"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// MemAlloc calls cu.MemAlloc, and enters the memory in the ledger. As with all of cu's package
// functions, a context must be current on the calling thread. Where the ledger refuses the memory,
// it is freed again and the refusal is the error.
func MemAlloc(tr *tracker.MemTracker, bytes int64) (cu.DevicePtr, error) {
	p, err := cu.MemAlloc(bytes)
	return registered(tr, p, alloc.DeviceMemory, err, bytes)
}

// MemAllocManaged calls cu.MemAllocManaged, and enters the memory in the ledger, with its whole
// size, wherever the pages are. The errors are those of MemAlloc.
func MemAllocManaged(tr *tracker.MemTracker, bytes int64, flags cu.MemAttachFlags) (cu.DevicePtr, error) {
	p, err := cu.MemAllocManaged(bytes, flags)
	return registered(tr, p, alloc.ManagedMemory, err, bytes)
}

// MemAllocPitch calls cu.MemAllocPitch, and enters in the ledger what the driver took: height rows
// of pitch bytes. The errors are those of MemAlloc.
func MemAllocPitch(tr *tracker.MemTracker, width, height int64, elementSize uint) (p cu.DevicePtr, pitch int64, err error) {
	p, pitch, err = cu.MemAllocPitch(width, height, elementSize)
	if err != nil {
		return p, pitch, explainError(tr, err, nil, width, height)
	}
	p, err = registered(tr, p, alloc.DeviceMemory, nil, height, pitch)
	return p, pitch, err
}

// MemFree calls cu.MemFree, and takes the address out of the ledger first if it is in. The error is
// cu's; the address is then in the ledger again.
func MemFree(tr *tracker.MemTracker, p cu.DevicePtr) error {
	undo, unknown := tr.Unregister(alloc.Ptr(p))
	err := cu.MemFree(p)
	if err != nil && unknown == nil {
		err = errors.Join(err, undo())
	}
	return err
}

// registered registers the result of an allocation.
func registered(tr *tracker.MemTracker, p cu.DevicePtr, memory alloc.Memory, err error, dims ...int64) (cu.DevicePtr, error) {
	if err != nil {
		return p, explainError(tr, err, nil, dims...)
	}
	t, _ := describe(nil, dims...)
	if err := register(tr, p, memory, t); err != nil {
		return 0, errors.Join(err, cu.MemFree(p))
	}
	return p, nil
}

// register registers an address as a tensor.
func register(tr *tracker.MemTracker, p cu.DevicePtr, memory alloc.Memory, t Tensor) error {
	err := tr.Register(alloc.Ptr(p), memory, t.Shape, t.DType, t.Kind)
	if err == nil && t.Label != "" {
		_ = tr.SetLabel(alloc.Ptr(p), t.Label) // fails only if the tracker is closed meanwhile
	}
	return err
}

// explainError returns the error of an allocation. If memory ran out, it adds the tracker's explanation.
func explainError(tr *tracker.MemTracker, err error, as func(int64) Tensor, dims ...int64) error {
	if !errors.Is(ownError(err), cu.OutOfMemory) {
		return err
	}
	t, _ := describe(as, dims...)
	n, invalid := t.Shape.Bytes(t.DType)
	if invalid != nil {
		return err
	}
	device := tr.Device()
	oom := &alloc.OutOfMemoryError{
		Device: fmt.Sprintf("%s %d", device.Name(), device.Ordinal()), Requested: n, Free: -1, Total: -1, Reserved: -1, Allocated: -1, LargestInactive: -1, Err: err,
	}
	if info, infoErr := device.MemInfo(); infoErr == nil {
		oom.Free, oom.Total = info.Free, info.Total
	}
	return tr.ExplainOutOfMemory(oom, t.Shape, t.DType, t.Kind)
}

// codeAs returns the driver's number of an error of the type of success, the value that the driver returns when
// all is well: gorgonia.org/cu does not export that type.
func codeAs[T interface {
	~int
	error
}](success T, err error) (int, bool) {
	var own T
	if !errors.As(err, &own) {
		return 0, false
	}
	return int(own), true
}

// deviceLost reports whether an error says that the device is lost. The driver then answers nothing
// more, so no free has succeeded.
func deviceLost(err error) bool {
	code, ok := codeAs(cu.Success, err)
	return ok && errors.Is(cuda.Error(code), cuda.ErrDeviceLost)
}

// ownError returns the error of the call that ended a batch. A batch's error joins the errors of
// its calls in order, so that is the last one.
func ownError(batch error) error {
	if list, ok := batch.(interface{ ListErrors() []error }); ok {
		if errs := list.ListErrors(); len(errs) > 0 {
			return errs[len(errs)-1]
		}
	}
	return batch
}
