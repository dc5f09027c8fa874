package snapshot_test

import (
	"bytes"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// A dump is written by one program and read by another, which needs no tracker.
func Example() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()
	tr.Alloc(alloc.Shape{64, 3, 3, 3}, alloc.Float32, tracker.Parameter)
	tr.Alloc(alloc.Shape{30, 3, 512, 512}, alloc.Float32, tracker.Input)
	var file bytes.Buffer
	dump := tr.Dump()
	dump.Reason = "the end"
	if err := dump.WriteJSON(&file); err != nil {
		fmt.Println(err)
		return
	}

	read, err := snapshot.ReadDump(&file)
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(read.Reason, "-", read.Snapshot.Live)
	for site := range read.Snapshot.CallSites() {
		fmt.Println(site.Live, site.Kind, site.Shape) // site.CallSite is the line of code
	}
	// Output:
	// the end - 2 buffers, 90.0 MiB
	// 1 buffer, 90.0 MiB Input (30, 3, 512, 512)
	// 1 buffer, 6.8 KiB Parameter (64, 3, 3, 3)
}
