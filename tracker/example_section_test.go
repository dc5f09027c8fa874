package tracker_test

import (
	"context"
	"fmt"
	"io"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// What a section starts in other goroutines belongs to it if it is bound to it.
func ExampleSection_Bind() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()

	load := func() error {
		images, err := tr.Alloc(alloc.Shape{30, 3, 512, 512}, alloc.Float32, tracker.Input)
		if err != nil {
			return err
		}
		return images.Free()
	}
	step := tr.Section("step")
	var group sync.WaitGroup // or an errgroup.Group, whose Go takes what Bind returns
	for range 4 {
		group.Go(func() { step.Bind(load)() })
	}
	group.Wait()
	step.End()
	fmt.Println("step:", step.Data().Allocated)
	// Output:
	// step: 4 buffers, 360.0 MiB
}

// A context carries a section to functions that open parts of it, in this goroutine or
// another. An allocation has no context: it counts for the section that its goroutine
// has open.
func ExampleMemTracker_SectionContext() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()

	forward := func(ctx context.Context) {
		_, s := tr.SectionContext(ctx, "forward")
		defer s.End()
		tr.Alloc(alloc.Shape{1024, 1024}, alloc.Float32, tracker.Activation)
	}
	careless := func(context.Context) {
		s := tr.Section("careless") // knows nothing of the context
		defer s.End()
		tr.Alloc(alloc.Shape{1024, 1024}, alloc.Float32, tracker.Activation)
	}
	ctx, request := tr.SectionContext(context.Background(), "request")
	var group sync.WaitGroup
	group.Go(func() { forward(ctx) })
	group.Wait()
	group.Go(func() { careless(ctx) })
	group.Wait()
	request.End()

	for _, row := range tr.Profile() {
		fmt.Println(row.Path, row.Allocated.Bytes)
	}
	// Output:
	// request 4.0 MiB
	// request/forward 4.0 MiB
	// careless 4.0 MiB
}
