package main

import (
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
)

// TestRun asserts what a user's own test would: that the run fits on a smaller device.
func TestRun(t *testing.T) {
	path := filepath.Join(t.TempDir(), "run.json")
	var out strings.Builder
	require.NoError(t, run(&out, path, 400))
	assert.Contains(t, out.String(), "cache      needs 182.0 MiB\n")

	f, err := files.ReadFile(path)
	require.NoError(t, err)
	result, err := replay.Run(f.Dump, replay.Config{Memory: 182 * alloc.MiB})
	require.NoError(t, err)
	assert.True(t, result.Fits, result)
	result, err = replay.Run(f.Dump, replay.Config{Memory: 160 * alloc.MiB})
	require.NoError(t, err)
	assert.False(t, result.Fits, result)
}
