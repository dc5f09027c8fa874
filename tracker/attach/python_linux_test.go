//go:build amd64 || arm64

package attach

import (
	"cmp"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/long"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/probes"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// pythonVersions are those whose functions and lines are found.
var pythonVersions = []string{"3.9", "3.10", "3.11", "3.12", "3.13", "3.14", "3.15"}

// pythonsHere are the interpreters of this machine with ctypes, by version: those of the search path, and pyenv's.
func pythonsHere() map[string]string {
	files, all := []string{"python3"}, make(map[string]string)
	for _, version := range pythonVersions {
		files = append(files, "python"+version)
	}
	if root, err := exec.Command("pyenv", "root").Output(); err == nil {
		found, _ := filepath.Glob(filepath.Join(strings.TrimSpace(string(root)), "versions", "*", "bin", "python3"))
		files = append(files, found...)
	}
	for _, file := range files {
		out, err := exec.Command(file, "-c", "import ctypes, sys; print('%d.%d' % sys.version_info[:2])").Output()
		if version := strings.TrimSpace(string(out)); err == nil && all[version] == "" {
			all[version] = file
		}
	}
	return all
}

// eachPython runs a test on each version of Python that this machine has, by probes and preloaded. Without long.Env it takes
// the first of them.
func eachPython(t *testing.T, test func(t *testing.T, w *Watcher, version, program string)) {
	eachVersion(t, func(version, program string) {
		for name, watcher := range ways {
			t.Run(version+" "+name, func(t *testing.T) { test(t, watcher(t), version, program) })
		}
	})
}

// eachVersion calls a function with each version of Python that this machine has. Without long.Env it takes the first of them.
func eachVersion(t *testing.T, do func(version, program string)) {
	here := pythonsHere()
	if len(here) == 0 {
		t.Skip("there is no Python with ctypes")
	}
	known := false
	for _, version := range pythonVersions {
		if here[version] == "" {
			continue
		}
		if known && !long.Enabled() {
			t.Run(version, func(t *testing.T) { long.Test(t, "watches one more version of Python") })
			continue
		}
		known = true
		do(version, here[version])
	}
}

// knowsPython waits until a watcher knows a client's interpreter for good: one that is found before the event of the exec is read may be
// forgotten at that.
func knowsPython(t *testing.T, w *Watcher, c *client) {
	t.Helper()
	require.Eventually(t, func() bool {
		if w.pythons.Get(c.Process.Pid) == nil {
			return false
		}
		w.Sync()
		return w.pythons.Get(c.Process.Pid) != nil
	}, time.Minute, time.Millisecond)
}

// TestPythonFrames compares the functions and lines of Python in each call stack with what the program's own frames were.
func TestPythonFrames(t *testing.T) { eachPython(t, pythonFrames) }

func pythonFrames(t *testing.T, w *Watcher, _, program string) {
	c := start(t, w, program, "testdata/frames.py")
	knowsPython(t, w, c)
	told := reportedFrames(t, c)
	w.Sync()
	require.Empty(t, w.Warnings())
	require.Len(t, w.Sources(), 1)
	found := make(map[alloc.Ptr]string)
	for a := range w.Sources()[0].Snapshot().Allocations() {
		found[a.Ptr] = ofPython(a.Stack)
		if found[a.Ptr] != "" {
			require.NotContains(t, names(a.Stack), "_PyEval", "Python's functions stand for it")
		}
	}
	require.Greater(t, len(told), 250)
	require.ElementsMatch(t, slices.Collect(maps.Keys(told)), slices.Collect(maps.Keys(found)))
	for at, frames := range told {
		require.Equal(t, frames, found[at])
	}
}

// TestMovingFrames compares frames as TestPythonFrames does, where those of one call lie in the place of those of the call before. Of a stack
// of more than 128 functions, the innermost are there.
func TestMovingFrames(t *testing.T) { eachPython(t, movingFrames) }

func movingFrames(t *testing.T, w *Watcher, version, program string) {
	c := start(t, w, program, "testdata/moving.py")
	knowsPython(t, w, c)
	told := reportedFrames(t, c)
	w.Sync()
	require.Empty(t, w.Warnings())
	require.Len(t, w.Sources(), 1)
	found := make(map[alloc.Ptr]string)
	for a := range w.Sources()[0].Snapshot().Allocations() {
		found[a.Ptr] = ofPython(a.Stack)
	}
	require.Greater(t, len(told), 500)
	require.ElementsMatch(t, slices.Collect(maps.Keys(told)), slices.Collect(maps.Keys(found)))
	const most = 128
	deep := 0
	for at, frames := range told {
		if all := strings.Split(frames, "|"); len(all) > most {
			frames = strings.Join(all[:most], "|")
			deep++
		}
		require.Equal(t, frames, found[at])
	}
	require.Equal(t, 8, deep)
}

// TestInterpretersOfPython: a process may have several, and a thread may run several of them, one in the other. The functions are those
// of the innermost, or they are unknown: they are never those of another interpreter.
func TestInterpretersOfPython(t *testing.T) { eachPython(t, interpretersOfPython) }

func interpretersOfPython(t *testing.T, w *Watcher, version, program string) {
	c := start(t, w, program, "testdata/interpreters.py")
	knowsPython(t, w, c)
	fmt.Fprintln(c.in)
	right := 0
	for c.out.Scan() && c.out.Text() != "done" {
		told := strings.SplitN(c.out.Text(), " ", 3)
		require.Len(t, told, 3, c.out.Text())
		at, err := strconv.ParseUint(told[0], 16, 64)
		require.NoError(t, err)
		w.Sync()
		require.Len(t, w.Sources(), 1)
		for a := range w.Sources()[0].Snapshot().Allocations() {
			if a.Ptr != alloc.Ptr(at) {
				continue
			}
			found := ofPython(a.Stack)
			if found == "" && told[1] != "1" {
				continue
			}
			require.Equal(t, told[2], found)
			right++
		}
		fmt.Fprint(c.in, "x")
	}
	w.Sync()
	require.Empty(t, w.Warnings())
	counts := map[string]int{"3.9": 1, "3.10": 1, "3.11": 1, "3.12": 3} // and then all: see StatusBound
	if want := counts[version]; want != 0 {
		require.GreaterOrEqual(t, right, want)
	} else {
		require.Equal(t, 10, right)
	}
}

// reportedFrames starts a program, and reads the frames that it reports at each allocation, by address.
func reportedFrames(t *testing.T, c *client) map[alloc.Ptr]string {
	t.Helper()
	fmt.Fprintln(c.in)
	told := make(map[alloc.Ptr]string)
	for c.out.Scan() && c.out.Text() != "done" {
		address, frames, _ := strings.Cut(c.out.Text(), " ")
		at, err := strconv.ParseUint(address, 16, 64)
		require.NoError(t, err, c.out.Text())
		told[alloc.Ptr(at)] = frames
	}
	return told
}

// TestLibrariesOfPython compares the functions and lines of each allocation by a library with what the program's own frames were.
func TestLibrariesOfPython(t *testing.T) {
	program := os.Getenv("GPUMEMTRACK_PYTHON")
	if program == "" {
		t.Skip("GPUMEMTRACK_PYTHON names no Python with cuda-bindings, tinygrad or numba-cuda")
	}
	for library, module := range map[string]string{"bindings": "cuda.bindings.driver", "tinygrad": "tinygrad", "numba": "numba.cuda"} {
		for name, watcher := range ways {
			t.Run(library+" "+name, func(t *testing.T) {
				if out, err := exec.Command(program, "-c", "import "+module).CombinedOutput(); err != nil {
					t.Skipf("%s: %s", module, out)
				}
				w := watcher(t)
				c := start(t, w, program, "testdata/libraries.py", library)
				told := reportedFrames(t, c)
				w.Sync()
				require.Empty(t, w.Warnings())
				require.Len(t, w.Sources(), 1)
				require.GreaterOrEqual(t, len(told), 70)
				known := 0
				for a := range w.Sources()[0].Snapshot().Allocations() {
					if frames := told[a.Ptr]; frames != "" { // the library's own frames may be further in
						require.True(t, strings.HasSuffix("|"+ofPython(a.Stack), "|"+frames), "%s\n%s", ofPython(a.Stack), frames)
						known++
					}
				}
				require.Equal(t, len(told), known)
			})
		}
	}
}

// ofPython are the frames of Python in a stack, as the program reports them.
func ofPython(s mem.Stack) string {
	var all []string
	for _, f := range s {
		if strings.HasSuffix(f.File, ".py") || strings.HasPrefix(f.File, "<") {
			all = append(all, fmt.Sprintf("%s:%d %s", filepath.Base(f.File), f.Line, f.Function))
		}
	}
	return strings.Join(all, "|")
}

// TestWildPython: what the frames of Python lead to may be anything. The program lives, and its calls are seen.
func TestWildPython(t *testing.T) {
	path := filepath.Join(t.TempDir(), "wildpython")
	out, err := exec.Command(compiler(), "-rdynamic", "-o", path, "testdata/wildpython.c", "-ldl").CombinedOutput()
	require.NoError(t, err, string(out))
	for _, version := range []string{"3.8.1", "3.9.1", "3.10.1", "3.11.1", "3.12.1", "3.13.1", "3.14.1", "3.15.1", "3.99.1", "", "x"} {
		t.Run("version "+version, func(t *testing.T) {
			t.Setenv("PYTHON_VERSION", version)
			w := newPreload(t)
			c := start(t, w, path)
			require.True(t, c.out.Scan())
			require.Equal(t, "done", c.out.Text())
			w.Sync()
			require.Len(t, w.Sources(), 1)
			require.Empty(t, w.Warnings())
			require.Len(t, slices.Collect(w.Sources()[0].Snapshot().Allocations()), 18)
		})
	}
}

// TestPythonThatIsLoadedLate: a program with --preload allocates before and after it loads Python. Probes take some milliseconds to find that.
func TestPythonThatIsLoadedLate(t *testing.T) {
	const code = "import os, sys, sysconfig as c; print(os.path.join(c.get_config_var('LIBDIR'), c.get_config_var('INSTSONAME')), sys.base_prefix)"
	path := filepath.Join(t.TempDir(), "latepython")
	out, err := exec.Command(compiler(), "-o", path, "testdata/latepython.c", "-ldl").CombinedOutput()
	require.NoError(t, err, string(out))
	here, found := pythonsHere(), false
	for _, version := range pythonVersions {
		out, _ := exec.Command(cmp.Or(here[version], "false"), "-c", code).Output()
		library, home, _ := strings.Cut(strings.TrimSpace(string(out)), " ")
		if _, err := os.Stat(library); err != nil || !strings.Contains(library, ".so") {
			continue
		}
		found = true
		for _, how := range []string{"global", "local"} {
			t.Run(version+" "+how, func(t *testing.T) {
				t.Setenv("PYTHONHOME", home)
				w := newPreload(t)
				c := start(t, w, path, library, how)
				require.True(t, c.out.Scan())
				w.Sync()
				require.Empty(t, w.Warnings())
				require.Len(t, w.Sources(), 1)
				require.Equal(t, "<string>:2 late|<string>:3 <module>", ofPython(largest(t, w.Sources()[0]).Stack))
			})
		}
	}
	if !found {
		t.Skip("no Python here is a library")
	}
}

// TestFramesOfNewFunctions: each of the 60 frames of a function that runs for the first time has its name, and each of 60 such functions.
func TestFramesOfNewFunctions(t *testing.T) {
	eachPython(t, func(t *testing.T, w *Watcher, _, program string) {
		one, many := make([]string, 60), make([]string, 60)
		for i := range one {
			one[i], many[i] = "layer", fmt.Sprintf("layer%d", i+1)
		}
		for _, want := range [][]string{one, many} {
			args := []string{"testdata/recursion.py", "different"}
			if want[0] == want[1] {
				args = args[:1]
			}
			c := start(t, w, program, args...)
			require.True(t, c.out.Scan())
			knowsPython(t, w, c)
			fmt.Fprintln(c.in)
			require.True(t, c.out.Scan())
			w.Sync()
			sources := w.Sources()
			var found []string
			for e := range sources[len(sources)-1].Dump().Events() {
				for _, f := range e.Stack {
					if strings.HasPrefix(f.Function, "layer") && !strings.HasPrefix(f.Function, "layers") {
						found = append(found, f.Function)
					}
				}
			}
			require.Equal(t, want, found)
		}
	})
}

// TestShortPrograms: a program of Python that ends at once, and has freed the code that it ran, has all names.
func TestShortPrograms(t *testing.T) { eachPython(t, shortPrograms) }

func shortPrograms(t *testing.T, w *Watcher, _, program string) {
	const runs = 10
	for i := range runs {
		c := start(t, w, program, "testdata/short.py", []string{"exit", "end"}[i%2])
		if _, ok := w.events.(*probes.Source); ok { // a busy machine may not know the interpreter as soon
			knowsPython(t, w, c)
		}
		fmt.Fprintln(c.in)
		c.out.Scan()
		require.NoError(t, c.Wait())
	}
	w.Sync()
	require.Empty(t, w.Warnings())
	require.Len(t, w.Sources(), runs)
	for _, s := range w.Sources() {
		var found []string
		for e := range s.Dump().Events() {
			if e.Action == mem.Allocated {
				found = append(found, ofPython(e.Stack))
			}
		}
		require.Equal(t, []string{"<made>:2 once|<made>:3 <module>|short.py:8 <module>", "short.py:9 <module>"}, found)
	}
}

// TestAnotherFunctionAtTheAddress: it has never the former's name, file or line.
func TestAnotherFunctionAtTheAddress(t *testing.T) { eachPython(t, anotherFunction) }

func anotherFunction(t *testing.T, w *Watcher, _, program string) {
	c := start(t, w, program, "testdata/reuse.py")
	knowsPython(t, w, c)
	fmt.Fprintln(c.in)
	told := madeFunctions(t, c)
	w.Sync()
	require.Len(t, told, 300)
	for a := range w.Sources()[0].Snapshot().Allocations() {
		found, _, _ := strings.Cut(ofPython(a.Stack), "|")
		require.Equal(t, told[a.Ptr], found)
	}
}

// madeFunctions reads what reuse.py reports of each allocation: its innermost frame, by address.
func madeFunctions(t *testing.T, c *client) map[alloc.Ptr]string {
	t.Helper()
	told, places := make(map[alloc.Ptr]string), 0
	for c.out.Scan() {
		if n, _ := fmt.Sscanf(c.out.Text(), "done %d", &places); n == 1 {
			break
		}
		address, frame, _ := strings.Cut(c.out.Text(), " ")
		at, err := strconv.ParseUint(address, 16, 64)
		require.NoError(t, err, c.out.Text())
		told[alloc.Ptr(at)] = frame
	}
	require.Less(t, places, len(told)/3, "addresses are used again")
	return told
}

// TestFunctionsThatAreReadLate: the watcher is held up until the ring buffer has no more room, while functions are freed whose addresses others
// get. A program that waits for room has all names. Where it does not wait, a function has its own name, or none: it is not lost, and never has
// another's.
func TestFunctionsThatAreReadLate(t *testing.T) {
	eachVersion(t, func(version, program string) {
		t.Run(version+" waits", func(t *testing.T) {
			w := newPreload(t)
			known, unknown := functionsReadLate(t, w, program, true)
			require.Empty(t, w.Warnings())
			require.Equal(t, []int{madeLate, 0}, []int{known, unknown})
		})
		t.Run(version+" does not wait", func(t *testing.T) {
			w := newPreloadWaiting(t, 1)
			known, unknown := functionsReadLate(t, w, program, false)
			require.EqualValues(t, madeLate-known-unknown, w.lostEvents())
			require.Positive(t, known)
		})
		t.Run(version+" probes", func(t *testing.T) {
			w := newWatcher(t, Config{RingBufferBytes: 1 << 20})
			known, unknown := functionsReadLate(t, w, program, false)
			require.EqualValues(t, madeLate-known-unknown, w.lostEvents())
			require.Positive(t, known)
			require.Positive(t, unknown, "from the half of the ring buffer on, nothing is copied")
		})
	})
}

const madeLate = 1000

// functionsReadLate returns how many functions have their name, and how many have none. The program waits for the watcher, or comes to its end
// without it.
func functionsReadLate(t *testing.T, w *Watcher, program string, waits bool) (known, unknown int) {
	c := start(t, w, program, "testdata/reuse.py", strconv.Itoa(madeLate))
	knowsPython(t, w, c)
	var told map[alloc.Ptr]string
	func() {
		w.mu.Lock()
		defer w.mu.Unlock()
		fmt.Fprintln(c.in)
		if waits {
			awaitRest(c.Process.Pid)
		} else {
			told = madeFunctions(t, c)
		}
	}()
	if waits {
		told = madeFunctions(t, c)
	}
	w.Sync()
	require.Len(t, told, madeLate)
	require.Len(t, w.Sources(), 1)
	for a := range w.Sources()[0].Snapshot().Allocations() {
		unread := slices.IndexFunc(a.Stack, func(f mem.Frame) bool { return strings.Contains(f.Function, "could not be read") })
		found, _, _ := strings.Cut(ofPython(a.Stack[:cmp.Or(unread+1, len(a.Stack)+1)-1]), "|")
		if found == "" && unread >= 0 {
			unknown++
			continue
		}
		require.Equal(t, told[a.Ptr], found)
		known++
	}
	return known, unknown
}

// awaitRest waits until a process hardly runs any more, or five seconds. A process that waits for room in its ring buffer does not.
func awaitRest(pid int) {
	used := func() (ns time.Duration) {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/schedstat", pid))
		_, _ = fmt.Sscan(string(text), (*int64)(&ns))
		return ns
	}
	for range 100 {
		before := used()
		time.Sleep(50 * time.Millisecond)
		if used()-before < 5*time.Millisecond {
			return
		}
	}
}
