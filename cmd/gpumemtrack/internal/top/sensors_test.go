package top

import (
	"encoding/json"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// What scripts read keeps its keys, each with its unit.
func TestJSONKeys(t *testing.T) {
	list := []nvml.Reading{{Device: nvml.Device{Index: 1, UUID: "MIG-a", Name: "A", BusID: "0:1", Parent: "GPU-b", MIG: 2}}}
	list[0].Set(nvml.MemoryUsed, 5)
	list[0].Err = nvml.ErrLost
	text, err := json.Marshal(sensorsJSON("NVML", list))
	require.NoError(t, err)
	assert.JSONEq(t, `{"schema": "gpumemtrack.sensors/1", "source": "NVML", "devices": [{
		"index": 1, "uuid": "MIG-a", "name": "A", "bus_id": "0:1", "parent": "GPU-b", "mig": 2, "error": "the GPU is lost",
		"memory_scope": "device", "memory_used_bytes": 5, "memory_free_bytes": null, "memory_total_bytes": null,
		"driver_reserved_bytes": null, "utilization_percent": null, "power_watts": null, "temperature_celsius": null,
		"fan_speed_percent": null, "graphics_clock_megahertz": null, "memory_clock_megahertz": null,
		"sm_clock_megahertz": null, "video_clock_megahertz": null}]}`, string(text))
}

// More GPUs than the screen has lines for: none of them scrolls away.
func TestSensorsInALowTerminal(t *testing.T) {
	list := make([]nvml.Reading, 8)
	for i := range list {
		list[i].Index, list[i].Name = i, "H200"
		for _, q := range []nvml.Quantity{nvml.ClockGraphics, nvml.ClockMemory, nvml.ClockSM, nvml.ClockVideo} {
			list[i].Set(q, 1980)
		}
	}
	tall := sensorsTable(list, cli.Screen{Width: 120, Height: 50})
	assert.Contains(t, tall, "Video:  1980")
	low := sensorsTable(list, cli.Screen{Width: 120, Height: 20})
	assert.NotContains(t, low, "Video")
	assert.Contains(t, low, "SM: 1980")
	assert.Equal(t, 12, strings.Count(low, "\n"), low)
	least := sensorsTable(list, cli.Screen{Width: 120, Height: 8})
	assert.Equal(t, 7, strings.Count(least, "\n"), least)
	assert.Contains(t, least, "GPU[2]")
	assert.Contains(t, least, "… 6 more lines\n")
	assert.Equal(t, tall, sensorsTable(list, cli.Screen{}), "no limit")
}
