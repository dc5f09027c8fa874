package readme_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"testing"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/nvml/chart"
	"github.com/gpumemtrack/gpumemtrack/nvml/recordings"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/gpumemtest"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
)

// What follows is the pages' code, line by line, so that it compiles.

var _ = func() error {
	device, err := sim.New(sim.Config{Memory: 64 * alloc.MiB})
	if err != nil {
		return err
	}
	tr, err := tracker.New(tracker.Config{Device: device})
	if err != nil {
		return err
	}
	_, err = tr.Alloc(alloc.Shape{100, 1 << 20}, alloc.Uint8, tracker.Activation) // 100 MiB: alloc.ErrOutOfMemory
	return err
}

var _ = func(tr *tracker.MemTracker, compute, transfer alloc.Stream) error {
	x, err := tr.AllocOn(compute, alloc.Shape{32, 3, 224, 224}, alloc.Float32, tracker.Input)
	if err != nil {
		return err
	}
	err = x.RecordStream(transfer)
	if err != nil {
		return err
	}
	err = x.Free()
	return err
}

var _ = func() error {
	vgg19, err := zoo.ByName("vgg19")
	if err != nil {
		return err
	}
	report, err := estimate.Model(vgg19.Layers, estimate.InputShape(32, 3, 224, 224), estimate.Train("adam"))
	fmt.Println(report, report.Fits(24*alloc.GiB))
	return err
}

var _ = func(ctx context.Context, train func(context.Context) error) error {
	rec, err := nvml.NewRecorder(nvml.Config{})
	if err != nil {
		return err
	}
	err = rec.Record(ctx, train)
	if err != nil {
		return err
	}
	err = chart.WriteFile("memory.png", false, rec.Recording().Series, chart.Config{}) // or .svg, .html
	return err
}

var _ = func(ctx context.Context, tr *tracker.MemTracker, forward func(), load func() error, group interface{ Go(func() error) }) {
	s := tr.Do("forward", forward)
	fmt.Print(s.Data().Table())
	step := tr.Section("step")
	defer step.End()
	group.Go(step.Bind(load)) // an errgroup.Group: what load allocates counts for step

	ctx, request := tr.SectionContext(ctx, "request")
	defer request.End()
	go func() {
		_, part := tr.SectionContext(ctx, "decode") // "request/decode"
		defer part.End()
	}()

	http.Handle("/debug/gpumem/", live.Handler(tr))
	go http.ListenAndServe("localhost:6061", nil)
}

var _ = func(tr *tracker.MemTracker) {
	mux := http.NewServeMux()
	mux.Handle("/debug/gpumem/", live.Handler(tr, "trainer-0.example.com"))
	go http.ListenAndServe("10.0.0.7:6061", mux)

	for _, suspect := range tr.Suspects() {
		fmt.Println(suspect)
	}
}

var _ = func(dev cuda.Device, tr *tracker.MemTracker, n alloc.Bytes, shape alloc.Shape) error {
	pinned := dev.Pinned(cuda.PinnedConfig{})
	p, err := pinned.Alloc(n)
	if err != nil {
		return err
	}
	err = tr.Register(p, pinned.Memory(), shape, alloc.Float32, tracker.Input)
	// ...
	if err != nil {
		return err
	}
	putBack, err := tr.Unregister(p)
	// ...
	if err != nil {
		return err
	}
	if err := pinned.Free(p); err != nil {
		return errors.Join(err, putBack()) // it is still there, so the ledger has it again
	}
	return nil
}

var _ = func() (nvml.Recording, error) {
	file, err := recordings.ReadFile("gpu.csv", recordings.Config{})
	if err != nil {
		return nvml.Recording{}, err
	}
	return file.Recording, nil
}

func TestStep(t *testing.T) {
	tr := gpumemtest.New(t, gpumemtest.Config{MaxPeak: 24 * alloc.MiB})
	// ...
	tr.Track()
}

func TestMain(m *testing.M) { gpumemtest.VerifyTestMain(m) } // or once, for all tests of a package
