//go:build amd64 || arm64

package attach

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/long"
)

// driverCopy returns a folder with a copy of the emulated driver that no other test uses.
func driverCopy(t testing.TB) string {
	t.Helper()
	libs, err := gpuemu.Build()
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	text, err := os.ReadFile(filepath.Join(libs.Dir, "libcuda.so.1"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(filepath.Join(dir, "libcuda.so.1"), text, 0o755))
	return dir
}

// newAll watches every process that has loaded the driver of a folder.
func newAll(t testing.TB, dir string, cfg Config) *Watcher {
	t.Helper()
	newWatcher(t, Config{}).Close() // or the test is skipped
	cfg.Libraries = []string{filepath.Join(dir, "libcuda.so.1")}
	w, err := New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, w.Close()) })
	require.NoError(t, w.WatchAll())
	return w
}

// startBy starts a client on the driver of a folder. No watcher knows of it.
func startBy(t testing.TB, dir, path string, args ...string) *client {
	t.Helper()
	return start(t, nil, "env", append([]string{"LD_LIBRARY_PATH=" + dir, path}, args...)...)
}

// running returns what the sources of a process that runs have live, and their warnings.
func running(w *Watcher, pid int) (live map[alloc.Ptr]alloc.Bytes, warnings []string) {
	live = make(map[alloc.Ptr]alloc.Bytes)
	for _, s := range w.Sources() {
		if s.Origin().PID != pid || !s.Ended().IsZero() {
			continue
		}
		for a := range s.Snapshot().Allocations() {
			live[a.Ptr] = a.Requested
		}
		w.mu.Lock()
		warnings = append(warnings, s.process.accuracy.Texts()...)
		w.mu.Unlock()
	}
	return live, warnings
}

// TestAll: processes that were not started by the watcher, before and after it.
func TestAll(t *testing.T) {
	dir := driverCopy(t)
	path := buildC(t, "-DLINKED")
	before := startBy(t, dir, path, "leak", "2", "pause", "free", "leak", "3")
	before.live(t)
	w := newAll(t, dir, Config{})
	after := startBy(t, dir, path, everything...)
	want := after.live(t)
	w.Sync()
	live, warnings := running(w, after.Process.Pid)
	assert.Equal(t, want, live)
	assert.Empty(t, warnings)
	assert.Empty(t, w.Warnings())
	after.end(t)

	fmt.Fprintln(before.in)
	all := before.live(t)
	w.Sync()
	live, warnings = running(w, before.Process.Pid)
	assert.Equal(t, all, live)
	assert.Len(t, warnings, 1, "frees of what it had before")
	for _, s := range w.Sources() {
		if s.Origin().PID == before.Process.Pid {
			assert.EqualValues(t, -1, s.PriorBytes())
		}
	}
	assert.Eventually(t, func() bool { w.Sync(); l, _ := running(w, after.Process.Pid); return len(l) == 0 }, time.Minute, 10*time.Millisecond)
}

// TestAFloodIsItsOwnLoss: a process that calls more than the ring buffer holds loses its own events, and no others.
func TestAFloodIsItsOwnLoss(t *testing.T) {
	dir := driverCopy(t)
	path := buildC(t, "-DLINKED")
	w := newAll(t, dir, Config{RingBufferBytes: minRing})
	w.mu.Lock() // nothing is read meanwhile
	flood := startBy(t, dir, path, "churn", "2000", "leak", "1")
	flood.live(t)
	quiet := startBy(t, dir, path, "leak", "3", "foreign")
	want := quiet.live(t)
	w.mu.Unlock()
	w.Sync()
	live, warnings := running(w, quiet.Process.Pid)
	assert.Equal(t, want, live)
	assert.Empty(t, warnings)
	_, warnings = running(w, flood.Process.Pid)
	require.Len(t, warnings, 1)
	assert.Contains(t, warnings[0], "events were lost")
	require.Len(t, w.Warnings(), 1)
	assert.Contains(t, w.Warnings()[0], fmt.Sprintf("client[%d]", flood.Process.Pid))
	for _, s := range w.Sources() {
		assert.Equal(t, s.Origin().PID == flood.Process.Pid, strings.Contains(s.Dump().Reason, "lost"))
	}
	flood.end(t)
	assert.Eventually(t, func() bool { w.Sync(); live, _ := running(w, flood.Process.Pid); return len(live) == 0 }, time.Minute, 10*time.Millisecond)
	assert.Len(t, w.Warnings(), 1, "they stay known")
}

// TestAllFindsDrivers: a copy of libcuda that is in no place where the loader looks is found when a process maps it. What the first process called
// before is not known, which a warning says. Later ones are exact, also where the file is seen through another file system, as those of an image are.
func TestAllFindsDrivers(t *testing.T) {
	dir := driverCopy(t)
	path := buildC(t, "-DLINKED")
	newWatcher(t, Config{}).Close() // or the test is skipped
	w, err := New(Config{})
	require.NoError(t, err)
	defer w.Close()
	require.NoError(t, w.WatchAll())
	first := startBy(t, dir, path, "leak", "2", "pause", "leak", "3")
	before := first.live(t)
	probed := func() bool {
		_, err := w.discovery.Probed(filepath.Join(dir, "libcuda.so.1"))
		return err == nil
	}
	require.Eventually(t, probed, time.Minute, time.Millisecond)
	fmt.Fprintln(first.in)
	want := first.live(t)
	w.Sync()
	live, warnings := running(w, first.Process.Pid)
	if len(live) < len(want) {
		require.NotEmpty(t, warnings)
		assert.Contains(t, warnings[0], "before that was found")
	}
	for at, size := range want {
		if _, mayBeMissing := before[at]; !mayBeMissing || live[at] != 0 { // the probes may have come between two of its calls
			assert.Equal(t, size, live[at], "%x", at)
		}
	}
	for at := range live {
		assert.Contains(t, want, at)
	}
	folders := []string{dir}
	for range 2 {
		if merged := overlayOf(t, dir); merged != "" {
			folders = append(folders, merged)
		}
	}
	for range 3 {
		for _, folder := range folders { // the first of each folder may be early
			c := startBy(t, folder, path, "leak", "2", "churn", "20", "foreign")
			want := c.live(t)
			w.Sync()
			live, warnings := running(w, c.Process.Pid)
			if len(warnings) == 0 {
				assert.Equal(t, want, live, folder)
			} else {
				assert.Len(t, warnings, 1)
				assert.Contains(t, warnings[0], "before that was found")
			}
			c.end(t)
		}
	}
}

// TestProbesThatComeWhileItCalls: where probes are set between the calls of a process, some of its buffers are not known, and none that it has
// freed is believed to be there.
func TestProbesThatComeWhileItCalls(t *testing.T) {
	path := buildC(t, "-DLINKED")
	newWatcher(t, Config{}).Close() // or the test is skipped
	for range 3 {
		dir := driverCopy(t)
		w, err := New(Config{})
		require.NoError(t, err)
		defer w.Close()
		require.NoError(t, w.WatchAll())
		c := startBy(t, dir, path, slices.Repeat([]string{"threads", "4"}, 8)...)
		want := c.live(t)
		w.Sync()
		live, _ := running(w, c.Process.Pid)
		for at, size := range live {
			assert.Equal(t, want[at], size, "%x", at)
		}
		t.Logf("%d of %d buffers are known", len(live), len(want))
	}
}

// overlayOf returns a folder that shows another through a file system, as a container does its image; "" if that cannot be had.
func overlayOf(t *testing.T, lower string) string {
	t.Helper()
	dir := t.TempDir()
	for _, name := range []string{"upper", "work", "merged"} {
		require.NoError(t, os.Mkdir(filepath.Join(dir, name), 0o755))
	}
	merged := filepath.Join(dir, "merged")
	options := fmt.Sprintf("lowerdir=%s,upperdir=%s,workdir=%s", lower, filepath.Join(dir, "upper"), filepath.Join(dir, "work"))
	if err := unix.Mount("overlay", merged, "overlay", 0, options); err != nil {
		return ""
	}
	t.Cleanup(func() { assert.NoError(t, unix.Unmount(merged, unix.MNT_DETACH)) })
	return merged
}

var allFor = flag.Duration("attach.all", 0, "how long TestAllThatComeAndGo takes")

// TestAllThatComeAndGo has 40 processes at a time that start, allocate, and end: short ones, those that fork and that execute others, and those in
// another root with a driver of their own. Each ledger is what the driver says. After all of them have ended, the watcher has as much memory and as many
// open files as after half of them.
func TestAllThatComeAndGo(t *testing.T) {
	length := *allFor
	switch {
	case length == 0 && long.Enabled():
		length = time.Minute
	case length == 0:
		length = 8 * time.Second
	}
	dir := driverCopy(t)
	linked, opened := buildC(t, "-DLINKED"), buildC(t)
	executes := build(t, "execs", func(out, libs string) *exec.Cmd {
		return exec.Command(compiler(), "-g", "-O1", "-Wall", "-Werror", "-o", out, "testdata/execs.c", "-L"+libs, "-l:libcuda.so.1", "-lpthread")
	})
	root := otherRoot(t, linked, dir)
	w := newAll(t, dir, Config{maxEnded: 1})
	kinds := []comer{
		{args: []string{linked, "leak", "3"}},
		{args: []string{opened, "threads", "4", "leak", "3", "foreign"}},
		{args: []string{"sh", "-c", linked + " leak 2 </dev/null >/dev/null; exec " + linked + " leak 5"}},
		{args: []string{linked, "fork", "leak", "4", "churn", "50"}},
		{args: []string{executes, "4", "3", "1000"}, last: 1},
		{args: []string{"/client", "leak", "3", "contexts"}, root: root},
	}
	comeAndGo := func() (count int64) {
		end := time.Now().Add(length / 2)
		var all sync.WaitGroup
		var done atomic.Int64
		for i := range 40 {
			all.Go(func() {
				state := filepath.Join(dir, fmt.Sprintf("state-%d", i))
				for n := i; n == i || time.Now().Before(end) && !t.Failed(); n++ {
					kinds[n%len(kinds)].check(t, w, dir, state)
					done.Add(1)
				}
			})
		}
		all.Wait()
		require.Eventually(t, func() bool {
			w.Sync()
			return !slices.ContainsFunc(w.Sources(), func(s *Source) bool { return s.Ended().IsZero() })
		}, 5*time.Minute, 10*time.Millisecond, "all have ended")
		return done.Load()
	}
	first := comeAndGo()
	before, files := liveMemory(), openFiles()
	second := comeAndGo()
	after := liveMemory()
	t.Logf("%d and %d processes, of which %d were dropped; memory %v and %v", first, second, w.Dropped(), before, after)
	assert.Empty(t, w.Warnings())
	assert.Less(t, after, before+alloc.MiB+alloc.Bytes(second)*4*alloc.KiB)
	assert.Eventually(t, func() bool { return openFiles() <= files }, time.Minute, 10*time.Millisecond)
}

// comer is a process that comes and goes.
type comer struct {
	args []string
	root string
	last int // number of buffers at the end, if it does not list them
}

// check runs the process, and compares its ledger with what it says.
func (c comer) check(t *testing.T, w *Watcher, dir, state string) {
	env, err := gpuemu.Options{State: state}.Environ()
	if !assert.NoError(t, err) {
		return
	}
	defer os.Remove(state)
	cmd := exec.Command(c.args[0], c.args[1:]...)
	cmd.Env, cmd.Stderr = append(env, "LD_LIBRARY_PATH="+dir), os.Stderr
	if c.root != "" {
		cmd.Env = append(env, "LD_LIBRARY_PATH=/", "GPUEMU_STATE=/"+filepath.Base(state))
		cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: c.root}
		cmd.Dir = "/"
		defer os.Remove(filepath.Join(c.root, filepath.Base(state)))
	}
	its := &client{Cmd: cmd}
	its.in, err = cmd.StdinPipe()
	assert.NoError(t, err)
	out, err := cmd.StdoutPipe()
	assert.NoError(t, err)
	its.out = bufio.NewScanner(out)
	if !assert.NoError(t, cmd.Start()) {
		return
	}
	defer cmd.Wait()
	defer its.in.Close()
	want := its.live(t)
	w.Sync()
	live, warnings := running(w, cmd.Process.Pid)
	if c.last == 0 {
		assert.Equal(t, want, live, "%v", c.args)
	} else {
		assert.Len(t, live, c.last, "%v", c.args)
	}
	assert.Empty(t, warnings, "%v", c.args)
}

// otherRoot returns a folder with a client and all that it is linked with. The driver is the same file as in dir.
func otherRoot(t *testing.T, client, dir string) string {
	t.Helper()
	root := t.TempDir()
	ldd := exec.Command("ldd", client)
	ldd.Env = append(os.Environ(), "LD_LIBRARY_PATH="+dir)
	out, err := ldd.CombinedOutput()
	require.NoError(t, err, "%s", out)
	files := map[string]string{client: "client", filepath.Join(dir, "libcuda.so.1"): "libcuda.so.1"}
	for _, m := range regexp.MustCompile(`(/\S+) \(0x`).FindAllStringSubmatch(string(out), -1) {
		if filepath.Dir(m[1]) != dir {
			files[m[1]] = m[1]
		}
	}
	for from, to := range files {
		to = filepath.Join(root, to)
		require.NoError(t, os.MkdirAll(filepath.Dir(to), 0o755))
		if filepath.Base(to) == "libcuda.so.1" {
			require.NoError(t, os.Link(from, to))
			continue
		}
		text, err := os.ReadFile(from)
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(to, text, 0o755))
	}
	return root
}

// liveMemory returns how much memory of this process is in use. It does not depend on when memory is collected.
func liveMemory() alloc.Bytes {
	for range 3 { // what pools keep, and what is left to be finalized
		runtime.GC()
	}
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return alloc.Bytes(m.HeapAlloc)
}

// openFiles returns how many files this process has open.
func openFiles() int {
	all, _ := os.ReadDir("/proc/self/fd")
	return len(all)
}

// TestAllNamesContainers: the container, the pod or the unit that a process runs in is named by its control group.
func TestAllNamesContainers(t *testing.T) {
	dir := driverCopy(t)
	path := buildC(t, "-DLINKED")
	w := newAll(t, dir, Config{})
	const uid, id = "0a1b2c3d-0a1b-0a1b-0a1b-0a1b2c3d4e5f", "0123456789ab"
	whole := id + strings.Repeat("0", 52)
	for group, want := range map[string]string{
		"kubepods.slice/kubepods-pod" + strings.ReplaceAll(uid, "-", "_") + ".slice/cri-containerd-" + whole + ".scope": "pod " + uid + ", containerd " + id,
		"kubepods/burstable/pod" + uid + "/" + whole: "pod " + uid + ", container " + id,
		"system.slice/docker-" + whole + ".scope":    "docker " + id,
		"system.slice/train.service":                 "unit train.service",
	} {
		procs := controlGroup(t, group)
		c := startBy(t, dir, "sh", "-c", `echo $$ >"$0" && exec "$@"`, procs, path, "leak", "1")
		c.live(t)
		w.Sync()
		of := slices.DeleteFunc(w.Sources(), func(s *Source) bool { return s.Origin().PID != c.Process.Pid })
		require.Len(t, of, 1, group)
		assert.Equal(t, want, of[0].Origin().Container, group)
		c.end(t) // or the group cannot be removed
	}
}

// controlGroup makes a control group, and returns the file that moves a process into it.
func controlGroup(t testing.TB, name string) (procs string) {
	t.Helper()
	own := fmt.Sprintf("gpumemtrack-%d", os.Getpid())
	for _, root := range []string{"/sys/fs/cgroup/systemd", "/sys/fs/cgroup/unified", "/sys/fs/cgroup"} {
		procs = filepath.Join(root, own, name, "cgroup.procs")
		err := os.MkdirAll(filepath.Dir(procs), 0o755)
		t.Cleanup(func() { // the kernel removes what is in them
			for folder := filepath.Dir(procs); folder != root; folder = filepath.Dir(folder) {
				os.Remove(folder)
			}
		})
		if _, missing := os.Stat(procs); err == nil && missing == nil {
			return procs
		}
	}
	t.Skip("no control group can be made here")
	return ""
}

// TestAllWatchesFunctions: the functions of a library in place of the driver's.
func TestAllWatchesFunctions(t *testing.T) {
	libs, err := gpuemu.Build()
	if err != nil {
		t.Skip(err)
	}
	dir := t.TempDir()
	library, path := filepath.Join(dir, "libpool.so"), filepath.Join(dir, "pieces")
	text, err := exec.Command(compiler(), "-g", "-O2", "-shared", "-fPIC", "-o", library, "testdata/pool.c", "-L", libs.Dir, "-lcuda").CombinedOutput()
	require.NoError(t, err, "%s", text)
	text, err = exec.Command(compiler(), "-g", "-O1", "-fno-omit-frame-pointer", "-DPOOL", "-o", path, "testdata/pieces.c",
		library, "-Wl,-rpath,"+dir, "-L"+libs.Dir, "-l:libcuda.so.1", "-lpthread").CombinedOutput()
	require.NoError(t, err, "%s", text)

	w := newAll(t, libs.Dir, Config{Functions: []string{library + ":pool_alloc(size=2,out=3),pool_free(address=2)"}})
	c := startBy(t, libs.Dir, path)
	want := c.live(t)
	w.Sync()
	live, warnings := running(w, c.Process.Pid)
	assert.Equal(t, want, live)
	assert.Empty(t, warnings)
	for _, s := range w.Sources() {
		if s.Origin().PID == c.Process.Pid {
			assert.EqualValues(t, "pool_alloc", largest(t, s).Kind)
		}
	}
	c.end(t)
}

// TestLossesOfAProcessWithoutALedger: no Source has the warning.
func TestLossesOfAProcessWithoutALedger(t *testing.T) {
	dir := driverCopy(t)
	path := buildC(t, "-DLINKED")
	w := newAll(t, dir, Config{RingBufferBytes: minRing})
	c := startBy(t, dir, path, "pause", "leak", "1")
	c.live(t)
	w.Sync()
	w.mu.Lock() // nothing is read meanwhile
	forks := startBy(t, dir, path, slices.Repeat([]string{"fork"}, 2*minRing/100)...)
	forks.live(t)
	fmt.Fprintln(c.in)
	c.live(t)
	w.mu.Unlock()
	w.Sync()
	c.end(t)
	forks.end(t)
	assert.Eventually(t, func() bool {
		w.Sync()
		return slices.ContainsFunc(w.Warnings(), func(text string) bool {
			return strings.Contains(text, fmt.Sprintf("client[%d]", c.Process.Pid)) && strings.Contains(text, "has no ledger")
		})
	}, time.Minute, 10*time.Millisecond)
}

// TestLossesOfAnEndThatIsLost: they are the watcher's, since nothing else has them.
func TestLossesOfAnEndThatIsLost(t *testing.T) {
	dir := driverCopy(t)
	path := buildC(t, "-DLINKED")
	w := newAll(t, dir, Config{RingBufferBytes: minRing})
	w.mu.Lock() // nothing is read meanwhile
	const pairs = 5000
	flood := startBy(t, dir, path, "churn", fmt.Sprint(pairs))
	flood.live(t)
	forks := startBy(t, dir, path, slices.Repeat([]string{"fork"}, 2*minRing/100)...)
	forks.live(t)
	flood.end(t)
	w.mu.Unlock()
	w.Sync()
	w.mu.Lock()
	assert.Greater(t, w.accuracy.LostEvents, uint64(pairs))
	w.mu.Unlock()
	forks.end(t)
}
