package explain_test

import (
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/explain"
)

// A buffer in the middle of a segment keeps the rest of it from being given back.
func Example() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()
	first, _ := tr.Alloc(alloc.Shape{1 << 20}, alloc.Float32, tracker.Activation)
	tr.Alloc(alloc.Shape{1 << 20}, alloc.Float32, tracker.Parameter)
	first.Free()

	x := explain.Snapshot(tr.Snapshot())
	fmt.Println("reserved", x.Reserved, "of which pinned", x.Pinned)
	requests, largest := x.Find(8 * alloc.MiB)
	fmt.Println("room for", requests, "requests of 8 MiB; the largest inactive block has", largest)
	// Output:
	// reserved 20.0 MiB of which pinned 16.0 MiB
	// room for 1 requests of 8 MiB; the largest inactive block has 12.0 MiB
}
