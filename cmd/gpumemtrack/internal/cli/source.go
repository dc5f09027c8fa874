package cli

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// MinInterval is the shortest time between two samples: an nvml.Recorder accepts no less.
const MinInterval = 10 * time.Millisecond

// AddSourceFlag adds the flag that says where values come from.
func AddSourceFlag(cmd *cobra.Command, source *string) {
	cmd.Flags().StringVar(source, "source", "auto",
		"`WHERE` values come from: auto, nvml (the driver's library), smi (the nvidia-smi program), drm (the kernel's files of AMD and Intel GPUs) or sim (a simulated GPU)")
	Complete(cmd, "source", "auto", "nvml", "smi", "drm", "sim")
}

// OpenSource opens the source that --source names. Without the flag, GPUMEMTRACK_DEVICE=sim selects
// the simulated GPU, as for trackers.
func OpenSource(name string) (nvml.Source, error) {
	if name == "auto" && os.Getenv("GPUMEMTRACK_DEVICE") == "sim" {
		name = "sim"
	}
	switch name {
	case "auto":
		return withHint(nvml.Open())
	case "nvml", "smi", "drm":
		return withHint(nvml.Open(name))
	case "sim":
		gpu, err := sim.New(sim.Config{})
		if err != nil {
			return nil, err
		}
		return nvml.FromDevices(gpu), nil
	}
	return nil, UsageError("--source %s: want auto, nvml, smi, drm or sim", name)
}

func withHint(src nvml.Source, err error) (nvml.Source, error) {
	if errors.Is(err, nvml.ErrNotAvailable) {
		err = fmt.Errorf("%w (--source sim or GPUMEMTRACK_DEVICE=sim shows a simulated GPU)", err)
	}
	return src, err
}

// CloseSoon closes a source, but does not wait for a driver that hangs.
func CloseSoon(src nvml.Source) {
	AtMost(100*time.Millisecond, func() { src.Close() })
}

// AtMost calls a function, and returns when the function does or the time is over.
func AtMost(longest time.Duration, do func()) {
	done := make(chan struct{})
	go func() {
		do()
		close(done)
	}()
	select {
	case <-done:
	case <-time.After(longest):
	}
}
