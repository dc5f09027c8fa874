package tracker_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/trackertest"
)

func TestSimulatedGPU(t *testing.T) {
	trackertest.Run(t, func(t *testing.T) trackertest.Rig {
		device, err := cachetest.NewDevice(sim.Config{Memory: alloc.GiB})
		require.NoError(t, err)
		return trackertest.Rig{
			Device:    device,
			FailAlloc: func() { device.Inject(sim.Fault{Call: "Alloc"}) },
			FailFree:  func() { device.Inject(sim.Fault{Call: "Free"}) },
			Heal:      func() { device.Inject() },
		}
	})
}

func TestStreamPrograms(t *testing.T) {
	trackertest.Streams(t, []alloc.Stream{0, 1, 2, 0x7f0000001000}, func(t require.TestingT) (cachetest.StreamDevice, func()) {
		device, err := cachetest.NewDevice(sim.Config{Memory: 96 * alloc.MiB, Overhead: -1, CheckReuse: true})
		require.NoError(t, err)
		return cachetest.Simulated{Device: device}, func() { _ = device.Close() }
	})
}
