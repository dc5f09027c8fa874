//go:build cuda && cgo && linux

package cuda_test

import (
	"fmt"
	"io"
	"log"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// A program that uses gorgonia.org/cu, and the one line that has it tracked.
func ExampleTrack() {
	tr, err := tracker.New(tracker.Config{Report: io.Discard})
	if err != nil {
		log.Fatal(err)
	}
	defer tr.Close()

	var ctx cu.Context = cu.NewContext(0, cu.SchedAuto)
	ctx = cuda.Track(ctx, tr) // this one
	defer ctx.Close()

	p, err := ctx.MemAlloc(1 << 20)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(tr.Snapshot().Live.Bytes)
	ctx.MemFree(p)
	fmt.Println(tr.Snapshot().Live.Bytes)
	// Output:
	// 1.0 MiB
	// 0 B
}
