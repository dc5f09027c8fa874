package main

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestRun holds the example against the reference's own text: the twelve lines
// of its first table, and its totals.
func TestRun(t *testing.T) {
	var out strings.Builder
	dir := t.TempDir()
	require.NoError(t, run(dir, &out))

	unpadded := regexp.MustCompile(" +").ReplaceAllString(out.String(), " ")
	for _, line := range []string{
		"+ | 1 * (64, 64, 3, 3) | 144.0 KiB |",
		"+ | 1 * (128, 128, 3, 3) | 576.0 KiB |",
		"+ | 1 * (256, 128, 3, 3) | 1.1 MiB |",
		"+ | 1 * (512, 256, 3, 3) | 4.5 MiB |",
		"+ | 3 * (256, 256, 3, 3) | 6.8 MiB |",
		"+ | 8 * (512,) | 16.0 KiB |",
		"+ | 2 * (64,) | 512 B |",
		"+ | 7 * (512, 512, 3, 3) | 63.0 MiB |",
		"+ | 4 * (256,) | 4.0 KiB |",
		"+ | 1 * (128, 64, 3, 3) | 288.0 KiB |",
		"+ | 2 * (128,) | 1.0 KiB |",
		"+ | 1 * (64, 3, 3, 3) | 6.8 KiB |",
		"- | 1 * (40, 3, 512, 512) | 120.0 MiB |",
		"- | 1 * (120, 3, 512, 512) | 360.0 MiB |",
	} {
		assert.Equal(t, 1, strings.Count(unpadded, line), "%q", line)
	}
	assert.Equal(t, 12, strings.Count(out.String(), "| Parameter "))

	_, rest, _ := strings.Cut(out.String(), "At main.go line ")
	var totals []string
	for block := range strings.SplitSeq(rest, "At main.go line ") {
		_, total, _ := strings.Cut(block, "Total Tensor Used Memory:")
		totals = append(totals, strings.Fields(total)[0])
	}
	assert.Equal(t, []string{"0.0", "76.4", "466.4", "1066.4", "586.4"}, totals)

	files, err := filepath.Glob(filepath.Join(dir, "*-gpu_mem_track.txt"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	report, err := os.ReadFile(files[0])
	require.NoError(t, err)
	assert.True(t, strings.HasPrefix(out.String(), string(report)), "the file holds what the screen shows")
}
