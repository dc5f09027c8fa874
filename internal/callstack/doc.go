// Package callstack takes the caller's call stack cheaply enough to do it at every device allocation.
//
// A [Table] interns stacks: equal stacks get the same [ID], a number that fits in a record. Nothing is symbolised until
// somebody prints it.
//
//	stacks := callstack.NewTable(callstack.Config{})
//	id := stacks.Capture(0) // at each allocation
//	for f := range stacks.Frames(id) {
//		fmt.Println(f.Function, f.File, f.Line)
//	}
//
// # How
//
// On amd64 and arm64 Go keeps frame pointers. Capture follows them in assembly, where the goroutine can be neither
// preempted nor moved, and never leaves the bounds of the goroutine's own stack. That gives the return address of each
// physical frame, about a nanosecond apiece, but no inlined frames. So the addresses serve as a key: the first time a key is
// seen, [runtime.Callers] takes the true stack, which is kept under it. A key is kept only if it determines the stack (see
// determines); below a cgo callback, or while a nil dereference unwinds, it does not, and Capture takes the slow way each
// time. The slow way, [runtime.Callers] alone, is also what other architectures, other compilers, and the build tag nofp get.
// Either way the ID stands for exactly the frames that [runtime.Callers] reports, up to the table's depth.
//
// # Cost
//
// A known stack costs no allocation and no lock, one to two nanoseconds a frame. A new one costs some 10 us. A table
// keeps about 200 + 16 x depth bytes for each distinct stack (680 to 780 were measured at 32 frames), and never drops one;
// Config.Max bounds it.
//
// # Concurrency
//
// Every function and method may be called from any goroutine. Looking up a known stack takes no lock.
package callstack
