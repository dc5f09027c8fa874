// Package cuda is a real GPU as an alloc.Device, through gorgonia.org/cu, and
// the way for programs that use gorgonia.org/cu already to have their
// allocations tracked.
//
//	dev, err := cuda.Open(0)
//	defer dev.Close()
//	tr, err := tracker.New(tracker.Config{Device: dev})
//
// and, where a program has a cu.Context, one line more:
//
//	ctx = cuda.Track(ctx, tr) // its MemAlloc, MemFree, ... are in tr's reports now
//
// The package needs the build tag cuda, cgo, and cuda.h of CUDA 11 or 12
// (scripts/cuda-headers finds or fetches it). Without the tag Open is
// ErrNotBuilt and the functions over cu.Context are not there: gorgonia.org/cu
// ends a program from its init, with exit status 1, where no driver answers, and a
// program that links it does not even start where libcuda.so.1 is missing. So a
// program that shall also run on machines without a GPU is built twice. A driver
// newer than the headers will do: CUDA 13.5 still declares every function that
// gorgonia.org/cu links.
//
// A CUDA context belongs to OS threads. A Device makes its context current for
// each call, on whatever thread the goroutine is, and leaves the thread as it found
// it; its methods may be called from any goroutine, and cost two short driver
// calls more for it.
//
// # What is not seen
//
// Memory that CUDA libraries take on their own (cuBLAS, cuDNN, NCCL), arrays,
// mapped and pinned host memory, memory pools, and what kernels allocate:
// gorgonia.org/cu has no call for most of it. A report's driver's view has it all.
package cuda

import "errors"

// Errors for errors.Is. The driver's own error is beside them: errors.Is(err,
// cu.InvalidValue) works too, and Code gives its number.
var (
	// ErrNotBuilt is the error of Open in a program built without the tag cuda.
	ErrNotBuilt = errors.New("this program was built without CUDA: build it with -tags cuda, which needs cgo and cuda.h (see scripts/cuda-headers), and run it where an NVIDIA driver is installed")

	// ErrDeviceLost says that the driver gave an error after which the device, or
	// this process's context on it, is of no use: every later call fails too.
	ErrDeviceLost = errors.New("the device is lost to this process: restart the process; if that does not help, see the kernel's log for Xid messages")
)
