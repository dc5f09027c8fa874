//go:build amd64 || arm64

package attach

import (
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// TestPresets: each of the named pairs, on a stand-in with the library's signatures.
func TestPresets(t *testing.T) {
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("there is no g++")
	}
	dir := t.TempDir()
	library := filepath.Join(dir, "libstandin.so")
	text, err := exec.Command(compiler(), "-O2", "-shared", "-fPIC", "-o", library, "testdata/recipes.c").CombinedOutput()
	require.NoError(t, err, "%s", text)
	path := filepath.Join(dir, "client")
	text, err = exec.Command("g++", "-g", "-O2", "-o", path, "testdata/recipesclient.cc", library, "-Wl,-rpath,"+dir).CombinedOutput()
	require.NoError(t, err, "%s", text)
	sizes := map[string]alloc.Bytes{"ggml": alloc.MiB, "hip": 2 * alloc.MiB, "level-zero": 3 * alloc.MiB, "cuvs": 4 * alloc.MiB, "icicle": 5 * alloc.MiB, "pytorch-cpu": 6 * alloc.MiB}
	for _, name := range Pairs() {
		if name == "pytorch" {
			continue // TestPyTorch
		}
		t.Run(name, func(t *testing.T) {
			pair, err := event.ParsePair(name + "=" + library)
			require.NoError(t, err)
			w := newWatcher(t, Config{pairs: []event.Pair{pair}})
			s := checkedSource(t, w, start(t, w, path))
			require.Empty(t, w.Warnings())
			device, _ := s.Device()
			assert.Equal(t, "Memory of a library", device)
			assert.Regexp(t, `^\d+-library$`, s.Name())
			byKind := make(map[mem.Kind]mem.Tally)
			for a := range s.Snapshot().Allocations() {
				byKind[a.Kind] = byKind[a.Kind].Add(mem.Tally{Count: 1, Bytes: a.Requested})
			}
			want := map[mem.Kind]mem.Tally{mem.Kind(pair.Alloc): {Count: 2, Bytes: 2 * sizes[name]}}
			if name == "ggml" {
				want["Weights"], want["KV"] = mem.Tally{Count: 2, Bytes: 128 * alloc.MiB}, mem.Tally{Count: 2, Bytes: 64 * alloc.MiB}
				want["Compute"], want["Output"] = mem.Tally{Count: 2, Bytes: 32 * alloc.MiB}, mem.Tally{Count: 1, Bytes: 8 * alloc.MiB}
			}
			assert.Equal(t, want, byKind)
		})
	}
}
