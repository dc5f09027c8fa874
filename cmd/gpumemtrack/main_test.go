package main

import (
	"bytes"
	"encoding/json"
	"maps"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

func TestEveryCommandHasAnExample(t *testing.T) {
	for _, cmd := range (&app{}).root(nil).Commands() {
		assert.NotEmpty(t, cmd.Example, cmd.Name())
		assert.NotEmpty(t, cmd.Short, cmd.Name())
	}
}

// What scripts read keeps its keys, each with its unit.
func TestJSONKeys(t *testing.T) {
	list := []nvml.Status{{Device: nvml.Device{Index: 1, UUID: "MIG-a", Name: "A", BusID: "0:1", Parent: "GPU-b", MIG: 2}}}
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

	var stdout, stderr bytes.Buffer
	require.Zero(t, run([]string{"estimate", "gpt2", "--json", "--fits", "24GiB"}, nil, &stdout, &stderr), stderr.String())
	var estimated map[string]any
	require.NoError(t, json.Unmarshal(stdout.Bytes(), &estimated))
	assert.ElementsMatch(t, []string{"schema", "mode", "peak_bytes", "peak_upper_bytes", "reserved_bytes", "device_bytes", "device_upper_bytes", "needed_upper_bytes", "host_bytes", "budget_bytes", "fits", "report"},
		slices.Collect(maps.Keys(estimated)))
	for _, key := range []string{"name", "inputs", "params", "buffers", "inference", "training", "layers", "notes"} {
		assert.Contains(t, estimated["report"], key)
	}
}

func TestLiveLine(t *testing.T) {
	var stdout, stderr bytes.Buffer
	dir := t.TempDir()
	require.Zero(t, run([]string{"record", "--source", "sim", "--duration", "50ms", "--interval", "10ms", "-o", filepath.Join(dir, "a.jsonl")}, nil, &stdout, &stderr), stderr.String())
	rec, err := nvml.ReadFile(filepath.Join(dir, "a.jsonl"))
	require.NoError(t, err)
	assert.Regexp(t, `^0s  GPU 0 memory used: 450\.0 MiB now, 450\.0 MiB peak █+$`, liveLine(rec))
	assert.Equal(t, "GPU 0 mem…", fit("GPU 0 memory used", 11))
	assert.Equal(t, "▁▄█", sparkline([]float64{0, 5, 10}))
	assert.Equal(t, "▁", sparkline([]float64{0}))
	assert.Equal(t, "a\x1b", paint("a\x1b", bold, false))
	assert.Equal(t, bold+"a"+plain, paint("a", bold, true))
}

// gorgonia.org/cu ends a program from its init where no device answers: the program must not
// link it, whatever tag it is built with.
func TestLinksNoGorgonia(t *testing.T) {
	out, err := exec.Command("go", "list", "-tags", "cuda", "-deps", ".").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "github.com/gpumemtrack/gpumemtrack/alloc/cuda\n")
	require.NotContains(t, string(out), "gorgonia.org/cu")
}
