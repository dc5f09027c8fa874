package inspect

import (
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/nvml/chart"
)

// TestSidesAreTheChartsOwn: the command refuses the sides that package chart refuses, before it reads a file.
func TestSidesAreTheChartsOwn(t *testing.T) {
	file := filepath.Join(t.TempDir(), "samples.jsonl")
	require.NoError(t, os.WriteFile(file, []byte(`{"schema":"gpumemtrack.recording/1","devices":[{"index":0,"uuid":"GPU-a"}]}
{"time_seconds":0,"device":0,"memory_used_bytes":1}
`), 0o600))
	rec, err := nvml.ReadFile(file)
	require.NoError(t, err)
	draw := func(width, height int) error {
		return chart.Write(io.Discard, ".svg", rec.Series, chart.Config{Width: width, Height: height})
	}
	require.NoError(t, draw(minPixels, maxPixels))
	require.Error(t, draw(minPixels-1, maxPixels))
	require.Error(t, draw(minPixels, maxPixels+1))
}

// TestChartOfOtherTools: one file, several, a pipe, and what cannot be drawn together.
func TestChartOfOtherTools(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(text), 0o600))
		return path
	}
	timed := write("gpu.csv", "timestamp, index, memory.used [MiB]\n2026/03/02 10:00:00.000, 0, 1024 MiB\n2026/03/02 10:00:01.000, 0, 2048 MiB\n")
	other := write("other.csv", "timestamp, index, memory.used [MiB]\n2026/03/02 10:00:00.500, 0, 512 MiB\n")
	untimed := write("untimed.log", "loss 1\nindex, memory.used [MiB]\n0, 5 MiB\n")

	out, errs, code := runs(t, "", "chart", timed)
	require.Equal(t, 0, code, errs)
	assert.Contains(t, out, "GPU 0 memory used")
	assert.Contains(t, out, "2.0 GiB")
	assert.FileExists(t, filepath.Join(dir, "gpu.png"))

	page := filepath.Join(dir, "both.html")
	out, errs, code = runs(t, "", "chart", timed, other, "-o", page)
	require.Equal(t, 0, code, errs)
	assert.Contains(t, out, "gpu.csv GPU 0 memory used")
	assert.Contains(t, out, "other.csv GPU 0 memory used")

	svg := filepath.Join(dir, "pipe.svg")
	_, errs, code = runs(t, "index, memory.used [MiB]\n0, 5 MiB\n", "chart", "-", "-o", svg)
	require.Equal(t, 0, code, errs)
	assert.Contains(t, errs, "-: the file has no times: the axis counts samples")
	text, err := os.ReadFile(svg)
	require.NoError(t, err)
	assert.Contains(t, string(text), "sample")

	_, errs, code = runs(t, "", "chart", untimed, "-f", "-o", svg)
	require.Equal(t, 0, code, errs)
	assert.Contains(t, errs, `1 line holds no sample: line 1, "loss 1"`)
	_, errs, code = runs(t, "", "chart", timed, untimed, "-f", "-o", svg)
	assert.Equal(t, 2, code)
	assert.Contains(t, errs, "say the time between samples of the other with --interval")
	_, errs, code = runs(t, "", "chart", timed, untimed, "--interval", "1s", "-f", "-o", svg)
	assert.Equal(t, 0, code, errs)
	_, errs, _ = runs(t, "", "show", timed)
	assert.Contains(t, errs, "is a recording of nvidia-smi: run gpumemtrack chart")
	_, errs, code = runs(t, "", "chart", write("bare.csv", "100\n"), "-f", "-o", svg)
	assert.Equal(t, 1, code)
	assert.Contains(t, errs, "help inputs lists what is read")
}
