package alloctest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/alloctest"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

// bare is a device that has no more than the methods of alloc.Device.
type bare struct{ alloc.Device }

// TestDevice tests a device that has no more than the 64 MiB that Device asks for.
func TestDevice(t *testing.T) {
	open := func(t *testing.T) alloc.Device {
		device, err := sim.New(sim.Config{Memory: 64 * alloc.MiB, Overhead: -1})
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, device.Close()) })
		return bare{device}
	}
	alloctest.Device(t, open)
	alloctest.SharedDevice(t, open)
}
