package files_test

import (
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
)

// TestFilesOfOtherTools: each is known by what it holds, and has the memory at its peak.
func TestFilesOfOtherTools(t *testing.T) {
	for name, want := range map[string]struct {
		format string
		peak   int64
		dump   bool
	}{
		"../rmm/testdata/rmm.csv":                           {"log of RMM", 65 << 20, true},
		"../kineto/testdata/kineto.pt.trace.json":           {"trace of PyTorch's profiler", 512, true},
		"../kineto/testdata/torch2.15-cpu.pt.trace.json.gz": {"trace of PyTorch's profiler", 3370096, true},
		"../kineto/testdata/timeline.json":                  {"memory timeline", 2560, false},
		"../kineto/testdata/torch2.15-cpu.raw.json.gz":      {"memory timeline", 3444880, false},
	} {
		f, err := files.ReadFile(filepath.FromSlash(name))
		require.NoError(t, err, name)
		assert.Equal(t, want.format, f.Format, name)
		assert.Equal(t, want.dump, f.Dump != nil, name)
		peak := int64(0)
		for _, row := range f.Usage.Rows {
			peak += int64(row.Peak.Bytes)
		}
		assert.Equal(t, want.peak, peak, name)
	}
}
