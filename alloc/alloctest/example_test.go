package alloctest_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/alloctest"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

// A test of a program's own device, here the simulated one. It is compiled and not run, because an example has no *testing.T;
// examples/hip has such a test, which runs.
func ExampleDevice() {
	test := func(t *testing.T) {
		alloctest.Device(t, func(t *testing.T) alloc.Device {
			device, err := sim.New(sim.Config{Memory: alloc.GiB})
			require.NoError(t, err)
			t.Cleanup(func() { device.Close() })
			return device
		})
	}
	_ = test // go test calls it, under a name such as TestDevice
}
