package tracker_test

import (
	"fmt"
	"io"
	"log"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func Example() {
	device, err := sim.New(sim.Config{})
	if err != nil {
		log.Fatal(err)
	}
	tr, err := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	if err != nil {
		log.Fatal(err)
	}
	defer tr.Close()

	tr.Track()
	weights, err := tr.Alloc(alloc.Shape{64, 3, 3, 3}, alloc.Float32, tracker.Parameter)
	if err != nil {
		log.Fatal(err)
	}
	images, err := tracker.Make[float32](tr, alloc.Shape{30, 3, 512, 512}, tracker.Input)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(tr.Track().Delta)

	images.Free()
	returned, _ := tr.ClearCache()
	fmt.Println(tr.Track().Delta)
	fmt.Println("given back:", returned)
	weights.Free()
	// Output:
	//   | Count * Size          | Memory     | Kind      | Type    | Allocated at
	// + | 1 * (30, 3, 512, 512) | 90.0 MiB   | Input     | float32
	//     at example_test.go:29 tracker_test.Example
	// + | 1 * (64, 3, 3, 3)     | 6.8 KiB    | Parameter | float32
	//     at example_test.go:25 tracker_test.Example
	//   | Count * Size          | Memory     | Kind  | Type    | Allocated at
	// - | 1 * (30, 3, 512, 512) | 90.0 MiB   | Input | float32 | example_test.go:29 tracker_test.Example
	// given back: 90.0 MiB
}

func ExampleMemTracker_Register() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()

	// Memory that another library took on the same device.
	arena, _ := device.Alloc(256 * alloc.MiB)
	tr.Register(arena, alloc.DeviceMemory, alloc.Shape{256 << 20}, alloc.Uint8, tracker.Temporary)
	fmt.Println(tr.Track().Delta)

	// Forget it before it is freed. If the free fails, remember it again.
	putBack, _ := tr.Unregister(arena)
	if err := device.Free(arena); err != nil {
		putBack()
	}
	fmt.Println(tr.Track().Delta.Sum())
	// Output:
	//   | Count * Size     | Memory     | Kind      | Type  | Allocated at
	// + | 1 * (268435456,) | 256.0 MiB  | Temporary | uint8
	//     at example_test.go:58 tracker_test.ExampleMemTracker_Register
	// -1 buffer, -256.0 MiB
}

func ExampleMemTracker_Snapshot() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()

	before := tr.Snapshot()
	tr.Alloc(alloc.Shape{1024, 1024}, alloc.BFloat16, tracker.Activation)
	for _, change := range tr.Snapshot().Sub(before) {
		fmt.Println(change.Count, change.Shape, change.DType, change.Bytes, "at", change.CallSites[0].Frame)
	}
	// Output:
	// 1 (1024, 1024) bfloat16 2.0 MiB at example_test.go:80 tracker_test.ExampleMemTracker_Snapshot
}
