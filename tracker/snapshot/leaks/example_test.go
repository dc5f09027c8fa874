package leaks_test

import (
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// What was allocated since a snapshot and is still live, without the parameters.
func Example() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()
	before := tr.Snapshot()
	tr.Alloc(alloc.Shape{512, 512}, alloc.Float32, tracker.Parameter)
	tr.Do("epoch", func() {
		tr.Alloc(alloc.Shape{30, 3, 512, 512}, alloc.Float32, tracker.Input)
	})

	for _, leak := range leaks.Live(tr.Snapshot(), leaks.Since(before), leaks.IgnoreKinds(tracker.Parameter)) {
		fmt.Println(leak.Tally, leak.Kind, leak.Shape, leak.Section) // leak.Stack is who allocated them
	}
	// Output: 1 buffer, 90.0 MiB Input (30, 3, 512, 512) epoch
}
