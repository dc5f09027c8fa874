package demo

import (
	"errors"
	"io"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// vgg19 is the program that the demo watches. It allocates what gpu_mem_track's example allocates,
// and tracks after each step. It is written as a user would write it, since the report names its
// lines.
func vgg19(gpu alloc.Device, dir string, pause time.Duration, report io.Writer) (err error) {
	tr, err := tracker.New(tracker.Config{Device: gpu, Dir: dir, Report: report})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, tr.Close()) }()

	tr.Track()
	time.Sleep(pause)

	if err := loadFeatures(tr); err != nil {
		return err
	}
	tr.Track()
	time.Sleep(pause)

	_, err1 := tr.Alloc(alloc.Shape{30, 3, 512, 512}, alloc.Float32, tracker.Input)      // 90 MiB
	second, err2 := tr.Alloc(alloc.Shape{40, 3, 512, 512}, alloc.Float32, tracker.Input) // 120 MiB
	_, err3 := tr.Alloc(alloc.Shape{60, 3, 512, 512}, alloc.Float32, tracker.Input)      // 180 MiB
	if err := errors.Join(err1, err2, err3); err != nil {
		return err
	}
	tr.Track()
	time.Sleep(pause)

	fourth, err4 := tr.Alloc(alloc.Shape{120, 3, 512, 512}, alloc.Float32, tracker.Input) // 360 MiB
	_, err5 := tr.Alloc(alloc.Shape{80, 3, 512, 512}, alloc.Float32, tracker.Input)       // 240 MiB
	if err := errors.Join(err4, err5); err != nil {
		return err
	}
	tr.Track()
	time.Sleep(pause)

	if err := errors.Join(fourth.Free(), second.Free()); err != nil {
		return err
	}
	if _, err := tr.ClearCache(); err != nil {
		return err
	}
	tr.Track()
	time.Sleep(pause)
	return nil // the device goes, with what is left on it
}

// loadFeatures allocates the weights and biases of VGG19's sixteen convolutions.
func loadFeatures(tr *tracker.MemTracker) error {
	in := 3
	for _, out := range []int{64, 64, 128, 128, 256, 256, 256, 256, 512, 512, 512, 512, 512, 512, 512, 512} {
		_, err1 := tr.Alloc(alloc.Shape{out, in, 3, 3}, alloc.Float32, tracker.Parameter)
		_, err2 := tr.Alloc(alloc.Shape{out}, alloc.Float32, tracker.Parameter)
		if err := errors.Join(err1, err2); err != nil {
			return err
		}
		in = out
	}
	return nil
}
