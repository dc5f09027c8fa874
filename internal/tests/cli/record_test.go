package cli_test

import (
	"bytes"
	"fmt"
	"image/png"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

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
	assert.Equal(t, float64(memory), seriesOf(rec, nvml.ProcessMemory).Max())
	assert.Equal(t, float64(memory), seriesOf(rec, nvml.MemoryUsed).Max())
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
	seen := waitFor(func() bool { return strings.Count(readGlob(samples), "\n") > 30 }) // samples, gaps and what begins the file
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
		assert.InDelta(t, megabytes*1e6, seriesOf(rec, q).Max(), 0.5, q)
	}
	assert.FileExists(t, filepath.Join(dir, "memory.png"), "the example's own chart")
}

// An nvidia-smi that hangs for five minutes holds up neither the command's end nor a hangup.
func TestRecordWithADriverThatHangs(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("needs a shell script")
	}
	dir := t.TempDir()
	const smi = `#!/bin/sh
case $1 in
*driver_version) echo "0, 570.1" ;;
*name) echo "0, GPU-a, 0000:0B:00.0, [N/A], Fake" ;;
*) exec sleep 300 ;;
esac
`
	require.NoError(t, os.WriteFile(filepath.Join(dir, "nvidia-smi"), []byte(smi), 0o755))
	for name, args := range map[string][]string{
		"a command":  {"--", "sh", "-c", "sleep 0.3; exit 5"},
		"a duration": {"--duration", "300ms"},
		"a hangup":   nil,
	} {
		t.Run(name, func(t *testing.T) {
			if args == nil && signal.Ignored(syscall.SIGHUP) {
				t.Skip("hangups are ignored here, as under nohup, and so they are by record")
			}
			samples := filepath.Join(t.TempDir(), "a.jsonl")
			cmd := exec.CommandContext(t.Context(), program, append([]string{"record", "--source", "smi", "-o", samples}, args...)...)
			cmd.Env = append(os.Environ(), "PATH="+dir+string(os.PathListSeparator)+os.Getenv("PATH"))
			cmd.Env = append(cmd.Env, "CUDA_VISIBLE_DEVICES=0")
			var out bytes.Buffer
			cmd.Stdout, cmd.Stderr = &out, &out
			begin := time.Now()
			require.NoError(t, cmd.Start())
			if args == nil {
				require.NoError(t, waitFor(func() bool { return readGlob(samples) != "" }))
				require.NoError(t, cmd.Process.Signal(syscall.SIGHUP))
			}
			err := cmd.Wait()
			assert.Less(t, time.Since(begin), 4*time.Minute)
			assert.Equal(t, map[string]int{"a command": 5}[name], cmd.ProcessState.ExitCode(), "%v", err)
			assert.Contains(t, out.String(), "the driver has not answered for ")
			assert.Contains(t, out.String(), "samples: ")
		})
	}
}

// seriesOf returns the first series of a quantity.
func seriesOf(rec nvml.Recording, q nvml.Quantity) nvml.Series {
	return rec.Series[slices.IndexFunc(rec.Series, func(s nvml.Series) bool { return s.Quantity == q })]
}
