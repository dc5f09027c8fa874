//go:build amd64 || arm64

package attach

import (
	"cmp"
	"fmt"
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
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/procfs"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/symbols"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// TestStacksWithoutFramePointers: those of a thousand random calls are what the C library's own unwinder says.
func TestStacksWithoutFramePointers(t *testing.T) {
	for _, flags := range []string{"-O2 -fomit-frame-pointer", "-O1 -fomit-frame-pointer", "-O2 -fno-omit-frame-pointer"} {
		path := build(t, "calls", func(out, libs string) *exec.Cmd {
			args := append(strings.Fields(flags), "-g", "-Wall", "-o", out, "testdata/calls.c")
			return exec.Command(compiler(), append(args, "-L"+libs, "-l:libcuda.so.1", "-lpthread")...)
		})
		for name, watcher := range ways {
			t.Run(name+" "+flags, func(t *testing.T) {
				w := watcher(t)
				c := start(t, w, path)
				want := make(map[alloc.Bytes][]uint64)
				for c.out.Scan() && c.out.Text() != "done" {
					var size alloc.Bytes
					fields := strings.Fields(c.out.Text())
					_, err := fmt.Sscan(fields[0], &size)
					require.NoError(t, err)
					for _, field := range fields[1:] {
						var at uint64
						_, err := fmt.Sscanf(field, "%x", &at)
						require.NoError(t, err)
						want[size] = append(want[size], at)
					}
				}
				require.Len(t, want, 1000)
				w.Sync()
				require.Empty(t, w.Warnings())
				resolver := symbolizer(c)
				wrong := 0
				for _, s := range w.Sources() {
					for a := range s.Snapshot().Allocations() {
						truth := ofProgram(resolver.Resolve(symbols.Trace{Addresses: want[a.Requested], FirstUncertain: symbols.NotReported, End: symbols.NoTable}, nil))
						if got := ofProgram(a.Stack); got != truth {
							if wrong++; wrong < 4 {
								t.Errorf("%v:\n got %s\nwant %s", a.Requested, got, truth)
							}
						}
					}
				}
				assert.Zero(t, wrong, "of a thousand")
			})
		}
	}
}

// TestStacksAreThoseOfGDB: optimized programs in several languages, without frame pointers, have the callers that gdb finds in
// another run, lines and inlined functions included.
func TestStacksAreThoseOfGDB(t *testing.T) {
	long.Test(t, "asks gdb for the stacks of programs in three languages")
	for name, command := range map[string][]string{
		"C":    {compiler(), "-g", "-O2", "-fomit-frame-pointer", "testdata/calls.c", "-lpthread", "-lcuda"},
		"C++":  {"g++", "-std=c++20", "-g", "-O2", "-fomit-frame-pointer", "testdata/calls.cc", "-lpthread", "-lcuda"},
		"Rust": {"rustc", "-g", "-C", "opt-level=2", "-C", "force-frame-pointers=no", "testdata/calls.rs", "-l", "cuda"},
	} {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(command[0]); err != nil {
				t.Skip(err)
			}
			path := build(t, "calls", func(out, libs string) *exec.Cmd {
				return exec.Command(command[0], append(slices.Clone(command[1:]), "-o", out, "-L", libs)...)
			})
			want := make(map[alloc.Bytes]byGDB)
			for _, call := range ofDriver(t, "cuMemAlloc_v2").run(t, path) {
				want[call.size] = call
			}
			require.Len(t, want, 1000)
			for way, watcher := range ways {
				t.Run(way, func(t *testing.T) {
					w := watcher(t)
					c := start(t, w, path)
					for c.out.Scan() && c.out.Text() != "done" {
					}
					w.Sync()
					require.Empty(t, w.Warnings())
					require.Len(t, w.Sources(), 1)
					seen, wrong := 0, 0
					for a := range w.Sources()[0].Snapshot().Allocations() {
						seen++
						if !isAsGDB(a.Stack, want[a.Requested]) {
							if wrong++; wrong < 4 {
								t.Errorf("%v:\n got %s\nwant %v", a.Requested, a.Stack, want[a.Requested].callers)
							}
						}
					}
					assert.Equal(t, 1000, seen)
					assert.Zero(t, wrong, "of a thousand")
				})
			}
		})
	}
}

// symbolizer names the code that a client has now.
func symbolizer(c *client) *symbols.Symbolizer {
	read := func() []procfs.Mapping {
		all, _ := procfs.ReadMaps(c.Process.Pid)
		return all
	}
	return symbols.New(c.Process.Pid, event.MaxFrames, procfs.Maps{}, read, func() {})
}

// isAsGDB reports whether a stack has the callers that gdb found. Those that call main or a thread's first function may be missing, and
// the outer ones of a stack that is larger than what is copied: it is copied until the unwind rules of its code are loaded.
func isAsGDB(s mem.Stack, by byGDB) bool {
	want := by.callers
	least := len(want)
	beyond, _, _ := strings.Cut(symbols.BeyondCopy, "%s")
	if n := len(s) - 1; by.depth > event.MaxCopy-event.Chunk && n > 0 && strings.HasPrefix(s[n].Function, beyond) {
		s, least = s[:n], min(n, least)
	}
	for least > 0 && (want[least-1].what == "_start" || strings.HasPrefix(want[least-1].what, "libc.so")) {
		least--
	}
	if len(s) < least || len(s) > len(want) {
		return false
	}
	return slices.EqualFunc(s, want[:len(s)], func(f mem.Frame, its callerByGDB) bool {
		line, name, _ := strings.Cut(its.what, " ")
		switch {
		case strings.Contains(filepath.Base(f.File), ".so"):
			return strings.HasPrefix(filepath.Base(f.File), its.what) // gdb has a link to it
		case f.Line == 0: // the compiler says that it is of no line, or of one unknown: gdb takes the line before
			return f.Function == cmp.Or(name, line)
		}
		return fmt.Sprintf("%s:%d", filepath.Base(f.File), f.Line) == line
	})
}

// TestThreadsEndWithTheirFunction: where frame pointers give no more than a thread's first function, its stack is whole, and says
// nothing of an early end.
func TestThreadsEndWithTheirFunction(t *testing.T) {
	library, path := buildPieces(t, "-fomit-frame-pointer")
	pair, err := event.ParsePair(library + ":pool_alloc(size=2,out=3),pool_free(address=2)")
	require.NoError(t, err)
	w := newWatcher(t, Config{pairs: []event.Pair{pair}})
	s := checked(t, w, start(t, w, path))
	assert.Contains(t, names(largest(t, s).Stack), "take <- worker")
	assert.NotContains(t, names(largest(t, s).Stack), "ends early")
}

// TestAStackThatIsTooLong says so: a frame of its own is larger than what is copied. When the functions below it are known, the copy
// begins further out, and the stack is whole.
func TestAStackThatIsTooLong(t *testing.T) {
	w := newWatcher(t, Config{})
	path := build(t, "deep", func(out, libs string) *exec.Cmd {
		return exec.Command(compiler(), "-O2", "-fomit-frame-pointer", "-g", "-Wall", "-o", out, "testdata/deep.c", "-L"+libs, "-l:libcuda.so.1")
	})
	c := start(t, w, path)
	s := checkedSource(t, w, c)
	calls := map[string]string{"amd64": "allocate <- large", "arm64": "allocate <- large <- caller"}[runtime.GOARCH] // the return address is at the other end of the frame
	assert.Equal(t, calls+" <- (the stack ends early: what lies beyond deep.c is further up the stack than was copied)", names(latest(s).Stack))
	for range 2 {
		fmt.Fprintln(c.in)
		checkedSource(t, w, c)
		assert.Equal(t, "allocate <- large <- caller <- main", ofProgram(latest(s).Stack))
	}
}

// TestTheMostFrames: a stack says that frames are left out exactly if some are, whether tables or frame pointers lead to its end.
func TestTheMostFrames(t *testing.T) {
	for _, flags := range []string{"-fomit-frame-pointer -g", "-fno-omit-frame-pointer -fno-asynchronous-unwind-tables -fno-unwind-tables"} {
		path := build(t, "depths", func(out, libs string) *exec.Cmd {
			args := append(strings.Fields(flags), "-O2", "-fno-optimize-sibling-calls", "-fno-inline", "-Wall", "-Werror", "-o", out, "testdata/depths.c")
			return exec.Command(compiler(), append(args, "-L"+libs, "-l:libcuda.so.1")...)
		})
		for way, watcher := range ways {
			t.Run(flags+", "+way, func(t *testing.T) {
				w := watcher(t)
				s := checkedSource(t, w, start(t, w, path))
				seen := 0
				for a := range s.Snapshot().Allocations() {
					depth := int(a.Requested) % 1000
					want := strings.Repeat("dive <- ", depth) + "main"
					if depth >= event.MaxFrames {
						want = strings.Repeat("dive <- ", event.MaxFrames) + fmt.Sprintf("(more than %d frames: the others are left out)", event.MaxFrames)
					}
					require.Equal(t, want, ofProgram(a.Stack), "%d calls deep", depth)
					seen++
				}
				require.Equal(t, 280, seen)
			})
		}
	}
}

// TestCallersThatMayBeMissing: the caller of code that has no table and keeps no frame pointer is lost, and the stack says so where it is. It
// does not where there is a frame pointer.
func TestCallersThatMayBeMissing(t *testing.T) {
	for library, test := range map[string]struct{ flags, stack string }{
		"no frame pointers":          {"-fomit-frame-pointer", "take <- frameless <- (callers may be missing here: libframeless.so has no table of them, and may keep no frame pointers) <- "},
		"frame pointers":             {"-fno-omit-frame-pointer", "take <- frameless <- layer <- main"},
		"a table":                    {"-fomit-frame-pointer -fasynchronous-unwind-tables", "take <- frameless <- layer <- main"},
		"frame pointers, no symbols": {"-fno-omit-frame-pointer -s", "take <- frameless <- layer <- main"}, // the library exports its function
	} {
		path := build(t, "calledback", func(out, libs string) *exec.Cmd {
			dir := filepath.Dir(out)
			script := fmt.Sprintf(`%s -O2 -fno-asynchronous-unwind-tables %s -shared -fPIC -o %s/libframeless.so testdata/frameless.c &&
				%[1]s -O1 -fno-omit-frame-pointer -Wall -Werror -o %[4]s testdata/calledback.c -L%[3]s -lframeless -Wl,-rpath,%[3]s -L%[5]s -l:libcuda.so.1`,
				compiler(), test.flags, dir, out, libs)
			return exec.Command("sh", "-c", script)
		})
		for way, watcher := range ways {
			t.Run(library+", "+way, func(t *testing.T) {
				w := watcher(t)
				s := checkedSource(t, w, start(t, w, path))
				assert.Contains(t, names(latest(s).Stack), test.stack)
			})
		}
	}
}

// reopen builds a program that opens libraries one after another, and two libraries that differ in a function's name and frame.
func reopen(t *testing.T) (program string, libraries []string) {
	for _, flags := range []string{"-DNAME=first_does -DROOM=4096", "-DNAME=other_does -DROOM=8192"} {
		libraries = append(libraries, build(t, "libreopen.so", func(out, libs string) *exec.Cmd {
			args := append(strings.Fields(flags), "-O2", "-fomit-frame-pointer", "-shared", "-fPIC", "-o", out, "testdata/reopen.c")
			return exec.Command(compiler(), append(args, "-L"+libs, "-l:libcuda.so.1")...)
		}))
	}
	program = build(t, "reopen", func(out, libs string) *exec.Cmd {
		return exec.Command(compiler(), "-O2", "-Wall", "-Werror", "-o", out, "testdata/reopen.c", "-L"+libs, "-l:libcuda.so.1", "-ldl")
	})
	return program, libraries
}

// TestCodeInThePlaceOfOther: a library that was opened where another was has its own names and callers.
func TestCodeInThePlaceOfOther(t *testing.T) {
	path, libraries := reopen(t)
	for way, watcher := range ways {
		t.Run(way, func(t *testing.T) {
			w := watcher(t)
			c := start(t, w, path, libraries[0], libraries[1], libraries[0])
			where := ""
			for i, want := range []string{"first_does <- run <- main", "other_does <- run <- main", "first_does <- run <- main"} {
				s := checkedSource(t, w, c)
				if i > 0 && c.out.Text() != where {
					t.Skip("the library was opened elsewhere")
				}
				where = c.out.Text()
				assert.Equal(t, want, ofProgram(latest(s).Stack), i)
				fmt.Fprintln(c.in)
			}
		})
	}
}

// TestCodeUnmappedBeforeItsEventIsRead has its own name or none: never that of what came in its place.
func TestCodeUnmappedBeforeItsEventIsRead(t *testing.T) {
	path, libraries := reopen(t)
	for name, inTime := range map[string]int{"not even its exec is read in time": -1, "none is read in time": 0, "one is read in time": 1} {
		t.Run(name, func(t *testing.T) {
			w := newWatcher(t, Config{})
			var c *client
			if inTime <= 0 {
				w.mu.Lock() // the reader cannot go on
			}
			if inTime < 0 { // and it is at the exec of another
				other := exec.Command("true")
				require.NoError(t, w.Start(other))
				require.NoError(t, other.Wait())
			}
			c = start(t, w, path, libraries[0], libraries[1], libraries[0], libraries[1])
			if inTime == 1 {
				assert.Equal(t, "first_does <- run <- main", ofProgram(latest(checkedSource(t, w, c)).Stack))
				w.mu.Lock()
				fmt.Fprintln(c.in)
			}
			for i := max(inTime, 0); i < 4; i++ {
				seen := c.out.Scan()
				if i < 3 { // the last one stays
					fmt.Fprintln(c.in)
				}
				if !seen {
					t.Error("the client ended early")
				}
			}
			if inTime < 0 { // what was read ahead of the reader comes too late as well
				w.events.(*probes.Source).Starts.Drop()
			}
			w.mu.Unlock()
			w.Sync()
			require.Len(t, w.Sources(), 1)
			seen := 0
			for e := range w.Sources()[0].Dump().Events() {
				other := []string{"other_does", "first_does"}[seen%2]
				assert.NotContains(t, names(e.Stack), other, seen)
				seen++
			}
			assert.Equal(t, 4, seen)
			for _, s := range w.Sources() {
				assert.Equal(t, "reopen", s.Origin().Program)
			}
		})
	}
}

// TestCodeThatIsMappedOverOther, by the program itself: it has its own names once the program has opened a library. Before, nothing tells
// of it: docs/attach.md says so.
func TestCodeThatIsMappedOverOther(t *testing.T) {
	path, libraries := reopen(t)
	w := newWatcher(t, Config{})
	c := start(t, w, path, libraries[0], "+", libraries[1], "+", libraries[0])
	for i, want := range []string{"first_does <- run <- main", "other_does <- run <- main", "first_does <- run <- main"} {
		s := checkedSource(t, w, c)
		assert.Equal(t, want, ofProgram(latest(s).Stack), i)
		fmt.Fprintln(c.in)
	}
}

// TestALibraryThatIsWrittenAgain, in place, has the names that it has then.
func TestALibraryThatIsWrittenAgain(t *testing.T) {
	path, libraries := reopen(t)
	library := filepath.Join(t.TempDir(), "libreopen.so")
	write := func(from string) {
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(library, text, 0o755))
	}
	write(libraries[0])
	w := newWatcher(t, Config{})
	c := start(t, w, path, library, "-", library)
	assert.Equal(t, "first_does <- run <- main", ofProgram(latest(checkedSource(t, w, c)).Stack))
	fmt.Fprintln(c.in)
	require.True(t, c.out.Scan()) // it has closed the library
	write(libraries[1])
	fmt.Fprintln(c.in)
	assert.Equal(t, "other_does <- run <- main", ofProgram(latest(checkedSource(t, w, c)).Stack))
}

// checkedSource waits until a client has allocated, and returns its source.
func checkedSource(t *testing.T, w *Watcher, c *client) *Source {
	t.Helper()
	require.True(t, c.out.Scan())
	w.Sync()
	require.Len(t, w.Sources(), 1)
	return w.Sources()[0]
}

// ofProgram names the functions of a stack, but for those of the C library that call the first.
func ofProgram(s mem.Stack) string {
	for i, f := range s {
		if f.Function == "main" || f.Function == "begin" {
			return names(s[:i+1])
		}
	}
	return names(s)
}
