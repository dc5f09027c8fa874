// Package snapshot holds what was observed of a device's memory, to be read, compared and written.
//
// A [Dump] is everything about one device. It has a [Snapshot], which is every live buffer
// and call site at one instant; the events before it; the latest marks, each with the
// [Delta] since the one before; and a profile of sections. Package tracker makes them for its own
// process. Package tracker/export/files reads them from files, PyTorch's included. The packages below
// tracker/export write them in the formats of other viewers.
//
//	r, err := snapshot.ReadDump(file)
//	for line := range r.Snapshot.CallSites() {
//		fmt.Println(line.Live, line.CallSite)
//	}
//	for _, s := range leaks.Suspects(r.Snapshot) {
//		fmt.Println(s)
//	}
//
// Below this package, sections has what sections of the program measured, leaks finds what was not freed, explain says
// why memory is reserved that nobody asked for, and rewind goes back through the history.
//
// The package never asks a device or a tracker: the same dump gives the same
// answer anywhere. What a source did not know is not guessed: an amount in bytes
// is -1, a shape is nil, and the zero [mem.Frame] prints as "unknown".
//
// # Concurrency
//
// Any goroutine may read these values. Nothing changes them, except the method SetEstimates of a profile.
package snapshot
