package tracker_test

import (
	"errors"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

func ExampleMemTracker_Section() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()

	s := tr.Section("forward")
	tr.Alloc(alloc.Shape{30, 3, 512, 512}, alloc.Float32, tracker.Activation)
	tr.Do("conv1", func() { // a part of it: "forward/conv1"
		workspace, _ := tr.AllocBytes(256*alloc.MiB, tracker.Temporary)
		workspace.Free()
	})
	s.End()

	d := s.Data() // fmt.Print(d.Table()) for the table
	fmt.Println("consumed", d.GPU.Consumed(), "peaked", d.GPU.Peaked(), "used", d.GPU.Used)
	// Output:
	// consumed 90.0 MiB peaked 256.0 MiB used 90.0 MiB
}

func ExampleMemTracker_Leaks() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()

	before := tr.LightSnapshot()
	for range 3 {
		tr.Alloc(alloc.Shape{1024, 1024}, alloc.Float32, tracker.Activation)
	}
	for _, leak := range tr.Leaks(leaks.Since(before)) {
		fmt.Println(leak.Tally, "at", leak.CallSite)
	}
	// Output:
	// 3 buffers, 12.0 MiB at example_questions_test.go:40 tracker_test.ExampleMemTracker_Leaks
}

func ExampleOutOfMemoryError() {
	device, _ := sim.New(sim.Config{Memory: alloc.GiB})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()

	tr.AllocBytes(500*alloc.MiB, tracker.Parameter)
	_, err := tr.AllocBytes(200*alloc.MiB, tracker.Activation)
	fmt.Println(err)

	if oom, ok := errors.AsType[*tracker.OutOfMemoryError](err); ok {
		fmt.Println(oom.Free, oom.Requested)
	}
	// Output:
	// alloc Activation (209715200,) uint8: out of device memory on Simulated GPU 0: 200.0 MiB requested
	// 	free 74.0 MiB of 1.0 GiB, largest inactive block 0 B
	// 	reserved 500.0 MiB, of which inactive 0 B; untracked 450.0 MiB
	// 	held by:
	// 		1 buffer, 500.0 MiB at example_questions_test.go:54 tracker_test.ExampleOutOfMemoryError
	// 	advice: truly full: the program's own buffers take the memory: free what the first lines above hold, make the batch smaller, or take a larger device
	// 74.0 MiB 200.0 MiB
}
