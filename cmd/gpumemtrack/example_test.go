package main

import (
	"bytes"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// Two real processes: a Go program takes memory through the emulated driver and
// says how much it was; the recorder, from outside, has seen as much. The pause
// is long enough for two looks at the process's memory.
func TestRecordsTheExample(t *testing.T) {
	dir := t.TempDir()
	example := filepath.Join(dir, "example")
	out, err := exec.Command("go", "build", "-o", example, "github.com/gpumemtrack/gpumemtrack/examples/record").CombinedOutput()
	require.NoError(t, err, "%s", out)

	samples := filepath.Join(dir, "run.csv")
	cmd := program(t, "record", "--interval", "20ms", "-o", samples, "--", example, "-dir", dir, "-pause", "600ms")
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Run(), "%s", &stderr)

	own := regexp.MustCompile(`Emulated GPU\[0\] -> memory used: min=\S+ / max=([\d.]+)\[MB\]`).FindStringSubmatch(stdout.String())
	require.NotNil(t, own, stdout.String())
	megabytes, err := strconv.ParseFloat(own[1], 64)
	require.NoError(t, err)
	const atLeast = 2*384<<20 + 256<<20 // two batches and its context
	assert.GreaterOrEqual(t, megabytes*1e6, float64(atLeast))

	rec, err := nvml.ReadFile(samples)
	require.NoError(t, err)
	for _, q := range []nvml.Quantity{nvml.ProcessMemory, nvml.MemoryUsed} {
		assert.InDelta(t, megabytes*1e6, rec.Of(q)[0].Max(), 0.5, q)
	}
	assert.FileExists(t, filepath.Join(dir, "memory.png"), "the example's own chart")
}

// gorgonia.org/cu ends a program from its init where no device answers: the program must not
// link it, whatever tag it is built with.
func TestLinksNoGorgonia(t *testing.T) {
	out, err := exec.Command("go", "list", "-tags", "cuda", "-deps", ".").Output()
	require.NoError(t, err)
	require.Contains(t, string(out), "github.com/gpumemtrack/gpumemtrack/alloc/cuda\n")
	require.NotContains(t, string(out), "gorgonia.org/cu")
}
