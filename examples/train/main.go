// Command train runs the training loop of a small convolutional network, as far
// as memory goes: forward, backward and optimizer step take and free what a framework
// would. It then prints, layer by layer, what package estimate expected beside
// what the tracker measured, and the difference.
//
// It runs on the first GPU, and on the simulated one where there is none.
package main

import (
	"cmp"
	"flag"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

func main() {
	batch := flag.Int("batch", 64, "images in a batch")
	steps := flag.Int("steps", 3, "steps of training")
	by := flag.String("sort", "tree", "column to sort the table by, such as self-peak or flops")
	flag.Parse()
	if err := run(os.Stdout, *batch, *steps, *by); err != nil {
		log.Fatal(err)
	}
}

func run(out io.Writer, batch, steps int, by string) (err error) {
	if _, err := (sections.Profile{}).Sorted(by); err != nil {
		return err
	}
	report, want, err := expect(batch)
	if err != nil {
		return err
	}
	tr, err := tracker.New(tracker.Config{
		Report:   io.Discard,
		Sections: tracker.SectionConfig{Host: "detail"}, // Go's heap and the peak of the resident set, too
	})
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, tr.Close()) }()

	t := &trainer{tr: tr}
	for _, row := range report.Layers {
		t.shapes = append(t.shapes, row.Output)
	}
	tr.Do("load", t.load)
	var last *tracker.Section
	for range max(1, steps) {
		last = tr.Do("step", func() { t.step(batch) })
	}
	if t.err != nil {
		return t.err
	}

	profile := tr.Profile()
	if err := profile.SetEstimates(want); err != nil {
		return err
	}
	if by == "tree" {
		fmt.Fprintln(out, profile.Tree())
	} else {
		sorted, _ := profile.Sorted(by) // a column, as we know
		fmt.Fprintln(out, sorted)
	}
	fmt.Fprintf(out, "\nThe last step:\n\n%s\n%v\n", last.Data().Table(), last.Data())
	if err := t.close(); err != nil {
		return err
	}
	if leaks := tr.Leaks(); len(leaks) > 0 {
		return fmt.Errorf("the example leaks: %v", leaks)
	}
	return nil
}
