package tracker_test

import (
	"fmt"
	"io"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func ExampleBuffer_FreeOn() {
	device, _ := sim.New(sim.Config{CheckReuse: true})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()
	const compute, transfer alloc.Stream = 1, 2

	batch, _ := tr.AllocOn(compute, alloc.Shape{32, 3, 224, 224}, alloc.Float32, tracker.Input)
	device.Queue(transfer, batch.Ptr(), batch.Bytes(), time.Millisecond)
	batch.FreeOn(transfer) // the copy on that stream is the last that uses it
	fmt.Println("pending:", tr.Track().Pending)

	device.Advance(time.Millisecond)
	fmt.Println("pending:", tr.Track().Pending)
	// Output:
	// pending: 18.4 MiB
	// pending: 0 B
}
