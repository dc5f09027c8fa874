package cli

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// TestWarnings: what is true of several GPUs is said once.
func TestWarnings(t *testing.T) {
	var r Warnings
	assert.Empty(t, r.Lines())
	for i := range 16 {
		r.Add(nvml.Device{Index: i}, ": it is slow")
		if i != 3 && i%5 < 4 {
			r.Add(nvml.Device{Index: i}, ": it is hot")
		}
	}
	r.Add(nvml.Device{Index: 15}, ": it is slow")
	r.Add(nvml.Device{Index: 7}, " is gone")
	for i := range 2 {
		r.Add(nvml.Device{Index: 0, MIG: i, Parent: "GPU-1"}, " is small")
	}
	assert.Equal(t, []string{
		"GPU 0 to 15: it is slow", "GPU 0 to 2, 5 to 8, 10 to 13, 15: it is hot", "GPU 7 is gone", "GPU 0 MIG 0, GPU 0 MIG 1 is small",
	}, r.Lines())
	assert.Equal(t, "GPU 4, 5, GPU 5 MIG 0", labels([]nvml.Device{{Index: 4}, {Index: 5}, {Index: 5, Parent: "GPU-5"}}))
}
