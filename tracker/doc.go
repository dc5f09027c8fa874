// Package tracker keeps a ledger of the live buffers in a GPU's memory: bytes, shape, element
// type, purpose, and the call stack that allocated each. Track prints what was allocated and
// freed since the previous Track.
//
//	func main() {
//		tr, err := tracker.New(tracker.Config{}) // the first GPU, or else a simulated one
//		if err != nil {
//			log.Fatal(err)
//		}
//		defer tr.Close()
//		tr.Track()
//		w, err := tr.Alloc(alloc.Shape{64, 3, 3, 3}, alloc.Float32, tracker.Parameter)
//		if err != nil {
//			log.Fatal(err)
//		}
//		tr.Track() // + | 1 * (64, 3, 3, 3) | 6.8 KiB | Parameter | float32 | main.go:12 main.main
//		if err := w.Free(); err != nil {
//			log.Print(err)
//		}
//		tr.ClearCache()
//	}
//
// Most programs need these names alone:
//
//   - [New] and [Config] make a tracker, and Close ends it.
//   - Alloc allocates a tensor, or [Make] one of a Go type; Free of a [Buffer] gives it back, and ClearCache what the
//     cache keeps.
//   - Track prints what changed.
//   - [MemTracker.Section] and [MemTracker.Do] measure a part of the program.
//   - [MemTracker.Suspects] names the lines that leak; [VerifyNoLeaks] and [LimitPeak] fail a test, for which package
//     gpumemtest makes trackers.
//
// The rest is for particular questions, below.
//
// The package prints nothing but reports, to where Config says. It never ends the program, and it frees a buffer
// only if the program does, or if Config.FreeUnreachable asks for it.
//
// The report goes to a file, such as 21-Nov-26-03-30-05-gpu_mem_track.txt, and to
// Config.Report, an io.Writer. The package's functions Track, ClearCache and Alloc use a
// default tracker, which the first call makes; see Default and SetDefault.
//
// A tracker returns values of package snapshot, which can be written, read, compared and
// exported without a tracker.
//
// # Questions
//
// What did this step cost, and what was its peak? A Section, or Do, measures GPU memory, host
// memory and time. Sections nest and run side by side, and each has an exact peak. Bind and
// SectionContext hand a section to other goroutines. Profile adds up sections by path, layer by
// layer.
//
// What was never freed? Suspects names the lines of code with buffers that look forgotten: they
// become older and older, while others are freed young. leaks.Growing names the lines that
// hold ever more old buffers. Leaks lists what is live now and was not in an earlier snapshot. With Config.FindUnreachable, the Go
// collector finds buffers that the program can no longer reach and so can never free.
// VerifyNoLeaks and LimitPeak fail a test.
//
// Why did an allocation fail when there was room? The *OutOfMemoryError says what holds the
// memory and what would help. With Config.OOMDir, a Dump of that moment is written. explain.Snapshot says
// why reserved memory cannot be used or given back.
//
// # What is counted
//
// The tracker counts what goes through it: Alloc, AllocBytes, Make, and memory that other code
// enters with Register. Other memory of the process (the driver's context, cuBLAS, other
// allocators) and of other processes is untracked: what the driver reports as used, minus
// tracked memory.
//
// Requested bytes are what shape and type need ("Total Tensor Used Memory"). Allocated bytes
// are the cache's blocks for them, after rounding. Reserved bytes are all that the cache
// holds from the driver ("Total Allocated Memory").
//
// # Streams and devices
//
// AllocOn allocates for work on a stream. Where work on other streams uses the buffer too, call
// Buffer.RecordStream or FreeOn: then its memory is not reused before that work is done.
// Config.FindLateWrites finds programs that forget it. Each device has a tracker: SnapshotAll prints all of
// them, DumpAll has all that is known of them, and Copy copies between them.
//
// # Concurrency
//
// Any goroutine may call anything. A Track, a Snapshot and a Dump each show one instant.
//
// # Cost
//
// The number of steps of an Alloc or a Free does not depend on how many buffers are live, and an
// Alloc makes one Go allocation, the Buffer. With a million live buffers, freed in random order,
// the steps take some four times as long as with a thousand, because the processor's caches no
// longer hold the data. The time of Track depends on the number of groups that changed. A feature
// that is off costs one check of a counter. docs/costs.md in the repository has the measured times,
// and the commands that measure them.
package tracker
