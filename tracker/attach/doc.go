// Package attach watches the GPU memory of other programs, of any language and without
// changing them: a ledger of the live buffers of each process, with the call stacks that asked for
// them.
//
//	w, err := attach.New(attach.Config{})
//	defer w.Close()
//	err = w.Watch(pid) // or w.Start(cmd.Start)
//	...
//	for _, source := range w.Sources() {
//		fmt.Println(source.Origin(), source.Track().Delta)
//	}
//
// A Source answers what a *tracker.MemTracker answers: Snapshot, History, Track, Marks,
// Suspects, Growth, Record. So the export packages write it, and prom.NewCollector serves its metrics.
//
// # How it works
//
// The kernel runs a small program (BPF, on a uprobe) whenever a process calls one of
// libcuda's functions that allocate or free, and when the call returns. It notes size,
// address, stream, result, thread, time and call stack. Every way into the driver ends in the
// same functions: programs that link it, that open it with dlopen, that get functions by
// cuGetProcAddress as NVIDIA's runtime does, and Go programs without cgo.
//
// An allocation counts when it returns; a free counts when it begins, and is put back if it
// fails. So no address is live twice, since the driver gives an address again only after its
// free began. Events for which there was no room are counted: Doubts says from when on the
// ledgers are not exact. What a process held before it was watched is not in them.
//
// # What is needed
//
// Linux 5.8 or newer with BTF, on amd64 or arm64; root, or CAP_BPF, CAP_PERFMON and
// CAP_SYS_PTRACE; the machine's own process numbers. Elsewhere New returns an error. The
// probes lie in the library's file: while there is a watcher, every process that calls the same
// libcuda is slowed by microseconds a call, also those that are not watched.
//
// # What is not seen
//
// What libraries do with the memory that they have: a program with a caching allocator,
// such as PyTorch, asks for large segments. Memory that another process exported. What a buffer
// is for. Which device a context is on that was made before the watcher came. The frames of
// functions that keep no frame pointer, and those that called them: such a stack says that it ends early.
package attach
