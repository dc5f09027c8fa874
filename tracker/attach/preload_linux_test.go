//go:build amd64 || arm64

package attach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/preload"
)

// newPreload watches by a library in front of the emulated driver. It needs no rights.
func newPreload(t testing.TB) *Watcher {
	t.Helper()
	return newPreloadWaiting(t, 60_000) // a machine that is busy may stop the watcher for seconds: no event may be lost for it
}

// newPreloadWaiting is the same, with calls that wait for the watcher for some milliseconds.
func newPreloadWaiting(t testing.TB, waitMS int) *Watcher {
	t.Helper()
	libs, err := gpuemu.Build()
	if err != nil {
		t.Skip(err)
	}
	t.Setenv("XDG_CACHE_HOME", sharedDir(t, "cache"))
	w, err := New(Config{Preload: true, Libraries: []string{filepath.Join(libs.Dir, "libcuda.so.1")}, shimWaitMS: waitMS})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, w.Close()) })
	return w
}

// TestPreload: all the ways to the driver, of which each ledger is the driver's own list.
func TestPreload(t *testing.T) {
	for name, test := range map[string]struct {
		program     func(*testing.T) string
		env         string
		without     []string // flags for noring.c
		site, stack string
	}{
		"without files":    {program: func(t *testing.T) string { return buildC(t, "-DLINKED") }, without: []string{"-DNO_FILES"}, site: "client.c:71 load_weights", stack: "load_weights <- train <- "},
		"without a ring":   {program: func(t *testing.T) string { return buildC(t, "-DLINKED") }, without: []string{"-UNO_FILES"}, site: "client.c:71 load_weights", stack: "load_weights <- train <- "},
		"linked":           {program: func(t *testing.T) string { return buildC(t, "-DLINKED") }, site: "client.c:71 load_weights", stack: "load_weights <- train <- "},
		"dlopen and dlsym": {program: func(t *testing.T) string { return buildC(t) }, site: "client.c:71 load_weights", stack: "load_weights <- train <- "},
		"cuGetProcAddress": {program: func(t *testing.T) string { return buildC(t) }, env: "BY_DRIVER=1", site: "client.c:71 load_weights", stack: "load_weights <- train <- "},
		"libcuda.so":       {program: func(t *testing.T) string { return buildC(t) }, env: "CUDA_LIBRARY=libcuda.so", site: "client.c:71 load_weights", stack: "load_weights <- train <- "},
		"cgo":              {program: func(t *testing.T) string { return buildGo(t, "cgo", "1") }, site: "main.go:32 main.loadWeights", stack: "main.loadWeights <- main.train <- main.main"},
		"purego":           {program: func(t *testing.T) string { return buildGo(t, "purego", "0") }, site: "main.go:17 main.loadWeights", stack: "main.loadWeights <- main.main"},
	} {
		t.Run(name, func(t *testing.T) {
			path := test.program(t)
			w := newPreload(t)
			if test.env != "" {
				name, value, _ := strings.Cut(test.env, "=")
				t.Setenv(name, value)
			}
			if test.without != nil {
				withoutRings(t, test.without...)
			}
			c := start(t, w, path, everything...)
			a := largest(t, checked(t, w, c))
			assert.Equal(t, test.site, a.CallSite.String(), "%v", a.Stack)
			assert.Contains(t, names(a.Stack), test.stack)
			c.end(t)
		})
	}
}

// TestPreloadedChildren: a shell runs two programs, one by fork and one by exec, and then one that
// does not use the driver.
func TestPreloadedChildren(t *testing.T) {
	w := newPreload(t)
	path := buildC(t, "-DLINKED")
	c := start(t, w, "sh", "-c", path+" leak 2 </dev/null >/dev/null; exec "+path+" leak 5 fork exec sleep 100")
	want := c.live(t)
	w.Sync()
	sources := w.Sources()
	require.Len(t, sources, 2)
	assert.Equal(t, want, sources[0].addresses())
	assert.Equal(t, c.Process.Pid, sources[0].Origin().PID)
	assert.Equal(t, "client", sources[0].Origin().Program)
	assert.Len(t, sources[1].addresses(), 2)
	assert.Empty(t, w.Warnings())
	require.NoError(t, c.in.Close()) // exec
	require.Eventually(t, func() bool { w.Sync(); return len(sources[0].addresses()) == 0 }, time.Minute, time.Millisecond)
	require.NoError(t, c.Process.Kill())
	c.Wait()
	require.Eventually(t, sources[0].hasEnded, time.Minute, time.Millisecond)
	assert.Len(t, w.Dump().Others, 1)
}

// TestProcessesThatEndedBeforeTheyWereSeen: a shell runs ten programs while the watcher is held up. Each allocates and
// then executes another that allocates too. The memory of the first is freed, and all lines have their names.
func TestProcessesThatEndedBeforeTheyWereSeen(t *testing.T) {
	for name, linked := range map[string][]string{"linked": {"-DLINKED"}, "dlopen": nil} {
		t.Run(name, func(t *testing.T) {
			w := newPreload(t)
			path := buildC(t, linked...)
			w.mu.Lock()
			c := start(t, w, "sh", "-c", "for i in 1 2 3 4 5 6 7 8 9 10; do "+path+" leak 2 exec "+path+" leak 3; done </dev/null >/dev/null; exec sleep 100")
			executable := func() string {
				exe, _ := os.Readlink(fmt.Sprintf("/proc/%d/exe", c.Process.Pid))
				return filepath.Base(exe)
			}
			ended := assert.Eventually(t, func() bool { return executable() == "sleep" }, time.Minute, time.Millisecond)
			w.mu.Unlock()
			require.True(t, ended)
			w.Sync()
			require.NoError(t, c.Process.Kill())
			c.Wait()
			sources := w.Sources()
			require.Len(t, sources, 10)
			for _, s := range sources {
				assert.Len(t, s.addresses(), 3)
				assert.Equal(t, "client", s.Origin().Program)
				for a := range s.Snapshot().Allocations() {
					require.Equal(t, "load_weights", a.CallSite.Function)
				}
			}
			assert.Empty(t, w.Warnings())
		})
	}
}

// TestPreloadedExecs: a process that executes 20 programs, each of which allocates, has one ledger, with what the last one
// allocated. The watcher falls behind, or not.
func TestPreloadedExecs(t *testing.T) {
	program := build(t, "execs", func(out, libs string) *exec.Cmd {
		return exec.Command(compiler(), "-g", "-O1", "-Wall", "-Werror", "-o", out, "testdata/execs.c", "-L"+libs, "-l:libcuda.so.1", "-lpthread")
	})
	const programs = 20
	for name, args := range map[string][]string{"": {"0", "0"}, "threads": {"3", "0"}, "pauses": {"0", "20000"}, "threads and pauses": {"3", "5000"}} {
		for _, held := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, held up: %v", name, held), func(t *testing.T) {
				w := newPreload(t)
				if held {
					w.mu.Lock()
				}
				c := start(t, w, program, append([]string{strconv.Itoa(programs)}, args...)...)
				c.live(t)
				if held {
					w.mu.Unlock()
				}
				w.Sync()
				require.Empty(t, w.Warnings())
				require.Len(t, w.Sources(), 1)
				s := w.Sources()[0]
				assert.EqualValues(t, 1, s.Snapshot().Live.Count)
				if args[0] == "0" {
					assert.EqualValues(t, programs*(programs+1)/2, s.Snapshot().Total.Count)
				}
				assert.Equal(t, "execs", s.Origin().Program)
				assert.Equal(t, 7, c.end(t))
				require.Eventually(t, s.hasEnded, time.Minute, time.Millisecond)
				assert.Len(t, w.Sources(), 1)
				assert.Empty(t, w.Warnings())
			})
		}
	}
}

// TestOnlyItsOwnProcessesAreHeard: the socket's name is no secret. Root accepts all users, and only processes that know the token.
func TestOnlyItsOwnProcessesAreHeard(t *testing.T) {
	users := []int{os.Geteuid()}
	if users[0] == 0 {
		users = append(users, 65534) // nobody
	}
	w := newPreload(t)
	s := w.events.(*preload.Source)
	for _, user := range users {
		for _, name := range []string{"@" + s.Name, s.File} {
			if user != users[0] && name == s.File {
				continue // its folder is root's
			}
			for _, token := range []string{"", strings.Repeat("0", len(s.Token)), s.Token[:len(s.Token)-1] + "x"} {
				fd := forge(t, user, name, token)
				w.Sync()
				assert.Empty(t, w.Sources())
				n, err := unix.Read(fd, make([]byte, 1))
				assert.True(t, n == 0 || err == unix.ECONNRESET, "the watcher has hung up: %d %v", n, err)
				unix.Close(fd)
			}
		}
	}
	c := start(t, w, buildC(t, "-DLINKED"), "leak", "1")
	checked(t, w, c)
	for i, user := range users {
		fd := forge(t, user, "@"+s.Name, s.Token)
		defer unix.Close(fd)
		w.Sync()
		its := slices.IndexFunc(w.Sources(), func(s *Source) bool { return s.Origin().PID == os.Getpid() })
		require.GreaterOrEqual(t, its, 0, "user %d is heard, as the process that it is", user)
		assert.EqualValues(t, i+1, w.Sources()[its].Snapshot().Total.Count)
	}
}

// forged is an event of an allocation of 1 PiB.
func forged() []byte {
	call := make([]byte, event.OffFrames)
	binary.NativeEndian.PutUint64(call[event.OffWhat:], uint64(event.AtReturn)<<32) // cuMemAlloc
	binary.NativeEndian.PutUint64(call[event.OffOut:], 1<<40)
	binary.NativeEndian.PutUint64(call[event.OffArgs+8:], 1<<50)
	return call
}

// forge connects to a watcher as a user. It sends the file of a ring buffer, or an event.
func forge(t *testing.T, user int, name, token string, ring ...int) (fd int) {
	t.Helper()
	connected := make(chan error)
	go func() {
		runtime.LockOSThread() // until the thread ends: it stays this user's
		if user != os.Geteuid() {
			if _, _, err := unix.RawSyscall(unix.SYS_SETRESUID, uintptr(user), uintptr(user), uintptr(user)); err != 0 {
				connected <- err
				return
			}
		}
		var err error
		if fd, err = unix.Socket(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_CLOEXEC, 0); err == nil {
			err = unix.Connect(fd, &unix.SockaddrUnix{Name: name})
		}
		connected <- err
	}()
	require.NoError(t, <-connected)
	greeting := make([]byte, event.ShortSize)
	binary.NativeEndian.PutUint64(greeting[event.OffWhat:], uint64(event.Execed)<<32)
	copy(greeting[event.OffArgs:], token)
	if ring != nil {
		binary.NativeEndian.PutUint64(greeting[event.OffArgs+5*8:], preload.SendsRing)
		require.NoError(t, unix.Sendmsg(fd, greeting, unix.UnixRights(ring...), nil, 0))
		return fd
	}
	_, err := unix.Write(fd, greeting)
	require.NoError(t, err)
	unix.Write(fd, forged()) // the watcher may have hung up
	return fd
}

// TestPreloadInAnotherNetwork: a sandbox without network has no abstract names of outside.
func TestPreloadInAnotherNetwork(t *testing.T) {
	w := newPreload(t)
	c := &client{Cmd: gpuemu.Command(t, gpuemu.Options{}, buildC(t, "-DLINKED"), "leak", "2", "fork")}
	c.Env = w.events.Environ(c.Env)
	c.SysProcAttr = &syscall.SysProcAttr{
		Cloneflags:  syscall.CLONE_NEWUSER | syscall.CLONE_NEWNET,
		UidMappings: []syscall.SysProcIDMap{{HostID: os.Getuid(), Size: 1}},
		GidMappings: []syscall.SysProcIDMap{{HostID: os.Getgid(), Size: 1}},
	}
	if out, err := c.CombinedOutput(); errors.Is(err, syscall.EPERM) || errors.Is(err, syscall.ENOSPC) {
		t.Skipf("no namespaces of a user's own: %v", err)
	} else {
		require.Equal(t, 7, c.ProcessState.ExitCode(), "%s", out)
	}
	w.Sync()
	require.Len(t, w.Sources(), 1)
	assert.Len(t, w.Sources()[0].addresses(), 2)
	assert.Empty(t, w.Warnings())
}

// TestSocketFilesOfKilledWatchersAreRemoved, and one's own at the end.
func TestSocketFilesOfKilledWatchersAreRemoved(t *testing.T) {
	dir := newPreload(t).events.(*preload.Source).Dir
	stale := filepath.Join(dir, fmt.Sprintf("gpumemtrack-%d-STALE", 1<<30))
	require.NoError(t, os.WriteFile(stale, nil, 0o600))
	w := newPreload(t)
	assert.NoFileExists(t, stale)
	own := w.events.(*preload.Source).File
	assert.FileExists(t, own)
	require.NoError(t, w.Close())
	assert.NoFileExists(t, own)
}

// TestAPreloadedProcessThatIsKilled leaves its ledger as it was.
func TestAPreloadedProcessThatIsKilled(t *testing.T) {
	w := newPreload(t)
	c := start(t, w, buildC(t, "-DLINKED"), "kinds", "leak", "3")
	s := checked(t, w, c)
	require.NoError(t, c.Process.Signal(syscall.SIGKILL))
	c.Wait()
	require.Eventually(t, s.hasEnded, time.Minute, time.Millisecond)
	assert.Len(t, s.addresses(), 6)
}

// TestPreloadWithoutAWatcher: the program goes on when the watcher has gone, and when there
// never was one.
func TestPreloadWithoutAWatcher(t *testing.T) {
	w := newPreload(t)
	path := buildC(t, "-DLINKED")
	c := start(t, w, path, "leak", "1", "wait", "leak", "4", "threads", "4")
	require.Eventually(t, func() bool { w.Sync(); return len(ledgers(w, c.Process.Pid)) == 1 }, time.Minute, time.Millisecond)
	require.NoError(t, w.Close())
	fmt.Fprintln(c.in)
	assert.GreaterOrEqual(t, len(c.live(t)), 5)
	assert.Equal(t, 7, c.end(t))

	late := start(t, w, path, "leak", "2", "threads", "4")
	assert.GreaterOrEqual(t, len(late.live(t)), 2)
	assert.Equal(t, 7, late.end(t))
	assert.Len(t, ledgers(w, c.Process.Pid), 1)
}

// TestWithoutCapabilities runs itself without any: the error says what is lacking and what
// does without.
func TestWithoutCapabilities(t *testing.T) {
	const variable = "ATTACH_WITHOUT_CAPABILITIES"
	if os.Getenv(variable) == "" {
		if _, err := gpuemu.Build(); err != nil {
			t.Skip(err)
		}
		cmd := exec.Command("setpriv", "--bounding-set=-all", "--inh-caps=-all", os.Args[0], "-test.run=^TestWithoutCapabilities$", "-test.v")
		cmd.Env = append(os.Environ(), variable+"=1")
		out, err := cmd.CombinedOutput()
		if errors.Is(err, exec.ErrNotFound) || strings.Contains(string(out), "setpriv: ") {
			t.Skipf("no setpriv that may take capabilities away: %v %s", err, out)
		}
		require.NoError(t, err, "%s", out)
		require.Contains(t, string(out), "--- PASS")
		return
	}
	libs, err := gpuemu.Build()
	require.NoError(t, err)
	_, err = New(Config{Libraries: []string{filepath.Join(libs.Dir, "libcuda.so.1")}})
	for _, want := range []string{"lacks CAP_BPF, CAP_PERFMON, CAP_SYS_PTRACE", "sudo setcap cap_bpf,cap_perfmon,cap_sys_ptrace+ep", "--preload"} {
		require.ErrorContains(t, err, want)
	}
	w := newPreload(t)
	a := largest(t, checked(t, w, start(t, w, buildC(t, "-DLINKED"), everything...)))
	assert.Equal(t, "load_weights", a.CallSite.Function)
}

// TestPreloadWithoutACache: where the cache cannot be written, the shim is in the user's own folder among the temporary
// files. If that is not the user's own either, the error names a way out.
func TestPreloadWithoutACache(t *testing.T) {
	libs, err := gpuemu.Build()
	if err != nil {
		t.Skip(err)
	}
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	cfg := Config{Preload: true, Libraries: []string{filepath.Join(libs.Dir, "libcuda.so.1")}}
	refuses := t.TempDir() // root, too, cannot make a folder in what is there
	require.NoError(t, os.Symlink("/proc/self", filepath.Join(refuses, "gpumemtrack")))
	for cache, reason := range map[string]string{"/proc/none": "/proc/none", "": "HOME", refuses: "shim-building"} {
		t.Setenv("XDG_CACHE_HOME", cache)
		t.Setenv("HOME", "")
		w, err := New(cfg)
		require.NoError(t, err)
		own := filepath.Join(temp, fmt.Sprintf("gpumemtrack-%d", os.Geteuid()))
		assert.Equal(t, own, filepath.Dir(w.events.(*preload.Source).Dir))
		c := start(t, w, buildC(t, "-DLINKED"), "leak", "2")
		checked(t, w, c)
		assert.Equal(t, 7, c.end(t))
		require.NoError(t, w.Close())
		require.NoError(t, os.Chmod(own, 0o777)) // others could put a library there
		_, err = New(cfg)
		assert.ErrorContains(t, err, "XDG_CACHE_HOME")
		assert.ErrorContains(t, err, "another user can write there")
		assert.ErrorContains(t, err, reason)
		require.NoError(t, os.Chmod(own, 0o755))
	}
}

func TestPreloadCannotDoAll(t *testing.T) {
	w := newPreload(t)
	assert.ErrorContains(t, w.Watch(1), "start it under the watcher")
	_, err := New(Config{Preload: true, pairs: []event.Pair{{Library: "libpool.so", Alloc: "a", Free: "b", Size: 1, Address: 1}}})
	assert.ErrorContains(t, err, "they need probes")
	_, err = New(Config{Preload: true, Libraries: []string{"/no/such/libcuda.so.1"}})
	assert.ErrorContains(t, err, "no libcuda.so.1 was found")
	t.Setenv("CC", "/no/such/compiler")
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	libs, _ := gpuemu.Build()
	_, err = New(Config{Preload: true, Libraries: []string{filepath.Join(libs.Dir, "libcuda.so.1")}})
	assert.ErrorContains(t, err, "/no/such/compiler")
}
