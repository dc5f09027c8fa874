//go:build cuda && cgo && linux

package cucontext_test

import (
	"errors"
	"fmt"
	"io"
	"log"

	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/cucontext"
)

// A program that uses gorgonia.org/cu, and what it takes to have it tracked, on its own context.
func Example() {
	var ctx cu.Context = cu.NewContext(0, cu.SchedAuto)
	dev, err := cucontext.FromContext(ctx)
	if err != nil {
		log.Fatal(err)
	}
	tr, err := tracker.New(tracker.Config{Device: dev, Report: io.Discard})
	if err != nil {
		log.Fatal(err)
	}
	defer tr.Close()
	ctx = cucontext.Track(ctx, tr)
	defer ctx.Close()

	p, err := ctx.MemAlloc(1 << 20)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(tr.Snapshot().Live.Bytes)
	ctx.MemFree(p)

	weight := cucontext.Tensor{Kind: tracker.Parameter, Shape: alloc.Shape{1000, 10}, DType: alloc.Float32, Label: "fc.weight"}
	if p, err = cucontext.With(ctx, weight).MemAlloc(1000 * 10 * 4); err != nil {
		log.Fatal(err)
	}
	for a := range tr.Snapshot().Allocations() {
		fmt.Println(a.Kind, a.Shape, a.DType, a.Label)
	}
	ctx.MemFree(p)
	// Output:
	// 1.0 MiB
	// Parameter (1000, 10) float32 fc.weight
}

// What follows is the README's code.
var _ = func(ctx cu.Context) error {
	dev, err := cucontext.FromContext(ctx)
	if err != nil {
		return err
	}
	tr, err := tracker.New(tracker.Config{Device: dev})
	if err != nil {
		return err
	}
	ctx = cucontext.Track(ctx, tr)
	return errors.Join(ctx.Close(), tr.Close())
}
