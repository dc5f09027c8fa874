// Package cuda makes an NVIDIA GPU an alloc.Device.
//
//	dev, err := cuda.Open(0)
//	defer dev.Close()
//	tr, err := tracker.New(tracker.Config{Device: dev})
//
// It needs no build tag, no headers and no cgo. The first call of Open, FromHandle or Devices
// loads the driver's library (libcuda.so.1, or nvcuda.dll on Windows). If there is none, the
// program still runs, and these functions return ErrNoGPU. They always do so on systems other
// than Linux (amd64, arm64) and Windows (amd64).
//
// The driver decides which devices there are and how they are counted:
// CUDA_VISIBLE_DEVICES and CUDA_DEVICE_ORDER work as for any CUDA program. A MIG instance
// that CUDA_VISIBLE_DEVICES names is device 0, with its own name, UUID and memory.
// The driver reads the environment that the process started with. It sees a change by os.Setenv
// only in a program that uses cgo.
//
// CUDA keeps a current context for each OS thread. A Device makes its context current for
// each call, on the goroutine's thread, and restores the thread's own context after it. So any
// goroutine may call its methods. Each call makes two more short calls to the driver.
//
// Package cucontext tracks the allocations of programs that use gorgonia.org/cu. Programs
// that use another binding can use FromHandle and MemTracker.Register.
//
// # Static programs
//
// On Linux (amd64, arm64), a program that imports this package is dynamically linked, even with
// CGO_ENABLED=0, because the system's loader loads the driver. Package tracker imports it. Such a program does not start in a container without a C library (FROM
// scratch, distroless/static). For those, build without the driver's loader:
//
//	CGO_ENABLED=0 go build -tags nogpu
//
// That program is static; Open returns ErrNoGPU, and trackers use the simulated GPU.
//
// # Types of memory
//
// A Device allocates plain device memory, and virtual memory to a Cache with expandable segments.
// Device.NewPool, Device.Managed and Device.Pinned give the other types, each as a separate
// alloc.Device:
//
//	tracker.Config{Device: pool, NoCache: true}
//	tracker.Config{Device: dev.Managed(), NoCache: true}
//	tracker.Config{Device: dev.Pinned(cuda.PinnedConfig{})}
//
// Arrays and imported memory are the program's own: it enters them with MemTracker.Register and
// the type of memory. docs/memory.md says what is counted where.
//
// # What is not seen
//
// The package does not see memory that CUDA libraries allocate (cuBLAS, cuDNN, NCCL), and
// what kernels allocate. The driver's values in a report include all of it except host memory.
package cuda
