// Package tracker knows every live buffer of a GPU's memory: its bytes, shape
// and element type, what it is for, and the call stack that asked for it. Each
// Track prints what was allocated and freed since the last one.
//
//	tr, err := tracker.New(tracker.Config{})
//	defer tr.Close()
//
//	tr.Track()
//	w, err := tr.Alloc(alloc.Shape{64, 3, 3, 3}, alloc.Float32, tracker.Parameter)
//	tr.Track() // + | 1 * (64, 3, 3, 3) | 6.8 KiB | Parameter | float32 | main.go:12 main.main
//
// The report goes to a file of its own, 21-Nov-26-03-30-05-gpu_mem_track.txt,
// and to any io.Writer. Track, ClearCache and Alloc of the package use a
// tracker that is made at the first call; see Default.
//
// What a tracker returns are the plain values of package snapshot, which can be
// written, read, compared and exported without a tracker.
//
// # Questions
//
// What did this step cost, and how high did it go? A Section, or Do, measures GPU
// and host memory and time; sections nest and run side by side, each with an exact peak
// of its own. Bind and SectionContext hand one on to other goroutines. Profile gathers
// them by path, layer by layer.
//
// What was never freed? Suspects names the lines of code with buffers that are far
// older than their others, Growth those whose memory rises from mark to mark. Leaks lists
// what is live and was not at a snapshot, and Config.Lost has the Go
// collector prove which buffers nobody can free any more. VerifyNoLeaks and
// LimitPeak fail a test.
//
// Why did this fail when there was room? An *OutOfMemoryError tells what holds the
// memory and what would help; Config.OOMDir keeps a Dump of that moment. Explain tells
// what keeps reserved memory from being used or given back.
//
// # What is counted
//
// Counted is what goes through the tracker: Alloc, AllocBytes, Make, and what
// other code tells by Register. Memory that the process takes beside it (the
// driver's context, cuBLAS, another allocator) and other processes' memory stand in
// a report as untracked: what the driver says is in use, less what the ledger
// explains.
//
// A buffer counts with the bytes that its shape and type need (requested, "Total
// Tensor Used Memory"). What the cache takes for it after rounding is allocated; all
// that the cache holds from the driver is reserved ("Total Allocated Memory").
//
// # Concurrency
//
// Any goroutine may call anything. A Track, a Snapshot and a History are each
// of one instant. Call stacks are of the goroutine that calls.
//
// # Cost
//
// An Alloc and its Free take a few hundred nanoseconds together, the whole call
// stack recorded, and one Go allocation, the Buffer. A live buffer costs about
// 130 bytes of Go heap. Track costs what changed: 100 groups some 45
// microseconds, whatever the number of live buffers. The benchmarks of this
// package measure all of it.
//
// What the questions above need costs nothing while it is off, but for a look at
// a counter. While any section is open, each Alloc and Free looks for its
// goroutine's, some 20 to 40 nanoseconds a pair. To begin and end a section takes
// as long as some five pairs of Alloc and Free, two thirds of it to ask the kernel for
// the resident set; without host memory as long as two pairs, and with
// SectionConfig.HostDetail as long as some 25.
package tracker
