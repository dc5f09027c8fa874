//go:build amd64 || arm64

package attach

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/long"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/probes"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// newWatcher watches the emulated driver. The test is skipped where there is none, and
// where the machine allows no probes.
func newWatcher(t testing.TB, cfg Config) *Watcher {
	t.Helper()
	libs, err := gpuemu.Build()
	if err != nil {
		t.Skip(err)
	}
	cfg.Libraries = []string{filepath.Join(libs.Dir, "libcuda.so.1")}
	w, err := New(cfg)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skipf("BPF and uprobes are refused here: %v", err)
	}
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, w.Close()) })
	return w
}

// client is a program that allocates.
type client struct {
	*exec.Cmd
	in    io.WriteCloser
	out   *bufio.Scanner
	churn float64 // ns that it took
}

// built is what was compiled in this run, in one folder.
var built struct {
	sync.Mutex
	dir   string
	paths map[string]string // by the command
}

func TestMain(m *testing.M) {
	code := m.Run()
	if built.dir != "" {
		os.RemoveAll(built.dir)
	}
	os.Exit(code)
}

// sharedDir is a folder for what several tests need.
func sharedDir(t testing.TB, name string) string {
	t.Helper()
	if built.dir == "" {
		var err error
		built.dir, err = os.MkdirTemp("", "attach-test-")
		require.NoError(t, err)
		built.paths = make(map[string]string)
	}
	dir := filepath.Join(built.dir, name)
	require.NoError(t, os.MkdirAll(dir, 0o755))
	return dir
}

// build compiles a client of testdata, once a run.
func build(t testing.TB, name string, command func(out, libs string) *exec.Cmd) string {
	t.Helper()
	libs, err := gpuemu.Build()
	if err != nil {
		t.Skip(err)
	}
	built.Lock()
	defer built.Unlock()
	key := fmt.Sprint(command("", libs.Dir).Args)
	if path := built.paths[key]; path != "" {
		return path
	}
	out := filepath.Join(sharedDir(t, strconv.Itoa(len(built.paths))), name)
	cmd := command(out, libs.Dir)
	text, err := cmd.CombinedOutput()
	require.NoError(t, err, "%s", text)
	built.paths[key] = out
	return out
}

func compiler() string {
	if set := os.Getenv("CC"); set != "" {
		return set
	}
	return "gcc"
}

func buildC(t testing.TB, flags ...string) string {
	return build(t, "client", func(out, libs string) *exec.Cmd {
		args := append([]string{"-g", "-O1", "-fno-omit-frame-pointer", "-Wall", "-Werror", "-o", out, "testdata/client.c"}, flags...)
		return exec.Command(compiler(), append(args, "-L"+libs, "-l:libcuda.so.1", "-lpthread", "-ldl")...)
	})
}

func buildGo(t testing.TB, dir, cgo string, flags ...string) string {
	return build(t, "client", func(out, libs string) *exec.Cmd {
		cmd := exec.Command("go", append(append([]string{"build", "-o", out}, flags...), "./testdata/"+dir)...)
		cmd.Env = append(os.Environ(), "CGO_ENABLED="+cgo, "CGO_LDFLAGS=-L"+libs)
		return cmd
	})
}

// start starts a client under the watcher; under none if it is nil.
func start(t testing.TB, w *Watcher, path string, args ...string) *client {
	t.Helper()
	c := &client{Cmd: gpuemu.Command(t, gpuemu.Options{}, path, args...)}
	var err error
	c.in, err = c.StdinPipe()
	require.NoError(t, err)
	out, err := c.StdoutPipe()
	require.NoError(t, err)
	c.Stderr = os.Stderr
	c.out = bufio.NewScanner(out)
	if w == nil {
		require.NoError(t, c.Start())
	} else {
		require.NoError(t, w.Start(c.Cmd))
	}
	t.Cleanup(func() { c.Process.Kill(); c.Wait() })
	return c
}

// live reads what the driver has live, as the client says when it has done all.
func (c *client) live(t testing.TB) map[alloc.Ptr]alloc.Bytes {
	t.Helper()
	live := make(map[alloc.Ptr]alloc.Bytes)
	for c.out.Scan() {
		if c.out.Text() == "done" {
			return live
		}
		if _, err := fmt.Sscanf(c.out.Text(), "churn %g", &c.churn); err == nil {
			continue
		}
		var at alloc.Ptr
		var size alloc.Bytes
		_, err := fmt.Sscanf(c.out.Text(), "live %x %d", &at, &size)
		require.NoError(t, err, c.out.Text())
		live[at] = size
	}
	require.Fail(t, "the client ended early")
	return nil
}

// end lets the client end.
func (c *client) end(t testing.TB) int {
	t.Helper()
	require.NoError(t, c.in.Close())
	c.Wait()
	return c.ProcessState.ExitCode()
}

// ledgers returns what all sources of a process have live.
func ledgers(w *Watcher, pid int) map[alloc.Ptr]alloc.Bytes {
	all := make(map[alloc.Ptr]alloc.Bytes)
	for _, s := range w.Sources() {
		if s.Origin().PID == pid {
			maps.Copy(all, s.addresses())
		}
	}
	return all
}

// checked compares the ledger with the driver's own list and with itself.
func checked(t testing.TB, w *Watcher, c *client) *Source {
	t.Helper()
	want := c.live(t)
	w.Sync()
	require.Equal(t, want, ledgers(w, c.Process.Pid))
	require.Empty(t, w.Warnings())
	for _, s := range w.Sources() {
		adds(t, s.Snapshot())
	}
	require.NotEmpty(t, w.Sources())
	return w.Sources()[0]
}

func names(s mem.Stack) string {
	var all []string
	for _, f := range s {
		all = append(all, f.Function)
	}
	return strings.Join(all, " <- ")
}

// largest returns the stack and the site of the largest live buffer.
func largest(t testing.TB, s *Source) (best snapshot.Allocation) {
	t.Helper()
	for a := range s.Snapshot().Allocations() {
		if a.Requested > best.Requested {
			best = a
		}
	}
	return best
}

// everything is arguments for testdata/client.c.
var everything = []string{"kinds", "contexts", "threads", "4", "leak", "3", "churn", "20", "foreign", "big"}

func TestPrograms(t *testing.T) {
	for name, test := range map[string]struct {
		program func() string
		env     string
		cfg     Config
		site    string
		stack   string
		long    bool
	}{
		"C, linked":               {program: func() string { return buildC(t, "-DLINKED") }, site: "client.c:71 load_weights", stack: "load_weights <- train <- "},
		"C, dlopen and dlsym":     {program: func() string { return buildC(t) }, site: "client.c:71 load_weights", stack: "load_weights <- train <- "},
		"C, cuGetProcAddress":     {program: func() string { return buildC(t) }, env: "BY_DRIVER=1", site: "client.c:71 load_weights", stack: "load_weights <- train <- "},
		"C, kernels before 6.6":   {program: func() string { return buildC(t, "-DLINKED") }, cfg: Config{oldest: probes.Before6_6}, site: "client.c:71 load_weights", stack: "load_weights <- train <- ", long: true},
		"C, kernels before 5.15":  {program: func() string { return buildC(t, "-DLINKED") }, cfg: Config{oldest: probes.Before5_15}, site: "client.c:71 load_weights", stack: "load_weights <- train <- ", long: true},
		"C, stripped":             {program: func() string { return buildC(t, "-s") }},
		"Go, cgo":                 {program: func() string { return buildGo(t, "cgo", "1") }, site: "main.go:32 main.loadWeights", stack: "main.loadWeights <- main.train <- main.main"},
		"Go, cgo, stripped":       {program: func() string { return buildGo(t, "cgo", "1", "-ldflags=-s -w") }, site: "main.go:32 main.loadWeights", stack: "main.loadWeights <- main.train <- main.main", long: true},
		"Go, purego":              {program: func() string { return buildGo(t, "purego", "0") }, site: "main.go:17 main.loadWeights", stack: "main.loadWeights <- main.main", long: true},
		"Go, any place, stripped": {program: func() string { return buildGo(t, "cgo", "1", "-buildmode=pie", "-ldflags=-s -w") }, site: "main.go:32 main.loadWeights", stack: "main.loadWeights <- main.train <- main.main", long: true},
	} {
		t.Run(name, func(t *testing.T) {
			if test.long {
				long.Test(t, "builds one more program")
			}
			path := test.program()
			w := newWatcher(t, test.cfg)
			if test.env != "" {
				t.Setenv(strings.Split(test.env, "=")[0], "1")
			}
			c := start(t, w, path, everything...)
			s := checked(t, w, c)
			if test.site != "" {
				a := largest(t, s)
				assert.Equal(t, test.site, a.CallSite.String(), "%v", a.Stack)
				assert.Contains(t, names(a.Stack), test.stack)
			}
			c.end(t)
		})
	}
}
