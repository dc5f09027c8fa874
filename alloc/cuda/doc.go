// Package cuda is an NVIDIA GPU as an alloc.Device.
//
//	dev, err := cuda.Open(0)
//	defer dev.Close()
//	tr, err := tracker.New(tracker.Config{Device: dev})
//
// It needs no build tag, no headers and no cgo: the driver's library (libcuda.so.1,
// nvcuda.dll on Windows) is loaded when Open, FromHandle or Devices is first called, and
// a program that calls none of them, or runs where there is none, is as well without.
// Linux and Windows have one; elsewhere Open is ErrNoDriver. A program that is built
// without cgo on Linux is dynamically linked all the same, for the sake of the loader; one
// that must be static, as for an empty container, is built with the tag nogpu, and has
// the simulated GPU only.
//
// The driver decides which devices there are and how they are counted:
// CUDA_VISIBLE_DEVICES, CUDA_DEVICE_ORDER and MIG instances are as for any CUDA program.
// It reads the environment that the process was started with; what os.Setenv changes
// reaches it only in a program that uses cgo.
//
// A CUDA context belongs to OS threads. A Device makes its context current for
// each call, on whatever thread the goroutine is, and leaves the thread as it found
// it; its methods may be called from any goroutine, and cost two short driver
// calls more for it.
//
// Programs that use gorgonia.org/cu have their allocations tracked by package cucontext,
// and those of another binding by FromHandle and tracker.Register.
//
// # What is not seen
//
// Memory that CUDA libraries take on their own (cuBLAS, cuDNN, NCCL), arrays,
// mapped and pinned host memory, memory pools, and what kernels allocate. A report's
// driver's view has it all.
package cuda
