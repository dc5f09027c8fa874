// Vgg19 is the example of gpu_mem_track for PyTorch, in Go. It allocates the parameters of
// VGG-19's feature layers and five batches of images, frees two of them and clears the cache.
// After each step the tracker prints what was allocated and freed.
//
// It uses the first GPU, or the simulated one if there is none, and writes the report to a
// file as well.
package main

import (
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func main() {
	dir := flag.String("dir", ".", "directory of the report")
	flag.Parse()
	if err := run(*dir, os.Stdout); err != nil {
		log.Fatal(err)
	}
}

func run(dir string, out io.Writer) (err error) {
	tr, err := tracker.New(tracker.Config{Dir: dir, Report: out})
	if err != nil {
		return err
	}
	defer func() { err = cmp.Or(err, tr.Close()) }()

	tr.Track()
	if err := loadFeatures(tr); err != nil {
		return err
	}
	tr.Track()

	first, err := tr.Alloc(alloc.Shape{30, 3, 512, 512}, alloc.Float32, tracker.Unspecified) // 90 MiB
	if err != nil {
		return err
	}
	second, err := tr.Alloc(alloc.Shape{40, 3, 512, 512}, alloc.Float32, tracker.Unspecified) // 120 MiB
	if err != nil {
		return err
	}
	third, err := tr.Alloc(alloc.Shape{60, 3, 512, 512}, alloc.Float32, tracker.Unspecified) // 180 MiB
	if err != nil {
		return err
	}
	tr.Track()

	fourth, err := tr.Alloc(alloc.Shape{120, 3, 512, 512}, alloc.Float32, tracker.Unspecified) // 360 MiB
	if err != nil {
		return err
	}
	fifth, err := tr.Alloc(alloc.Shape{80, 3, 512, 512}, alloc.Float32, tracker.Unspecified) // 240 MiB
	if err != nil {
		return err
	}
	tr.Track()

	if err := errors.Join(fourth.Free(), second.Free()); err != nil {
		return err
	}
	returned, err := tr.ClearCache()
	if err != nil {
		return err
	}
	tr.Track()
	fmt.Fprintf(out, "\nClearing the cache gave %v back to the driver.\n", returned)
	return errors.Join(first.Free(), third.Free(), fifth.Free())
}

// loadFeatures allocates the weights and biases of VGG19's sixteen convolutions.
func loadFeatures(tr *tracker.MemTracker) error {
	in := 3
	for _, out := range []int{64, 64, 128, 128, 256, 256, 256, 256, 512, 512, 512, 512, 512, 512, 512, 512} {
		if _, err := tr.Alloc(alloc.Shape{out, in, 3, 3}, alloc.Float32, tracker.Parameter); err != nil {
			return err
		}
		if _, err := tr.Alloc(alloc.Shape{out}, alloc.Float32, tracker.Parameter); err != nil {
			return err
		}
		in = out
	}
	return nil
}
