package nvml

import (
	"errors"
	"math"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/cache"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
)

func environment(vars map[string]string) func(string) (string, bool) {
	return func(name string) (string, bool) { v, ok := vars[name]; return v, ok }
}

func TestVisibleDevices(t *testing.T) {
	devices := []Device{
		{Index: 0, UUID: "GPU-aaaa1111-0000", Name: "A"},
		{Index: 0, UUID: "MIG-cccc3333-0000", Name: "A MIG", Parent: "GPU-aaaa1111-0000", MIG: 1},
		{Index: 1, UUID: "GPU-aaaa2222-0000", Name: "A"},
		{Index: 2, UUID: "GPU-bbbb1111-0000", Name: "A"},
	}
	tests := []struct {
		list string
		want []string
	}{
		{"0", []string{"GPU 0"}},
		{"2,0", []string{"GPU 2", "GPU 0"}},
		{" 1 , 2 ", []string{"GPU 1", "GPU 2"}},
		{"", nil},
		{"-1", nil},
		{"1,-1,2", []string{"GPU 1"}},
		{"1,9,2", []string{"GPU 1"}},
		{"1,1", nil},
		{"GPU-aaaa2222-0000,MIG-cccc3333-0000", []string{"GPU 1", "GPU 0 MIG 1"}},
		{"GPU-bbbb", []string{"GPU 2"}},
		{"GPU-aaaa", nil}, // of two
		{"gpu-BBBB", []string{"GPU 2"}},
	}
	for _, test := range tests {
		t.Run(test.list, func(t *testing.T) {
			visible, err := Visible(devices, environment(map[string]string{"CUDA_VISIBLE_DEVICES": test.list}))
			require.NoError(t, err)
			var labels []string
			for _, d := range visible {
				labels = append(labels, d.Label())
			}
			assert.Equal(t, test.want, labels)
		})
	}
	all, err := Visible(devices, environment(nil))
	require.NoError(t, err)
	assert.Equal(t, devices, all)
}

func TestNumbersOfDifferentGPUsNeedAnOrder(t *testing.T) {
	devices := []Device{{Index: 0, UUID: "GPU-0", Name: "slow"}, {Index: 1, UUID: "GPU-1", Name: "fast"}}
	_, err := Visible(devices, environment(map[string]string{"CUDA_VISIBLE_DEVICES": "0"}))
	assert.ErrorContains(t, err, "set CUDA_DEVICE_ORDER=PCI_BUS_ID")
	visible, err := Visible(devices, environment(map[string]string{"CUDA_VISIBLE_DEVICES": "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}))
	require.NoError(t, err)
	assert.Equal(t, devices[1:], visible)
	visible, err = Visible(devices, environment(map[string]string{"CUDA_VISIBLE_DEVICES": "GPU-1"}))
	require.NoError(t, err)
	assert.Equal(t, devices[1:], visible)
}

// Numbers count in an order that CUDA is asked for, and never in the driver's.
func TestOrdinalsAreMatchedByUUID(t *testing.T) {
	devices := []Device{{Index: 0, UUID: "GPU-00aa"}, {Index: 1, UUID: "GPU-11bb"}, {Index: 2, UUID: "GPU-22cc"}}
	cuda := func(uuids ...string) func() ([]string, error) {
		return func() ([]string, error) { return uuids, nil }
	}
	t.Setenv("CUDA_VISIBLE_DEVICES", "0,1")
	t.Setenv("CUDA_DEVICE_ORDER", "FASTEST_FIRST")
	visible, known := visibleToCUDA(devices, cuda("22cc", "00aa"))
	assert.True(t, known)
	assert.Equal(t, []Device{devices[2], devices[0]}, visible)
	_, known = visibleToCUDA(devices, cuda("22cc", "33dd"))
	assert.False(t, known, "CUDA has devices that the source has not")
	_, known = visibleToCUDA(devices, func() ([]string, error) { return nil, errors.New("no CUDA") })
	assert.False(t, known)

	notAsked := func() ([]string, error) { t.Error("CUDA was asked"); return nil, nil }
	_, known = visibleToCUDA(devices[:1], notAsked)
	assert.False(t, known, "there is one only")
	t.Setenv("CUDA_DEVICE_ORDER", "PCI_BUS_ID")
	_, known = visibleToCUDA(devices, notAsked)
	assert.False(t, known)
	t.Setenv("CUDA_DEVICE_ORDER", "")
	t.Setenv("CUDA_VISIBLE_DEVICES", "GPU-11bb")
	_, known = visibleToCUDA(devices, notAsked)
	assert.False(t, known, "UUIDs need no order")
}

func TestOrdinalsAlongTheBus(t *testing.T) {
	devices := []Device{{Index: 0, UUID: "a", BusID: "00000000:81:00.0"}, {Index: 1, UUID: "b", BusID: "00000000:3B:00.0"}}
	visible, err := Visible(devices, environment(map[string]string{"CUDA_VISIBLE_DEVICES": "0", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}))
	require.NoError(t, err)
	assert.Equal(t, devices[1:], visible)
}

func TestByUUID(t *testing.T) {
	devices := []Device{{Index: 0, UUID: "GPU-ab12"}, {Index: 0, UUID: "MIG-ab13", Parent: "GPU-ab12", MIG: 1}}
	for _, name := range []string{"GPU-ab12", "ab12", "AB12", "gpu-ab12", "GPU-ab"} {
		d, err := byUUID(devices, name)
		require.NoError(t, err, name)
		assert.Equal(t, "GPU 0", d.Label(), name)
	}
	_, err := byUUID(devices, "ab")
	assert.ErrorContains(t, err, "that of 2 devices: write more of it")
	_, err = byUUID(devices, "")
	assert.ErrorIs(t, err, ErrNoDevice)
	_, err = pick(devices[:1], "3")
	assert.ErrorContains(t, err, "the only one is 0")
	_, err = pick(nil, "3")
	assert.ErrorContains(t, err, "there is none")
}

// The simulated GPU is a source, so that everything can be tried without one.
func TestOverASimulatedGPU(t *testing.T) {
	dev, err := sim.New(sim.Config{Ordinal: 1, Memory: 8 * alloc.GiB, Overhead: 256 * alloc.MiB})
	require.NoError(t, err)
	defer dev.Close()
	src := FromDevices(dev)
	p, err := dev.Alloc(alloc.GiB)
	require.NoError(t, err)

	list, err := readAll(src)
	require.NoError(t, err)
	require.Len(t, list, 1)
	assert.Equal(t, "Simulated GPU[1]", list[0].String())
	used, ok := list[0].bytes(MemoryUsed)
	assert.True(t, ok)
	assert.Equal(t, alloc.GiB+256*alloc.MiB, used)
	_, ok = list[0].Value(Temperature)
	assert.False(t, ok)
	own, err := MemoryOf(src, list[0].Device, self)
	require.NoError(t, err)
	assert.Equal(t, used, own)

	own, err = MemoryOf(FromDevices(cachetest.NewCache(t, dev, cache.Config{})), list[0].Device, self)
	require.NoError(t, err)
	assert.Equal(t, used, own, "under a cache too")

	require.NoError(t, dev.Free(p))
	dev.Inject(sim.Fault{Call: "MemInfo", Times: -1})
	list, err = readAll(src)
	require.NoError(t, err)
	assert.ErrorIs(t, list[0].Err, sim.ErrInjected)
	_, err = src.Processes(Device{UUID: "GPU-x"})
	assert.ErrorIs(t, err, ErrNoDevice)
	assert.Equal(t, "devices of this process", src.Name())
}

// CUDA has left these devices to the process already.
func TestOverIsWhatTheProcessSees(t *testing.T) {
	dev, err := sim.New(sim.Config{})
	require.NoError(t, err)
	defer dev.Close()
	t.Setenv("CUDA_VISIBLE_DEVICES", "3")
	visible, err := VisibleDevices(FromDevices(dev))
	require.NoError(t, err)
	assert.Len(t, visible, 1)
}

// A real device counts all processes together: what is this one's it cannot say.
func TestOverADeviceThatOthersUseToo(t *testing.T) {
	dev, err := sim.New(sim.Config{})
	require.NoError(t, err)
	defer dev.Close()
	src := FromDevices(struct{ alloc.Device }{dev}) // no simulated GPU, for all that one can see
	devices, err := src.Devices()
	require.NoError(t, err)
	_, err = MemoryOf(src, devices[0], self)
	assert.ErrorIs(t, err, errNoValue)
}

func TestWhatIsNoNumberIsMissing(t *testing.T) {
	var r Reading
	r.setMemory(1000, math.MaxUint64, 0, ofDevice)
	assert.Equal(t, setOf(MemoryTotal, MemoryFree), r.known)
}
