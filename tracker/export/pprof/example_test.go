package pprof_test

import (
	"bytes"
	"fmt"
	"io"
	"log"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/pprof"
)

// A file for go tool pprof, and back.
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
	if _, err := tr.Alloc(alloc.Shape{64, 3, 3, 3}, alloc.Float32, tracker.Parameter); err != nil {
		log.Fatal(err)
	}

	var file bytes.Buffer
	if err := pprof.Write(&file, tr.Dump()); err != nil {
		log.Fatal(err)
	}
	usage, err := pprof.Read(&file)
	if err != nil {
		log.Fatal(err)
	}
	for _, row := range usage.Rows {
		fmt.Println(row.Kind, row.Shape, row.DType, row.Live)
	}
	// Output: Parameter (64, 3, 3, 3) float32 1 buffer, 6.8 KiB
}
