// Package gpuemu is a GPU for tests on machines without one: C sources of an
// emulated libcuda.so.1 and libnvidia-ml.so.1, built by the machine's C compiler
// in about a second, and what a test needs to run a program under them. It is
// a test fixture: nothing outside of tests imports it.
//
// A library is bound when a process starts, so what runs under the emulated
// driver is always a child process:
//
//	func TestOutOfMemory(t *testing.T) {
//		if gpuemu.Rerun(t, gpuemu.Options{Memory: 1 << 30}) {
//			return // the child has run the rest
//		}
//		...
//	}
//
// Main does the same for all tests of a package. A program that links the library cannot
// start without it: such tests are run as a whole by
//
//	settings=$(scripts/cuda-headers) && eval "$settings"
//	go run ./internal/testing/gpuemu/gpuemu run go test -tags cuda ./tracker/cucontext
//
// For -race add -gcflags=gorgonia.org/cu=-d=checkptr=0: v0.9.6's BatchedContext
// turns integers into pointers, which checkptr, on under -race, ends the program for.
//
// # What it does
//
// Devices, primary and created contexts, a stack of current contexts to each
// thread; cuMemAlloc, Managed, Pitch and Free in pages of 2 MiB, which small
// allocations of a context share; the lowest free address is used again
// first; addresses reserved and memory created and mapped to them; memory info; copies and fills on real host
// pages, so that a copy out gives what was copied in; pools (cuMemAllocAsync): what is freed is used again on
// its stream at once, on others when that stream has reached the free, is held up to the release threshold
// when the program synchronises, and trimmed on demand; pinned host memory, up to a limit; arrays, which take
// memory and hold nothing; streams and events, with clocks that advance by the bytes moved, or one that tests
// hold and move by hand (Control.HoldClock), with work that stands for kernels (Queue); the driver's codes
// for a double free and a foreign address (1), out of memory (2), no context (201), a destroyed context
// (709), no device (100, 101). Managed memory takes device memory page by page, when a copy or fill first
// touches it. A lost device gives 999 (46 for a new context), and NVML's 15, as programs report of a GPU that
// fell off the bus.
//
// Both libraries share one state between processes: NVML shows each process
// with its memory, and a process that was killed has given it back by the
// time that anybody looks. CUDA_VISIBLE_DEVICES decides which devices libcuda shows, by
// number or UUID.
//
// With GPUEMU_MIG the first device is in MIG mode, with one compute instance. The instance
// has a UUID, a name ("Emulated GPU MIG 1g.5gb"), memory and processes of its own, in both
// libraries. libcuda shows it, and no other device beside it, where CUDA_VISIBLE_DEVICES is
// unset, names it, or names its GPU. NVML lists it under its GPU, and has no sensors for it.
//
// Every other function that gorgonia.org/cu v0.9.6 links is there, returns 801
// (not supported), and says so once on stderr.
//
// # Environment
//
//	GPUEMU_STATE       the shared state's file; %p in it is the process's id (default: one a user, in /dev/shm or the temporary folder)
//	GPUEMU_DEVICES     1 to 8 devices, or 0: no driver answers (default 1)
//	GPUEMU_MEMORY      usable bytes of each, as 24GiB or 512MiB (default 24GiB)
//	GPUEMU_RESERVED    the driver's own share, beside them, as NVML counts it (default 320MiB)
//	GPUEMU_CONTEXT     what one context takes (default 256MiB)
//	GPUEMU_MIG         usable bytes of the first device's MIG instance; then 7 devices at most (default 0: none)
//	GPUEMU_PINNED      what one process can have of pinned host memory (default 8GiB)
//	GPUEMU_GRANULARITY the unit of created memory, a multiple of 2MiB (default 2MiB)
//	GPUEMU_NAME        their name (default Emulated GPU)
//	GPUEMU_FAIL        function:n:code[,...]: the n-th call (n+: and all after it) of a function (*: of any) fails with code
//	GPUEMU_LOST        n: the devices are lost from this process's n-th call on
//	GPUEMU_LATENCY     10us, or function:10us[,...]: what a call takes, longer than it takes anyway
//	GPUEMU_PROCESSES   hidden, host (other pids, as a container sees them) or unsized (no sizes, as under WSL)
//	GPUEMU_MEMORY_INFO v1 (NVML's version 2 is not supported) or none (neither is)
//
// Devices, sizes and the name are those of the first process alive that uses a
// state; faults, latency and views are each process's own. Function names are
// the symbols' names, with their version: cuMemAlloc_v2. Control injects
// faults from within a running test.
//
// # What it cannot show
//
// How long a real driver takes for anything, kernels, modules, graphs, copies of arrays,
// textures, in which chunks a real pool grows, when managed pages move and back, how much memory
// a system lets be pinned, peer access, several MIG instances or one with several compute instances,
// several containers on one device, and what a driver
// does beyond its documentation. Numbers measured on it are numbers of it.
package gpuemu
