package memtrack_test

import (
	"fmt"
	"io"
	"testing"

	"github.com/gomlx/compute"
	"github.com/gomlx/gomlx/core/tensors"

	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	memtrack "github.com/gpumemtrack/gpumemtrack/contrib/gomlx"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

func ExampleWrap() {
	device, _ := sim.New(sim.Config{})
	tr, _ := tracker.New(tracker.Config{Device: device, Report: io.Discard})
	defer tr.Close()
	inner, err := compute.NewWithConfig("go")
	if err != nil {
		fmt.Println(err)
		return
	}

	backend := memtrack.Wrap(inner, tr)
	x := tensors.FromValue([]float32{1, 2, 3})
	if err := x.MaterializeOnDevice(backend, false, 0); err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(tr.LightSnapshot().Live)
	x.MustFinalizeAll()
	fmt.Println(tr.LightSnapshot().Live)
	// Output:
	// 1 buffer, 12 B
	// 0 buffers, 0 B
}

// TestTrackers is the page's: a tracker for each device, and a test without leaks.
func TestTrackers(t *testing.T) {
	inner, first, second := open(t, "go"), newTracker(t), newTracker(t)
	backend := memtrack.Wrap(inner, first, second)
	tr := first
	defer memtrack.VerifyNoLeaks(t, backend, leaks.Since(tr.Snapshot()))
	x := tensors.FromValue([]float32{1, 2, 3})
	x.MustMaterializeOnDevice(backend, false, 0)
	x.MustFinalizeAll()
}
