//go:build amd64 || arm64

package attach

import (
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/long"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/probes"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
)

// buildTorch compiles the stand-in of PyTorch's allocator and a client of it.
func buildTorch(t *testing.T, flags ...string) (client, library string) {
	t.Helper()
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("there is no g++")
	}
	library = build(t, "libc10_cuda.so", func(out, libs string) *exec.Cmd {
		args := append([]string{"-std=c++17", "-O2", "-fno-optimize-sibling-calls", "-shared", "-fPIC", "-o", out, "testdata/torchcuda.cc"}, flags...)
		return exec.Command("g++", append(args, "-L"+libs, "-l:libcuda.so.1")...)
	})
	client = build(t, "client", func(out, libs string) *exec.Cmd {
		return exec.Command("g++", "-std=c++17", "-g", "-O2", "-o", out, "testdata/torchclient.cc", library,
			"-Wl,-rpath,"+filepath.Dir(library), "-L"+libs, "-l:libcuda.so.1", "-lpthread")
	})
	return client, library
}

// TestPyTorch watches the stand-in by its static probes, and without them by its functions.
func TestPyTorch(t *testing.T) {
	for name, test := range map[string]struct {
		flags []string
		cfg   Config
	}{
		"probes":                      {flags: []string{"-DPROBES"}},
		"probes, kernels before 6.6":  {flags: []string{"-DPROBES"}, cfg: Config{oldest: probes.Before6_6}},
		"probes, kernels before 5.15": {flags: []string{"-DPROBES"}, cfg: Config{oldest: probes.Before5_15}},
		"functions":                   {},
	} {
		for _, late := range []bool{false, true} {
			if late && test.cfg.oldest != probes.Newest {
				continue
			}
			t.Run(map[bool]string{false: name, true: name + " of a running process"}[late], func(t *testing.T) {
				if test.flags != nil && runtime.GOARCH != "amd64" {
					t.Skip("static probes are those of amd64")
				}
				program, library := buildTorch(t, test.flags...)
				var err error
				test.cfg.pairs = make([]event.Pair, 1)
				test.cfg.pairs[0], err = event.ParsePair("pytorch=" + library)
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

// TestPyTorchPython: static probes in a process that runs Python.
func TestPyTorchPython(t *testing.T) {
	long.Test(t, "starts each Python under each way of reading PyTorch")
	if runtime.GOARCH != "amd64" {
		t.Skip("static probes are those of amd64")
	}
	_, library := buildTorch(t, "-DPROBES")
	pair, err := event.ParsePair("pytorch=" + library)
	require.NoError(t, err)
	for version, program := range pythonsHere() {
		if !slices.Contains([]string{"3.9", "3.10", "3.11", "3.12", "3.13"}, version) {
			continue
		}
		t.Run(version, func(t *testing.T) {
			w := newWatcher(t, Config{pairs: []event.Pair{pair}})
			c := start(t, w, program, "testdata/torchclient.py", library)
			knowsPython(t, w, c)
			fmt.Fprintln(c.in)
			want := c.live(t)
			w.Sync()
			assert.Empty(t, w.Warnings())
			s := w.Sources()[0]
			assert.Equal(t, want, s.addresses())
			for a := range s.Snapshot().Allocations() {
				assert.Regexp(t, `layer <- (Model\.)?build <- <module>`, names(a.Stack))
				assert.Contains(t, a.Stack.String(), "torchclient.py:11\n")
			}
		})
	}
}

// TestPyTorchLibrary watches the library of a real PyTorch, of which no more runs without a GPU than what frees: the semaphores are
// raised as long as the watcher is there, and a block that was never allocated is freed.
func TestPyTorchLibrary(t *testing.T) {
	program := os.Getenv("GPUMEMTRACK_TORCH")
	if program == "" || runtime.GOARCH != "amd64" {
		t.Skip("GPUMEMTRACK_TORCH names no Python with torch, for amd64")
	}
	library := torchLibrary(t, program, "libc10_cuda.so")
	notes, err := symbols.Notes(library)
	require.NoError(t, err)
	at, err := symbols.Offsets(library, []string{event.PytorchCache + "local_raw_delete"})
	require.NoError(t, err)
	release := at[event.PytorchCache+"local_raw_delete"]
	if len(notes["pytorch:malloc"]) == 0 || release == 0 {
		t.Skip("this PyTorch was built without probes, or for no GPU")
	}
	pair, err := event.ParsePair("pytorch=" + library)
	require.NoError(t, err)
	w := newWatcher(t, Config{pairs: []event.Pair{pair}})
	c := start(t, w, program, "testdata/torchlibrary.py", library, fmt.Sprint(release), fmt.Sprint(notes["pytorch:malloc"][0].Semaphore),
		fmt.Sprint(notes["pytorch:free"][0].Semaphore))
	raised := func() string {
		fmt.Fprintln(c.in)
		require.True(t, c.out.Scan())
		return c.out.Text()
	}
	assert.Equal(t, "2 2", raised(), "each has two places")
	w.Sync()
	require.Len(t, w.Warnings(), 1)
	assert.Contains(t, w.Warnings()[0], "1 frees were of memory that is not in the ledger")
	require.NoError(t, w.Close())
	assert.Equal(t, "0 0", raised())
}

func torchLibrary(t *testing.T, program, name string) string {
	t.Helper()
	where, err := exec.Command(program, "-c", "import torch; print(torch.__path__[0])").Output()
	require.NoError(t, err)
	return filepath.Join(strings.TrimSpace(string(where)), "lib", name)
}

// TestPyTorchCPU compares the ledger of a training loop with what PyTorch's own profiler says.
func TestPyTorchCPU(t *testing.T) {
	program := os.Getenv("GPUMEMTRACK_TORCH")
	if program == "" {
		t.Skip("GPUMEMTRACK_TORCH names no Python with torch")
	}
	pair, err := event.ParsePair("pytorch-cpu=" + torchLibrary(t, program, "libc10.so"))
	require.NoError(t, err)
	w := newWatcher(t, Config{pairs: []event.Pair{pair}})
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
	streams := [2]map[alloc.Stream]int{{}, {}}
	blocks, held := make(map[alloc.Ptr]alloc.Bytes), alloc.Bytes(0)
	for _, s := range w.Sources() {
		adds(t, s.Snapshot())
		name, ordinal := s.Device()
		if !strings.Contains(s.Name(), "-blocks") {
			assert.True(t, name == "GPU" || late, name)
			held += s.Snapshot().Reserved
			for a := range s.Snapshot().Allocations() { // called by a function that may have a probe at its return
				assert.Regexp(t, `malloc\(.*\) <- torch_empty(_too)? <- (layer|main|operator)`, names(a.Stack))
				assert.NotContains(t, names(a.Stack), "(the stack")
				assert.NotContains(t, names(a.Stack), "(callers")
			}
			continue
		}
		assert.Equal(t, "PyTorch's blocks, GPU", name)
		assert.Equal(t, fmt.Sprintf("%d-gpu%d-blocks", c.Process.Pid, ordinal), s.Name())
		maps.Copy(blocks, s.addresses())
		for a := range s.Snapshot().Allocations() {
			assert.Empty(t, a.Kind)
			streams[ordinal][a.Stream]++
			if ordinal == 1 {
				assert.Regexp(t, `torch_empty(_too)? <- layer\(int\) <- main`, names(a.Stack))
			}
		}
	}
	require.Equal(t, want, blocks)
	first := 26 // with that of the beginning
	if late {
		first = 25
	}
	assert.Equal(t, [2]map[alloc.Stream]int{{0: first, 32: 25}, {16: 25, 48: 25}}, streams)
	for _, doubt := range w.Warnings() {
		assert.True(t, late, doubt)
		assert.NotContains(t, doubt, "again")
	}
	if !late {
		assert.Positive(t, held)
	}
}
