//go:build linux

package tracker_test

import (
	"bytes"
	"log/slog"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// TestDeviceOfAConfigThatNamesNone looks at the same binary on machines with two GPUs, with none
// and without a driver.
func TestDeviceOfAConfigThatNamesNone(t *testing.T) {
	two, none := gpuemu.Options{Devices: 2}, gpuemu.Options{Devices: -1}
	noDriver := "LD_LIBRARY_PATH=" + t.TempDir()
	full := gpuemu.Options{Memory: 1 << 20} // no room for a context
	for _, test := range []struct {
		name    string
		options gpuemu.Options
		env     []string
		device  string // the report's first line has it
		err     error
		text    string // of the error
		log     string
	}{
		{name: "GPU", options: two, device: "Emulated GPU [0]"},
		{name: "second GPU", options: two, env: []string{"GPUMEMTRACK_DEVICE=1"}, device: "Emulated GPU [1]"},
		{name: "sim on a machine with a GPU", options: two, env: []string{"GPUMEMTRACK_DEVICE=sim"}, device: "Simulated GPU [0]"},
		{name: "GPU that is not there", options: two, env: []string{"GPUMEMTRACK_DEVICE=2"}, err: cuda.ErrNoGPU},
		{name: "no number", options: two, env: []string{"GPUMEMTRACK_DEVICE=gpu"}, text: `GPUMEMTRACK_DEVICE is "gpu": want "sim"`},
		{name: "full GPU", options: full, err: alloc.ErrOutOfMemory},
		{name: "no GPU", options: none, device: "Simulated GPU [0]", log: "no such CUDA device is visible to this process"},
		{name: "no driver", options: two, env: []string{noDriver}, device: "Simulated GPU [0]", log: "no NVIDIA driver: the library of CUDA's driver cannot be loaded"},
		{name: "no driver where a GPU is asked for", options: two, env: []string{noDriver, "GPUMEMTRACK_DEVICE=0"}, err: cuda.ErrNoGPU},
	} {
		t.Run(test.name, func(t *testing.T) {
			if _, err := cuda.Devices(); err == nil && !gpuemu.Emulated() && slices.Contains(test.env, noDriver) {
				t.Skip("a real driver would be found, whatever is searched first")
			}
			if gpuemu.Rerun(t, test.options, test.env...) {
				return
			}
			var report, log bytes.Buffer
			logger := slog.New(slog.NewTextHandler(&log, nil))
			tr, err := tracker.New(tracker.Config{Report: &report, Logger: logger})
			if test.device == "" {
				if test.err != nil {
					require.ErrorIs(t, err, test.err)
				}
				require.ErrorContains(t, err, test.text)
				return
			}
			require.NoError(t, err)
			require.NoError(t, tr.Close())
			first, _, _ := strings.Cut(report.String(), "\n")
			require.Contains(t, first, test.device)

			again, err := tracker.New(tracker.Config{Report: &report, Logger: logger})
			require.NoError(t, err)
			require.NoError(t, again.Close())
			if test.log == "" {
				require.Empty(t, log.String())
			} else {
				require.Contains(t, log.String(), test.log)
				require.Equal(t, 1, strings.Count(log.String(), "\n"), "once: %s", &log)
			}
		})
	}
}
