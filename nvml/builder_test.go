package nvml

import (
	"math"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// TestBuilder: series by device and process, gaps, the capacity, and time that goes back.
func TestBuilder(t *testing.T) {
	var b Builder
	second := Reading{Device: Device{Index: 1}}
	second.Set(MemoryUsed, 5)
	require.NoError(t, b.Add(0, &second, Target{}))
	first := Reading{Device: Device{Index: 0}}
	first.Set(MemoryUsed, 7)
	first.Set(MemoryTotal, 100)
	require.NoError(t, b.Add(time.Second, &first, Target{}, Power))
	for _, pid := range []int{9, 8} {
		process := Reading{Device: first.Device}
		process.Set(ProcessMemory, float64(pid))
		require.NoError(t, b.Add(time.Second, &process, Target{PID: pid}))
	}
	require.ErrorContains(t, b.Add(0, &first, Target{}), "the time of GPU 0 goes back from 1s to 0s")
	assert.Equal(t, "2 devices, 5 series", b.String())

	rec := b.Recording("a log", time.Unix(5, 0))
	var labels []string
	for _, s := range rec.Series {
		labels = append(labels, s.Label())
	}
	assert.Equal(t, []string{"GPU 0 memory used", "GPU 0 pid 8", "GPU 0 pid 9", "GPU 0 power", "GPU 1 memory used"}, labels)
	assert.Equal(t, alloc.Bytes(100), rec.Series[0].Capacity)
	assert.Equal(t, 1, rec.Series[3].Gaps())
	assert.True(t, math.IsNaN(rec.Series[3].Max()))
	assert.Equal(t, "a log", rec.Source)
}

// TestBuilderIsBounded: there are no more devices and processes than a machine has.
func TestBuilderIsBounded(t *testing.T) {
	var b Builder
	for i := range maxDevices {
		require.NoError(t, b.Add(0, &Reading{Device: Device{Index: i}}, Target{}, MemoryUsed))
	}
	require.ErrorIs(t, b.Add(0, &Reading{Device: Device{Index: maxDevices}}, Target{}, MemoryUsed), ErrTooMany)
	for i := range maxProcesses {
		require.NoError(t, b.Add(0, &Reading{}, Target{PID: i + 1}, ProcessMemory))
	}
	require.ErrorIs(t, b.Add(0, &Reading{}, Target{PID: maxProcesses + 1}, ProcessMemory), ErrTooMany)
}
