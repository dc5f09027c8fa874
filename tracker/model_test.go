package tracker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/trackertest"
)

func TestSimulatedGPU(t *testing.T) {
	trackertest.Run(t, func(t *testing.T) trackertest.Rig {
		device, err := sim.New(sim.Config{Memory: alloc.GiB})
		require.NoError(t, err)
		return trackertest.Rig{
			Device:    device,
			FailAlloc: func() { device.Inject(sim.Fault{Op: sim.OpAlloc}) },
			FailFree:  func() { device.Inject(sim.Fault{Op: sim.OpFree}) },
			Heal:      device.ClearFaults,
		}
	})
}
