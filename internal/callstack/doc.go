// Package callstack takes the caller's call stack cheaply enough to do it at every device allocation.
//
// A [Table] interns stacks: equal stacks get the same [ID], a number that fits in a record. Names are looked up once for each
// address in the program, and put together when somebody prints a stack.
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
// time. A key that was found lately is not even walked to, but checked frame by frame (see predict).
//
// The assembly relies on three fields of the Go runtime. They are checked when the program begins (see layout.go). Where they
// are not what it expects, Capture takes the slow way, [runtime.Callers] alone; so it does on other architectures, with other
// compilers, and under the build tag nofp. Either way the ID stands for exactly the frames that [runtime.Callers] reports, up
// to the table's depth.
//
// # Cost
//
// A known stack costs no allocation and no lock: 24 ns at 16 frames, 29 at 24 and 33 at 32 if it was found lately, otherwise
// 43, 51 and 69. runtime.Callers takes 900 to 1,500 ns for the same. A new stack costs some 5 us.
//
// A table keeps about 200 + 20 x depth bytes for each distinct stack (640 were measured at 22 frames, 801 at 29), and never
// drops one. Config.Max bounds how many it keeps whole: the default takes 55 MB at most. Config.Short says what to keep of the
// others, a quarter as many at most. These take the slow way.
//
// # Concurrency
//
// Every function and method may be called from any goroutine. Looking up a known stack takes no lock.
package callstack
