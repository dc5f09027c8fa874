//go:build amd64 || arm64

package attach

import (
	"fmt"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// ways are the two that events come by.
var ways = map[string]func(testing.TB) *Watcher{
	"probes":  func(t testing.TB) *Watcher { return newWatcher(t, Config{}) },
	"preload": newPreload,
}

// followed compares the ledger with the driver's own list at the moments when a client stops to
// print it, and returns the source.
func followed(t *testing.T, w *Watcher, c *client, moments int) (s *Source) {
	t.Helper()
	for moment := range moments {
		s = checked(t, w, c)
		require.NotEmpty(t, s.addresses(), "moment %d", moment)
		fmt.Fprintln(c.in)
	}
	return s
}

// TestRandomMoments of a program with threads.
func TestRandomMoments(t *testing.T) {
	path := buildC(t, "-DLINKED")
	for name, watcher := range ways {
		t.Run(name, func(t *testing.T) {
			w := watcher(t)
			c := start(t, w, path, "threads", "4", "pause", "threads", "8", "pause", "kinds", "contexts", "pause", "threads", "8", "pause", "release", "foreign", "pause", "threads", "2", "pause", "free", "leak", "1")
			followed(t, w, c, 6)
			checked(t, w, c)
			c.end(t)
		})
	}
}

func TestCPlusPlus(t *testing.T) {
	if _, err := exec.LookPath("g++"); err != nil {
		t.Skip("there is no g++")
	}
	path := build(t, "client", func(out, libs string) *exec.Cmd {
		return exec.Command("g++", "-g", "-O1", "-fno-omit-frame-pointer", "-Wall", "-Werror", "-o", out, "testdata/client.cc", "-L"+libs, "-l:libcuda.so.1", "-lpthread")
	})
	for name, watcher := range ways {
		t.Run(name, func(t *testing.T) {
			w := watcher(t)
			s := followed(t, w, start(t, w, path), 5)
			stack := names(largest(t, s).Stack)
			assert.Contains(t, stack, "model::Weights::load(unsigned long) <- ")
			assert.True(t, slices.ContainsFunc(slices.Collect(s.Dump().Events()), func(e snapshot.Event) bool { return e.Action == mem.OutOfMemory }))
		})
	}
}

// latest is the allocation that was made last.
func latest(s *Source) (last snapshot.Allocation) {
	for a := range s.Snapshot().Allocations() {
		if a.Seq >= last.Seq {
			last = a
		}
	}
	return last
}

// TestPython: the ledger is exact, and Python's functions have their names, with -X perf too.
func TestPython(t *testing.T) {
	if exec.Command("python3", "-c", "import ctypes").Run() != nil {
		t.Skip("there is no Python 3 with ctypes")
	}
	flags := [][]string{{"testdata/client.py"}}
	if exec.Command("python3", "-X", "perf", "-c", "import sys; sys.exit(not sys.is_stack_trampoline_active())").Run() == nil {
		flags = append(flags, []string{"-X", "perf", "testdata/client.py"})
	}
	for name, watcher := range ways {
		for _, args := range flags {
			t.Run(name+" "+args[0], func(t *testing.T) {
				w := watcher(t)
				s := followed(t, w, start(t, w, "python3", args...), 3)
				a := latest(s) // a first one may come before the interpreter is known
				assert.Regexp(t, "load_weights <- .*train <- ", names(a.Stack))
				assert.Equal(t, "load_weights", a.CallSite.Function)
				assert.Equal(t, 1, strings.Count(names(a.Stack), "load_weights"))
			})
		}
	}
}
