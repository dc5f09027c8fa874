package replay_test

import (
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
)

// Would this run have fitted on a smaller device?
func ExampleRun() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()
	for range 3 {
		images, _ := tr.AllocBytes(90*alloc.MiB, tracker.Input)
		tr.AllocBytes(40*alloc.MiB, tracker.Activation) // kept
		images.Free()
	}

	for _, memory := range []alloc.Bytes{250 * alloc.MiB, 150 * alloc.MiB} {
		result, err := replay.Run(tr.Dump(), replay.Config{Memory: memory})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(memory, "fits:", result.Fits)
	}
	smallest, err := replay.Smallest(tr.Dump(), replay.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println("needs", smallest.Memory)
	// Output:
	// 250.0 MiB fits: true
	// 150.0 MiB fits: false
	// needs 210.0 MiB
}
