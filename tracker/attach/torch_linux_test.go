//go:build amd64 || arm64

package attach

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
)

// buildTorch compiles the stand-in of PyTorch's allocator and a client of it.
func buildTorch(t *testing.T, flags ...string) (client, library string) {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("there is no g++")
	}
	libs, err := gpuemu.Build()
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	client, library = filepath.Join(dir, "client"), filepath.Join(dir, "libc10_cuda.so")
	text, err := exec.Command("g++", append(append([]string{"-std=c++17", "-O2", "-shared", "-fPIC", "-o", library, "testdata/torchcuda.cc"}, flags...),
		"-L"+libs.Dir, "-l:libcuda.so.1")...).CombinedOutput()
	require.NoError(t, err, "%s", text)
	text, err = exec.Command("g++", "-std=c++17", "-g", "-O2", "-o", client, "testdata/torchclient.cc", library, "-Wl,-rpath,"+dir, "-L"+libs.Dir,
		"-l:libcuda.so.1", "-lpthread").CombinedOutput()
	require.NoError(t, err, "%s", text)
	return client, library
}

// TestPyTorch watches the stand-in by its static probes, and without them by its functions.
func TestPyTorch(t *testing.T) {
	for name, test := range map[string]struct {
		flags []string
		cfg   Config
	}{
		"probes":            {flags: []string{"-DPROBES"}},
		"probes one by one": {flags: []string{"-DPROBES"}, cfg: Config{single: true}},
		"functions":         {},
	} {
		for _, late := range []bool{false, true} {
			t.Run(map[bool]string{false: name, true: name + " of a running process"}[late], func(t *testing.T) {
				if test.flags != nil && runtime.GOARCH != "amd64" {
					t.Skip("static probes are those of amd64")
				}
				program, library := buildTorch(t, test.flags...)
				var err error
				test.cfg.Functions = make([]Pair, 1)
				test.cfg.Functions[0], err = ParsePair("pytorch=" + library)
				require.NoError(t, err)
				w := newWatcher(t, test.cfg)
				var c *client
				if late {
					c = start(t, nil, program, "wait")
					require.True(t, c.out.Scan())
					require.NoError(t, w.Watch(c.Process.Pid))
					fmt.Fprintln(c.in)
				} else {
					c = start(t, w, program)
				}
				blocksAgree(t, w, c, late)
			})
		}
	}
}

// TestPyTorchCPU compares the ledger of a training loop with what PyTorch's own profiler says.
func TestPyTorchCPU(t *testing.T) {
	program := os.Getenv("GPUMEMTRACK_TORCH")
	if program == "" {
		t.Skip("GPUMEMTRACK_TORCH names no Python with torch")
	}
	where, err := exec.Command(program, "-c", "import torch; print(torch.__path__[0])").Output()
	require.NoError(t, err)
	pair, err := ParsePair("pytorch-cpu=" + filepath.Join(strings.TrimSpace(string(where)), "lib", "libc10.so"))
	require.NoError(t, err)
	w := newWatcher(t, Config{Functions: []Pair{pair}})
	s := checked(t, w, start(t, w, program, "testdata/train.py", "20"))
	lines := make(map[string]int)
	for a := range s.Snapshot().Allocations() {
		assert.Equal(t, "train.py", filepath.Base(a.CallSite.File), "%v", a.Stack)
		lines[fmt.Sprint(a.CallSite)]++
	}
	assert.Equal(t, 20, lines["train.py:38 keep"], "%v", lines)
	t.Log(s.Snapshot().Total, lines)
}

func blocksAgree(t *testing.T, w *Watcher, c *client, late bool) {
	t.Helper()
	want := c.live(t)
	w.Sync()
	blocks, held := make(map[alloc.Ptr]alloc.Bytes), alloc.Bytes(0)
	for _, s := range w.Sources() {
		adds(t, s.Snapshot())
		name, ordinal := s.Device()
		if !strings.Contains(s.Name(), "-blocks") {
			assert.True(t, name == "GPU" || late, name)
			held += s.Snapshot().Reserved
			continue
		}
		assert.Equal(t, "PyTorch's blocks, GPU", name)
		assert.Equal(t, fmt.Sprintf("%d-gpu%d-blocks", c.Process.Pid, ordinal), s.Name())
		for at, size := range s.addresses() {
			blocks[at] = size
		}
		for a := range s.Snapshot().Allocations() {
			assert.EqualValues(t, "Block", a.Kind)
			if ordinal == 1 {
				assert.Contains(t, names(a.Stack), "layer")
			}
		}
	}
	require.Equal(t, want, blocks)
	for _, doubt := range w.Doubts() {
		assert.True(t, late, doubt)
		assert.NotContains(t, doubt, "again")
	}
	if !late {
		assert.Positive(t, held)
	}
}
