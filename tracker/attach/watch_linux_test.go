//go:build amd64 || arm64

package attach

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/probes"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/leaks"
)

// TestAProcessThatRuns: what it had before is not known, and its frees are not believed.
func TestAProcessThatRuns(t *testing.T) {
	path := buildC(t, "-DLINKED")
	other := newWatcher(t, Config{}) // only starts it
	c := start(t, other, path, "leak", "2", "wait", "free", "leak", "3", "foreign")
	require.Eventually(t, func() bool { other.Sync(); return len(ledgers(other, c.Process.Pid)) == 2 }, time.Minute, time.Millisecond)

	w := newWatcher(t, Config{})
	require.NoError(t, w.Watch(c.Process.Pid))
	fmt.Fprintln(c.in)
	driver := c.live(t)
	w.Sync()
	mine := ledgers(w, c.Process.Pid)
	for at, size := range mine {
		assert.Equal(t, size, driver[at])
	}
	assert.Len(t, mine, 4)
	assert.Len(t, driver, 4)
	assert.EqualValues(t, 2, w.unknownFrees())
	name, _ := w.Sources()[0].Device()
	assert.Equal(t, "GPU of unknown number", name)
	assert.Len(t, w.Warnings(), 1)

	assert.ErrorContains(t, w.Watch(1<<30), "there is no process")
}

// TestAProcessThatIsKilled leaves its ledger as it was.
func TestAProcessThatIsKilled(t *testing.T) {
	w := newWatcher(t, Config{})
	c := start(t, w, buildC(t, "-DLINKED"), "kinds", "leak", "3")
	s := checked(t, w, c)
	before := s.Snapshot().Live
	require.NoError(t, c.Process.Signal(syscall.SIGKILL))
	c.Wait()
	require.NoError(t, w.Close())
	assert.Equal(t, before, s.Snapshot().Live)
	assert.EqualValues(t, 6, before.Count)
	var page bytes.Buffer
	require.NoError(t, html.Write(&page, w.Dump()))
	assert.Contains(t, page.String(), "load_weights")
}

// TestChildren: a shell that runs two programs, one after another and one through exec.
func TestChildren(t *testing.T) {
	w := newWatcher(t, Config{})
	path := buildC(t, "-DLINKED")
	c := start(t, w, "sh", "-c", path+" leak 2 </dev/null >/dev/null; exec "+path+" leak 5")
	want := c.live(t)
	w.Sync()
	sources := w.Sources()
	require.Len(t, sources, 2)
	assert.Equal(t, want, sources[0].addresses())
	assert.Equal(t, c.Process.Pid, sources[0].Origin().PID)
	assert.Equal(t, "client", sources[0].Origin().Program)
	assert.Len(t, sources[1].addresses(), 2)
	assert.Equal(t, 7, c.end(t), "the exit code is the program's own")
	assert.Len(t, w.Dump().Others, 1)
	assert.Empty(t, w.Warnings())
}

// TestAProgramThatEndedBeforeItsEvents were read: its name, its functions and those of its children are known all the same.
func TestAProgramThatEndedBeforeItsEvents(t *testing.T) {
	w := newWatcher(t, Config{})
	path := buildC(t, "-DLINKED")
	w.mu.Lock() // which holds the watcher up at the shell's exec
	c := start(t, w, "sh", "-c", path+" leak 2; exit 7")
	want := c.live(t)
	seen := assert.Eventually(t, func() bool {
		return slices.Contains(w.events.(*probes.Source).Starts.Programs(), "client")
	}, time.Minute, time.Millisecond)
	assert.Equal(t, 7, c.end(t))
	w.mu.Unlock()
	require.True(t, seen)
	w.Sync()
	sources := w.Sources()
	require.Len(t, sources, 1)
	assert.Equal(t, "client", sources[0].Origin().Program)
	assert.Equal(t, want, sources[0].addresses())
	for a := range sources[0].Snapshot().Allocations() {
		assert.Equal(t, "load_weights", a.CallSite.Function)
	}
}

// TestNameOfExitedProgram is that of the file that the kernel executed, and never that of the program before it, if nothing of it could be
// read before it ended. Its own functions have their names.
func TestNameOfExitedProgram(t *testing.T) {
	path, another := buildC(t, "-DLINKED"), filepath.Join(t.TempDir(), "another-program")
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(another, text, 0o755))
	for name, command := range map[string][]string{
		"after an exec": {path, "leak", "1", "exec", another, "leak", "2"},
		"after a fork":  {"sh", "-c", path + " leak 1 </dev/null; read line; " + another + " leak 2; true"},
	} {
		t.Run(name, func(t *testing.T) {
			w := newWatcher(t, Config{})
			c := start(t, w, command[0], command[1:]...)
			c.live(t)
			w.Sync()
			require.Len(t, w.Sources(), 1)
			require.Equal(t, "client", w.Sources()[0].Origin().Program)
			w.mu.Lock() // which holds the watcher up
			if command[0] == "sh" {
				fmt.Fprintln(c.in)
			}
			require.NoError(t, c.in.Close())
			want := c.live(t)
			c.Wait()
			w.events.(*probes.Source).Starts.Drop()
			w.mu.Unlock()
			w.Sync()
			for _, s := range w.Sources() {
				if s.Origin().Program != "client" {
					assert.Equal(t, "another-program", s.Origin().Program)
					assert.Equal(t, want, s.addresses())
					for a := range s.Snapshot().Allocations() {
						assert.Equal(t, "load_weights", a.CallSite.Function, "of its executable, whose place the kernel knows")
					}
					return
				}
			}
			assert.Fail(t, "no source has the new program's name")
		})
	}
}

// TestOthersAreNotWatched: the probes are in the library, which all processes share.
func TestOthersAreNotWatched(t *testing.T) {
	w := newWatcher(t, Config{})
	other := newWatcher(t, Config{})
	c := start(t, other, buildC(t, "-DLINKED"), "leak", "2")
	checked(t, other, c)
	w.Sync()
	assert.Empty(t, w.Sources())
	assert.Nil(t, w.Dump())
}

// TestLostEvents are counted and said.
func TestLostEvents(t *testing.T) {
	w := newWatcher(t, Config{RingBufferBytes: 1})
	w.mu.Lock() // the reader cannot go on
	c := &client{Cmd: gpuemu.Command(t, gpuemu.Options{}, buildC(t, "-DLINKED"), "churn", "2000")}
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	c.out = bufio.NewScanner(out)
	begun := time.Now()
	require.NoError(t, w.events.Watch(os.Getpid()))
	require.NoError(t, c.Start())
	w.events.Unwatch(os.Getpid())
	c.live(t)
	w.mu.Unlock()
	c.Wait()
	w.Sync()
	assert.Positive(t, w.lostEvents())
	since := w.accuracy.LostSince
	assert.True(t, since.After(begun) && since.Before(time.Now()), "%v", since)
	assert.Contains(t, w.Warnings()[0], "events were lost")
	assert.Contains(t, w.Dump().Reason, "events were lost")
}

// TestManyThreads is a burst: every event is there, or is said to be lost.
func TestManyThreads(t *testing.T) {
	w := newWatcher(t, Config{})
	c := start(t, w, buildC(t), "threads", "16", "threads", "16")
	want := c.live(t)
	w.Sync()
	if w.lostEvents() > 0 {
		t.Skip("the machine was too slow to read all events: ", w.Warnings())
	}
	assert.Equal(t, want, ledgers(w, c.Process.Pid))
	assert.Empty(t, w.Warnings())
	dump := w.Sources()[0].Dump()
	var events uint64
	for e := range dump.Events() {
		require.Contains(t, []mem.Action{mem.Allocated, mem.Freed}, e.Action)
		events++
	}
	assert.EqualValues(t, w.Sources()[0].Snapshot().Total.Count*2-int64(len(want)), events+tables.OfHistory(&dump.History).First)
}

// TestUnreadRingBuffer: while the reader does nothing, 200 threads allocate 80,000 times in functions that it has not seen. Nothing is lost
// but the callers of some, and their stacks say so.
func TestUnreadRingBuffer(t *testing.T) {
	w := newWatcher(t, Config{RingBufferBytes: 64 << 20})
	c := start(t, w, buildC(t, "-DLINKED", "-O1", "-fomit-frame-pointer"), "leak", "1", "wait", "many", "400")
	require.Eventually(t, func() bool { w.Sync(); return len(w.Sources()) > 0 }, time.Minute, 10*time.Millisecond)
	w.mu.Lock()
	fmt.Fprintln(c.in)
	want := c.live(t)
	w.mu.Unlock()
	w.Sync()
	require.Empty(t, w.Warnings())
	require.Equal(t, want, ledgers(w, c.Process.Pid))
	require.Len(t, want, 201)
	leftOut := 0
	for a := range w.Sources()[0].Snapshot().Allocations() {
		switch stack := names(a.Stack); {
		case strings.Contains(stack, "calls came faster than they were read"):
			leftOut++
		case a.Requested == 4096:
			assert.Equal(t, "load_weights <- train <- pairs", stack)
		}
	}
	assert.Positive(t, leftOut)
}

// TestNothingIsLeft: a watcher that is closed has no probe in the kernel, and its program goes on.
func TestNothingIsLeft(t *testing.T) {
	w := newWatcher(t, Config{})
	c := start(t, w, buildC(t, "-DLINKED"), "leak", "1", "wait", "leak", "4")
	require.Eventually(t, func() bool { w.Sync(); return len(ledgers(w, c.Process.Pid)) == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, w.Close())
	require.NoError(t, w.Close())
	fmt.Fprintln(c.in)
	assert.Len(t, c.live(t), 5)
	assert.Len(t, ledgers(w, c.Process.Pid), 1)
	w.Sync()
	assert.Equal(t, 7, c.end(t))
}

// TestTheExample leaks; its functions are inlined, and it does not wait to be looked at.
func TestTheExample(t *testing.T) {
	path := build(t, "leak", func(out, libs string) *exec.Cmd {
		return exec.Command(compiler(), "-g", "-O1", "-fno-omit-frame-pointer", "-o", out, "../../examples/attach/leak.c", "-L"+libs, "-l:libcuda.so.1")
	})
	w := newWatcher(t, Config{})
	cmd := gpuemu.Command(t, gpuemu.Options{}, path, "50")
	require.NoError(t, w.Start(cmd))
	require.NoError(t, cmd.Wait())
	require.NoError(t, w.Close())
	require.Len(t, w.Sources(), 1)
	live := leaks.Live(w.Sources()[0].Snapshot())
	require.Len(t, live, 1)
	assert.EqualValues(t, 5, live[0].Count)
	assert.Contains(t, names(live[0].Stack), "new_buffer <- decode <- main")
	assert.Equal(t, "new_buffer", live[0].CallSite.Function)
	for _, f := range live[0].Stack[:3] {
		assert.True(t, strings.HasSuffix(f.File, "/examples/attach/leak.c") && f.Line > 0, f)
	}
}

// TestInAPIDNamespace: the kernel numbers processes as the machine does, which a container does not see.
func TestInAPIDNamespace(t *testing.T) {
	const variable = "ATTACH_IN_A_PID_NAMESPACE"
	if os.Getenv(variable) != "" {
		_, err := New(Config{})
		require.ErrorContains(t, err, "start the container with --pid=host")
		return
	}
	newWatcher(t, Config{})
	cmd := exec.Command("unshare", "--pid", "--fork", "--mount-proc", os.Args[0], "-test.run=^TestInAPIDNamespace$", "-test.v")
	cmd.Env = append(os.Environ(), variable+"=1")
	out, err := cmd.CombinedOutput()
	if errors.Is(err, exec.ErrNotFound) || strings.Contains(string(out), "unshare: ") {
		t.Skipf("no namespaces here: %v %s", err, out)
	}
	require.NoError(t, err, "%s", out)
	require.Contains(t, string(out), "--- PASS")
}
