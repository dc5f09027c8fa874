package cli_test

import (
	"bytes"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// Two real processes: what is recorded is the other's memory, to the byte.
func TestRecordsAnotherProcessesMemory(t *testing.T) {
	dir := t.TempDir()
	if err := buildAlloc(dir); err != nil {
		t.Skip(err)
	}
	samples, chart := filepath.Join(dir, "run.jsonl"), filepath.Join(dir, "run.png")
	cmd := emulated(t, "record", "--interval", "20ms", "-o", samples, "-o", chart, "--", filepath.Join(dir, "alloc"), "1073741824", "7")
	stdin, err := cmd.StdinPipe()
	require.NoError(t, err)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	require.NoError(t, cmd.Start())
	const memory = 1<<30 + 256<<20 // and its context
	expected := fmt.Sprintf(`"process_memory_bytes":%d`, memory)
	seen := waitFor(func() bool { return strings.Contains(readGlob(samples), expected) })
	require.NoError(t, stdin.Close())
	err = cmd.Wait()
	require.NoError(t, seen, stderr.String())
	assert.Equal(t, 7, cmd.ProcessState.ExitCode(), "the command's: %v", err)
	assert.Equal(t, "ready\n", stdout.String(), "its output is its own")

	rec, err := nvml.ReadFile(samples)
	require.NoError(t, err)
	assert.Equal(t, float64(memory), rec.Of(nvml.ProcessMemory)[0].Max())
	assert.Equal(t, float64(memory), rec.Of(nvml.MemoryUsed)[0].Max())
	assert.Contains(t, stderr.String(), "1.2 GiB")
	assert.NotContains(t, stderr.String(), "\r", "no live line in a pipe")
	f, err := os.Open(chart)
	require.NoError(t, err)
	defer f.Close()
	_, err = png.Decode(f)
	assert.NoError(t, err)
}

// A recorder that is killed leaves a file that opens and charts.
func TestKilledRecorder(t *testing.T) {
	dir := t.TempDir()
	samples := filepath.Join(dir, "killed.jsonl")
	cmd := emulated(t, "record", "--interval", "10ms", "-o", samples)
	require.NoError(t, cmd.Start())
	seen := waitFor(func() bool { return strings.Count(readGlob(samples), "\n") > 10 })
	require.NoError(t, cmd.Process.Kill())
	cmd.Wait()
	require.NoError(t, seen)
	rec, err := nvml.ReadFile(samples)
	require.NoError(t, err)
	assert.GreaterOrEqual(t, rec.Series[0].Len(), 9)
	out, err := exec.Command(program, "chart", samples).CombinedOutput()
	require.NoError(t, err, "%s", out)
	assert.FileExists(t, filepath.Join(dir, "killed.png"))
}

// Two real processes: a Go program takes memory through the emulated driver and
// says how much it was; the recorder, from outside, has seen as much. The pause
// is long enough for two looks at the process's memory.
func TestRecordsTheExample(t *testing.T) {
	dir := t.TempDir()
	example := filepath.Join(dir, "example")
	require.NoError(t, build(example, "./examples/record"))

	samples := filepath.Join(dir, "run.csv")
	cmd := emulated(t, "record", "--interval", "20ms", "-o", samples, "--", example, "-dir", dir, "-pause", "600ms")
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
