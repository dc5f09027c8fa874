//go:build amd64 || arm64

package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/long"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// debugged is a program in which gdb stops at each call of a function.
type debugged struct {
	function, size string // and the register with the size
	folder         string // its libraries: gdb has copies, since its breakpoint is not hit where a watcher has a probe
}

// ofDriver is an allocation of the emulated driver.
func ofDriver(t *testing.T, function string) debugged {
	libs, err := gpuemu.Build()
	if err != nil {
		t.Skip(err)
	}
	return debugged{function: function, size: "$rsi", folder: libs.Dir}
}

// byGDB is what gdb says of a call: its size, how much of the stack is in use, and its callers, innermost first.
type byGDB struct {
	size    alloc.Bytes
	depth   int
	callers []callerByGDB
}

// callerByGDB is where a caller is in its file, "" if it is inlined in the next, and its line and name, or its library.
type callerByGDB struct{ at, what string }

// run has gdb run a program, and returns all calls in their order.
func (d debugged) run(t *testing.T, program string, args ...string) (calls []byGDB) {
	t.Helper()
	if runtime.GOARCH != "amd64" {
		t.Skip("the registers are those of amd64")
	}
	if _, err := exec.LookPath("gdb"); err != nil {
		t.Skip("there is no gdb")
	}
	file, its := filepath.Join(t.TempDir(), "callers"), t.TempDir()
	if d.folder != "" {
		require.NoError(t, os.CopyFS(its, os.DirFS(d.folder)))
		hideDriver(t, its)
	}
	cmd := gpuemu.Command(t, gpuemu.Options{}, "gdb", append([]string{"-nx", "-batch", "-x", "testdata/callers.py", "--args", program}, args...)...)
	cmd.Env = append(cmd.Env, "CALLERS="+file, "FUNCTION="+d.function, "SIZE="+d.size, "LD_LIBRARY_PATH="+its)
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	lines, err := os.ReadFile(file)
	require.NoError(t, err, "%s", text)
	for line := range strings.Lines(string(lines)) {
		var call byGDB
		fields := strings.SplitN(strings.TrimSpace(line), " ", 3)
		require.Len(t, fields, 3, line)
		_, err := fmt.Sscan(fields[0]+" "+fields[1], &call.size, &call.depth)
		require.NoError(t, err)
		callers := fields[2]
		for caller := range strings.SplitSeq(callers, "|") {
			at, what, _ := strings.Cut(caller, " ")
			call.callers = append(call.callers, callerByGDB{strings.TrimPrefix(at, "-"), what})
		}
		calls = append(calls, call)
	}
	require.NotEmpty(t, calls, "%s", text)
	return calls
}

// hideDriver gives the driver of a folder a name by which no watcher of every process finds it, one of another test program either.
// The loader finds it by a link.
func hideDriver(t *testing.T, folder string) {
	t.Helper()
	driver, hidden := filepath.Join(folder, "libcuda.so.1"), "driver.so"
	err := os.Rename(driver, filepath.Join(folder, hidden))
	if errors.Is(err, fs.ErrNotExist) {
		return // its libraries are not the driver's
	}
	require.NoError(t, err)
	require.NoError(t, os.Symlink(hidden, driver))
}

// resolved names the callers as the watcher would in another process that runs the same.
func (c byGDB) resolved(t *testing.T, s *symbols.Symbolizer, files map[string]procfs.Mapping) mem.Stack {
	var addresses []uint64
	for _, caller := range c.callers {
		if caller.at == "" {
			continue
		}
		file, offset, _ := strings.Cut(caller.at, "+")
		m, ok := files[file]
		require.True(t, ok, "%s is not loaded", file)
		at, err := strconv.ParseUint(offset, 0, 64)
		require.NoError(t, err)
		addresses = append(addresses, m.Start+at-m.Offset)
	}
	its := symbols.Trace{Addresses: addresses, FirstUncertain: len(addresses), End: symbols.Complete}
	if len(addresses) > event.MaxFrames {
		its.Addresses, its.End = addresses[:event.MaxFrames], symbols.TooMany
	}
	return s.Resolve(its, nil)
}

// stacksAreThoseOfGDB compares all calls that a program made, in their order: the stack of each with the truth, which has gdb's
// callers, named as the watcher names them.
func stacksAreThoseOfGDB(t *testing.T, w *Watcher, c *client, want []byGDB, same func(got, truth mem.Stack, by byGDB) bool) {
	t.Helper()
	for c.out.Scan() && c.out.Text() != "done" {
	}
	w.Sync()
	require.Empty(t, w.Warnings())
	require.Len(t, w.Sources(), 1)
	mappings, err := procfs.ReadMaps(c.Process.Pid)
	require.NoError(t, err)
	files := make(map[string]procfs.Mapping)
	for _, m := range slices.Backward(mappings) { // of several with code, offsets count from the first
		files[filepath.Base(m.Path)] = m
	}
	its := symbolizer(c)
	seen, wrong, deepest, stacks := 0, 0, 0, make(map[string]bool)
	for e := range w.Sources()[0].Dump().Events() {
		if e.Action != mem.Allocated {
			continue
		}
		require.Less(t, seen, len(want), "more calls than gdb saw")
		require.Equal(t, want[seen].size, e.Requested, "call %d", seen)
		truth := want[seen].resolved(t, its, files)
		stacks[truth.String()], deepest = true, max(deepest, len(truth))
		if !same(e.Stack, truth, want[seen]) {
			if wrong++; wrong < 4 {
				t.Errorf("call %d of %v:\n got %s\nwant %s", seen, e.Requested, e.Stack, truth)
			}
		}
		seen++
	}
	assert.Equal(t, len(want), seen)
	assert.Zero(t, wrong, "wrong of %d", seen)
	t.Logf("%d calls, %d stacks of up to %d frames", seen, len(stacks), deepest)
}

// TestStacksOfStockGgml: a program without frame pointers that allocates by all ways of llama.cpp's library as its release has it, which
// keeps none either, from callbacks and threads of the library too.
func TestStacksOfStockGgml(t *testing.T) {
	folder := os.Getenv("GPUMEMTRACK_LLAMACPP")
	if folder == "" {
		t.Skip("GPUMEMTRACK_LLAMACPP names no folder with llama.cpp's libraries")
	}
	path := build(t, "calls", func(out, _ string) *exec.Cmd {
		return exec.Command(compiler(), "-g", "-O2", "-fomit-frame-pointer", "-Wall", "-o", out, "testdata/calls.ggml.c",
			"-L"+folder, "-l:libggml-base.so", "-l:libggml-cpu-x64.so", "-Wl,-rpath,"+folder)
	})
	want := debugged{function: "ggml_backend_buft_alloc_buffer", size: "$rsi", folder: folder}.run(t, path)
	require.Greater(t, len(want), 1000)
	pair, err := event.ParsePair("ggml=" + filepath.Join(folder, "libggml-base.so"))
	require.NoError(t, err)
	w := newWatcher(t, Config{pairs: []event.Pair{pair}})
	stacksAreThoseOfGDB(t, w, start(t, w, path), want, wholeStacks)
}

// wholeStacks compares lines and names too, which gdb reads itself.
func wholeStacks(got, truth mem.Stack, by byGDB) bool {
	return slices.Equal(withoutStart(got), withoutStart(truth)) && isAsGDB(got, by)
}

// withoutStart leaves out what calls main or a thread's first function.
func withoutStart(s mem.Stack) mem.Stack {
	for len(s) > 0 && (s[len(s)-1].Function == "_start" || strings.HasPrefix(filepath.Base(s[len(s)-1].File), "libc.so")) {
		s = s[:len(s)-1]
	}
	return s
}

// nativeStacks compares what is not Python's: its functions stand where gdb has the interpreter's.
func nativeStacks(got, truth mem.Stack, _ byGDB) bool {
	return slices.Equal(ofLibraries(got), ofLibraries(truth))
}

func ofLibraries(s mem.Stack) (native mem.Stack) {
	for _, f := range withoutStart(s) {
		note := strings.HasPrefix(f.Function, "(") // of a gap, or an early end
		if note || strings.Contains(f.File, ".so") && !strings.HasPrefix(filepath.Base(f.File), "libpython") {
			native = append(native, f)
		}
	}
	return native
}

// TestStacksOfStockTorch: random operations of PyTorch as PyPI has it, called from Python. Its library for CPUs is the largest of those
// that keep no frame pointers.
func TestStacksOfStockTorch(t *testing.T) {
	program := os.Getenv("GPUMEMTRACK_TORCH")
	if program == "" {
		t.Skip("GPUMEMTRACK_TORCH names no Python with torch")
	}
	library := torchLibrary(t, program, "libc10.so")
	t.Setenv("PYTHONPATH", filepath.Join(filepath.Dir(library), "..", "..")) // gdb follows the link by which Python finds it
	t.Setenv("PYTHONHASHSEED", "0")
	args := []string{"testdata/calls.torch.py", "80"}
	want := debugged{function: "_ZN3c109alloc_cpuEm", size: "$rdi"}.run(t, program, args...)
	want = slices.DeleteFunc(want, func(c byGDB) bool { return c.size == 0 }) // it gets no address
	require.Greater(t, len(want), 1000)
	pair, err := event.ParsePair("pytorch-cpu=" + library)
	require.NoError(t, err)
	w := newWatcher(t, Config{pairs: []event.Pair{pair}})
	stacksAreThoseOfGDB(t, w, start(t, w, program, args...), want, nativeStacks)
}

// TestStacksOfCudarc: a program in Rust that allocates by the crate cudarc.
func TestStacksOfCudarc(t *testing.T) {
	path := os.Getenv("GPUMEMTRACK_CUDARC")
	if path == "" {
		t.Skip("GPUMEMTRACK_CUDARC does not name the program of testdata/cudarc")
	}
	want := ofDriver(t, "cuMemAllocAsync").run(t, path)
	require.Len(t, want, 1200)
	for way, watcher := range ways {
		t.Run(way, func(t *testing.T) {
			w := watcher(t)
			stacksAreThoseOfGDB(t, w, start(t, w, path), want, func(got, truth mem.Stack, by byGDB) bool {
				return wholeStacks(got, truth, by) && strings.Contains(names(got), "calls::layer") && strings.Contains(names(got), "calls::Run::model")
			})
		})
	}
}

// TestGDBBesideAWatcherOfAll: no watcher of every process, which another test program may have, takes the place of the breakpoints by which
// these tests learn of calls.
func TestGDBBesideAWatcherOfAll(t *testing.T) {
	long.Test(t, "runs gdb beside a watcher")
	newWatcher(t, Config{}).Close() // or the test is skipped
	path := build(t, "calls", func(out, libs string) *exec.Cmd {
		return exec.Command(compiler(), "-g", "-O2", "-fomit-frame-pointer", "-o", out, "testdata/calls.c", "-L"+libs, "-l:libcuda.so.1", "-lpthread")
	})
	w, err := New(Config{})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, w.Close()) })
	require.NoError(t, w.WatchAll())
	assert.Len(t, ofDriver(t, "cuMemAlloc_v2").run(t, path), 1000)
}

// TestDebuggersSeeLibraries: no probe takes the place of a breakpoint by which gdb hears of libraries.
func TestDebuggersSeeLibraries(t *testing.T) {
	if _, err := exec.LookPath("gdb"); err != nil {
		t.Skip("there is no gdb")
	}
	path := build(t, "reopen", func(out, libs string) *exec.Cmd {
		return exec.Command(compiler(), "-O2", "-Wall", "-Werror", "-o", out, "testdata/reopen.c", "-L"+libs, "-l:libcuda.so.1", "-ldl")
	})
	newWatcher(t, Config{})
	text, err := gpuemu.Command(t, gpuemu.Options{}, "gdb", "-nx", "-batch", "-ex", "break main", "-ex", "run", "-ex", "info sharedlibrary", path).CombinedOutput()
	require.NoError(t, err, "%s", text)
	assert.Regexp(t, `Yes.*/libc\.so\.6`, string(text))
}
