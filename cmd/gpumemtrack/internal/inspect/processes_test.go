package inspect

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// writeRanks writes the snapshots of so many ranks, each of 300 call sites.
func writeRanks(t testing.TB, dir string, processSet int) {
	type object map[string]any
	var frames []mem.Frame
	var stacks [][]int
	var sites []object
	for i := range 300 {
		var stack []int
		for depth := range 12 {
			stack = append(stack, len(frames))
			frames = append(frames, mem.Frame{Function: fmt.Sprintf("main.layer%d", i), File: "/src/train.go", Line: 10*i + depth + 1})
		}
		stacks = append(stacks, stack)
		sites = append(sites, object{
			"kind": "Activation", "dtype": alloc.Float32, "shape": alloc.Shape{256, i + 1}, "stack": i, "site": frames[stack[0]],
			"live_count": i + 1, "peak_count": i + 1, "total_count": i + 1,
		})
	}
	for rank := range processSet {
		text, err := json.Marshal(object{
			"device": "GPU", "origin": snapshot.Origin{PID: rank + 1, Rank: &rank, WorldSize: processSet},
			"frames": frames, "stacks": stacks, "sites": sites,
		})
		require.NoError(t, err)
		text = append([]byte(`{"schema":"gpumemtrack.snapshot","version":2,`), text[1:]...) // first, as a tracker writes it
		require.NoError(t, os.WriteFile(filepath.Join(dir, fmt.Sprintf("%04d.json", rank)), text, 0o666))
	}
}

// BenchmarkDiffOfRanks compares two runs of a thousand ranks: the goal is 5 s.
func BenchmarkDiffOfRanks(b *testing.B) {
	before, after := b.TempDir(), b.TempDir()
	writeRanks(b, before, 1000)
	writeRanks(b, after, 1000)
	for b.Loop() {
		if code := run([]string{"diff", before, after}, strings.NewReader(""), io.Discard, io.Discard); code != 0 {
			b.Fatal(code)
		}
	}
}

// BenchmarkRanks shows and explains a run of a thousand ranks.
func BenchmarkRanks(b *testing.B) {
	dir := b.TempDir()
	writeRanks(b, dir, 1000)
	for _, command := range []string{"show", "explain"} {
		b.Run(command, func(b *testing.B) {
			for b.Loop() {
				if code := run([]string{command, dir}, strings.NewReader(""), io.Discard, io.Discard); code != 0 {
					b.Fatal(code)
				}
			}
		})
	}
}

func TestExpand(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"b.json", "a.json", ".hidden", "c.txt"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o644))
	}
	require.NoError(t, os.Symlink("c.txt", filepath.Join(dir, "link")))
	require.NoError(t, os.Symlink("gone", filepath.Join(dir, "z-broken")))
	empty := filepath.Join(dir, "empty")
	require.NoError(t, os.Mkdir(empty, 0o755))
	for word, want := range map[string][]string{
		".":      {"a.json", "b.json", "c.txt", "link", "z-broken"}, // what cannot be read must not be left out in silence
		"*.json": {"a.json", "b.json"},
		"c.txt":  {"c.txt"},
	} {
		got, err := expand(filepath.Join(dir, word))
		require.NoError(t, err)
		for i := range got {
			got[i] = filepath.Base(got[i])
		}
		assert.Equal(t, want, got)
	}
	for _, word := range []string{empty, filepath.Join(dir, "none*"), filepath.Join(dir, "[")} {
		_, err := expand(word)
		assert.Error(t, err, word)
	}
}

func TestManyDevicesAreCounted(t *testing.T) {
	u := &export.Usage{Name: "a.json"}
	assert.Equal(t, "a.json, GPU [0], GPU [1]", describe(u, []string{"GPU [0]", "GPU [1]"}))
	assert.Equal(t, "a.json, 3 devices", describe(u, []string{"GPU [0]", "GPU [1]", "GPU [2]"}))
}
