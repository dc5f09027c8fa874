//go:build cgo && linux

package nvml

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
)

// TestBothWaysAnswerAlike asks one library through go-nvml, as a program with cgo does, and
// directly, as one without.
func TestBothWaysAnswerAlike(t *testing.T) {
	for name, options := range map[string]gpuemu.Options{
		"today's": {Devices: 2},
		"old":     {OldDriver: true},
		"WSL":     {Processes: gpuemu.UnsizedProcesses, MemoryInfo: gpuemu.OnlyV1},
		"Jetson":  {MemoryInfo: gpuemu.NoMemoryInfo, Processes: gpuemu.HiddenProcesses},
	} {
		t.Run(name, func(t *testing.T) {
			if gpuemu.Rerun(t, options) {
				return
			}
			dev, err := cuda.Open(0) // makes this process one that uses the GPU
			require.NoError(t, err)
			defer dev.Close()
			var answers [2][]any
			for i, load := range []func(string) (api, map[string]bool, error){load, loadDirectly} {
				api, present, err := load("libnvidia-ml.so.1")
				require.NoError(t, err)
				lib, err := newLibrary(api, present)
				require.NoError(t, err)
				devices, err := lib.Devices()
				require.NoError(t, err)
				readings := make([]Reading, len(devices))
				lib.Read(devices, (allSet &^ hostQuantities(options)).list(), readings)
				running, err := lib.Processes(devices[0])
				busy, busyErr := lib.busy(devices[0])
				answers[i] = []any{present, lib.Name(), devices, readings, running, err, busy, busyErr}
				require.NoError(t, lib.Close())
			}
			require.Equal(t, answers[0], answers[1])
		})
	}
}

// hostQuantities is the quantities that a machine gives of its host, which change meanwhile.
func hostQuantities(o gpuemu.Options) quantitySet {
	if o.MemoryInfo == gpuemu.NoMemoryInfo {
		return memoryQuants
	}
	return 0
}
