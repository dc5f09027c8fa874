package ledger

import (
	"os"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// TestDriverKnowsAProcessesDevices: the driver is asked for the devices as the process numbers them.
func TestDriverKnowsAProcessesDevices(t *testing.T) {
	dev, err := sim.New(sim.Config{})
	require.NoError(t, err)
	_, err = dev.Alloc(3 * alloc.MiB)
	require.NoError(t, err)
	info, err := dev.MemInfo()
	require.NoError(t, err)
	source := nvml.FromDevices(dev)
	devices, err := source.Devices()
	require.NoError(t, err)
	d := NewDriver(source)

	used, total, err := d.Memory(os.Getpid(), 0)
	require.NoError(t, err)
	assert.Equal(t, info.Total, total)
	assert.Equal(t, info.Total-info.Free, used)
	uuid, err := d.UUID(os.Getpid(), 0)
	require.NoError(t, err)
	assert.Equal(t, devices[0].UUID, uuid)
	held, err := d.Held(os.Getpid())
	require.NoError(t, err)
	assert.Equal(t, map[int]alloc.Bytes{0: used}, held)

	_, _, err = NewDriver(silent{source}).Memory(os.Getpid(), 0)
	assert.Equal(t, errUnknownUse, err)
	_, _, err = d.Memory(os.Getpid(), 1)
	assert.ErrorContains(t, err, "has no device 1")
	_, err = NewDriver(nil).Held(os.Getpid())
	assert.ErrorIs(t, err, ErrNoDriver)
}

// silent is a source that knows no values.
type silent struct{ nvml.Source }

func (silent) Read([]nvml.Device, []nvml.Quantity, []nvml.Reading) {}
