package rewind_test

import (
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
)

// What was live at the peak, of which nothing is left.
func Example() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()
	tr.Alloc(alloc.Shape{64, 3, 3, 3}, alloc.Float32, tracker.Parameter)
	input, _ := tr.Alloc(alloc.Shape{30, 3, 512, 512}, alloc.Float32, tracker.Input)
	input.Free()

	dump := tr.Dump()
	peak, _, err := rewind.To(dump, "peak")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("now:        ", dump.Snapshot.Live)
	fmt.Println("at the peak:", peak.Live)
	// Output:
	// now:         1 buffer, 6.8 KiB
	// at the peak: 2 buffers, 90.0 MiB
}
