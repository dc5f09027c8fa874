package html_test

import (
	"bytes"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
)

func ExampleWrite() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()
	tr.Alloc(alloc.Shape{30, 3, 512, 512}, alloc.Float32, tracker.Input)

	var file bytes.Buffer // or an *os.File
	err := html.Write(&file, tr.Dump())
	fmt.Println(file.Len() > 0, err)
	// Output: true <nil>
}
