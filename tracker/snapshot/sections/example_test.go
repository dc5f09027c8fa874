package sections_test

import (
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// The sections of a program as a profile, the largest first.
func Example() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()
	for range 2 {
		tr.Do("step", func() {
			tr.Do("forward", func() { tr.Alloc(alloc.Shape{512, 512}, alloc.Float32, tracker.Activation) })
			tr.Do("backward", func() { tr.Alloc(alloc.Shape{1024, 1024}, alloc.Float32, tracker.Gradient) })
		})
	}

	rows, err := tr.Profile().Sorted("allocated")
	if err != nil {
		fmt.Println(err) // there is no such column
	}
	for _, row := range rows {
		fmt.Println(row.Path, row.Allocated)
	}
	// Output:
	// step 4 buffers, 10.0 MiB
	// step/backward 2 buffers, 8.0 MiB
	// step/forward 2 buffers, 2.0 MiB
}
