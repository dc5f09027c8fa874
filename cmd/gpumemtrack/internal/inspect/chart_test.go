package inspect

import (
	"io"
	"os"
	"path/filepath"
	"testing"

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
