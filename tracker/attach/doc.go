// Package attach watches the GPU memory of other programs, in any language and without
// changing them: it never reads or writes their memory on a GPU. It keeps a ledger of the live
// buffers of each process, with the call stacks that allocated them.
//
//	w, err := attach.New(attach.Config{})
//	defer w.Close()
//	err = w.Watch(pid) // or w.Start(cmd)
//	...
//	for _, source := range w.Sources() {
//		fmt.Println(source.Origin(), source.Track().Delta)
//	}
//
// A Source has the methods of a *tracker.MemTracker that read: Snapshot, Track and Dump.
// So the export packages write it, and prom.NewCollector serves its metrics.
//
// # How it works
//
// The kernel runs a small program (BPF, on a uprobe) whenever a process calls one of libcuda's
// functions that allocate or free, and when the call returns. It records size, address, stream,
// result, thread, time and call stack. It unwinds the stack by rules from the tables that compilers
// write (.eh_frame). When it meets an address without a rule, it copies the stack's memory: the Watcher
// unwinds the copy, and loads the missing rules into the program. So no function is skipped for lack of
// a frame pointer. All programs call the same
// functions: programs that link it, that open it with dlopen, that get functions by
// cuGetProcAddress as NVIDIA's runtime does, and Go programs without cgo.
//
// An allocation counts when it returns. A free counts when it begins, and is undone if it
// fails. So no address is live twice, because the driver reuses an address only after its
// free began. Dropped events are counted, and Warnings says since when the ledgers are
// inaccurate. What a process held before it was watched is not in them.
//
// # What is needed
//
// Linux 5.8 or newer with BTF, on amd64 or arm64; root, or CAP_BPF, CAP_PERFMON and
// CAP_SYS_PTRACE; the machine's own process numbers. Elsewhere New returns an error. The
// probes are set in the library's file: while there is a watcher, every process that calls the same
// libcuda is slowed down by microseconds per call, watched or not.
//
// Config.Preload needs a C compiler, but no privileges: a program that Watcher.Start
// starts, and its descendants, load a small library in front of libcuda. It reports the same
// calls through memory that it shares with the watcher.
//
// A process that is watched by its number may hold memory from before: Source.PriorBytes says how
// much, if Config.Driver is set. Config.Functions watches an allocator inside a library instead of
// the driver. live.Several serves the sources of a watcher.
//
// # What is not seen
//
//   - What libraries do with their memory: a program with a caching allocator, such as
//     PyTorch, asks for large segments.
//   - The size of memory that another process exported.
//   - The purpose of a buffer.
//   - The device of a context that was made before the watcher started.
//   - The callers of code that has neither unwind tables (.eh_frame) nor frame pointers, and callers
//     more than 16 KiB up the stack whose rules are not loaded yet: such a stack says that it ends early.
package attach
