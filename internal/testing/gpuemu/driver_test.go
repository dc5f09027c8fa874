//go:build linux

package gpuemu

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const (
	kib = 1 << 10
	mib = 1 << 20
	gib = 1 << 30
)

// talk runs a script of lines, each "command -> answer".
func talk(s *session, script string) {
	s.t.Helper()
	for line := range strings.Lines(script) {
		command, answer, found := strings.Cut(strings.TrimSpace(line), " -> ")
		if found {
			s.expect(strings.TrimSpace(command), answer)
		}
	}
}

func TestErrorsOfTheDriver(t *testing.T) {
	talk(start(t, Options{Devices: 2, Name: "Test GPU"}), `
		count          -> error 3
		init           -> ok
		count          -> ok 2
		name 1         -> ok Test GPU
		name 2         -> error 101
		alloc a 4096   -> error 201
		info           -> error 201
		sync           -> error 201
		retain 2       -> error 101
		retain 1       -> ok
		alloc a 0      -> error 1
		pitch p 0 4    -> error 1
		foreign        -> error 1
		range a 0      -> error 1
		nocurrent      -> ok
		info           -> error 201
		current 0      -> ok
		module         -> error 801
		release 1      -> ok
		sync           -> error 709
		release 1      -> error 201`)
}

func TestFreeIsExact(t *testing.T) {
	s := ready(t, Options{})
	s.do("alloc a 4096")
	s.do("alloc b 3000000")
	talk(s, `
		free a 512  -> error 1
		free b 4096 -> error 1
		free a      -> ok
		free a      -> error 1
		free b      -> ok
		free b      -> error 1`)
}

func TestNoDriverAnswers(t *testing.T) {
	s := start(t, Options{Devices: -1})
	s.expect("init", "error 100")
	s.expect("count", "error 3")
}

func TestVisibleDevices(t *testing.T) {
	for _, test := range []struct{ list, count, bus string }{
		{"0,1,2", "ok 3", "0000:01:00.0"},
		{"2,0", "ok 2", "0000:03:00.0"},
		{"1,7,0", "ok 1", "0000:02:00.0"},
		{"GPU-e3a10000-0000-4000-8000-000000000001", "ok 1", "0000:02:00.0"},
		{"0,0", "error 3", ""},
		{"", "error 3", ""},
	} {
		s := start(t, Options{Devices: 3}, "CUDA_VISIBLE_DEVICES="+test.list)
		s.do("init")
		s.expect("count", test.count)
		if test.bus != "" {
			s.expect("bus 0", "ok "+test.bus)
		}
	}
}

func TestPagesAndContexts(t *testing.T) {
	s := ready(t, Options{Memory: gib, Context: 100 * mib})
	used := func() int64 { return gib - s.free() }
	require.EqualValues(t, 100*mib, used(), "a context takes memory")
	for _, step := range []struct {
		line string
		used int64 // beside the context
	}{
		{"alloc a 1", 2 * mib},
		{"alloc b 1048576", 2 * mib}, // shares a's page
		{"alloc c 1048577", 4 * mib},
		{"alloc d 2097153", 8 * mib},
		{"pitch p 513 4096", 12 * mib}, // 1 KiB a row
		{"free a", 12 * mib},
		{"free b", 10 * mib},
		{"free d", 6 * mib},
		{"free c", 4 * mib},
		{"free p", 0},
	} {
		require.Contains(t, s.do(step.line), "ok", step.line)
		require.EqualValues(t, 100*mib+step.used, used(), step.line)
	}
	s.expect("create 0", "ok")
	s.do("alloc a 5000000")
	s.do("alloc b 4096")
	require.EqualValues(t, (200+6+2)*mib, used(), "a created context pays too")
	s.expect("destroy 1", "ok")
	require.EqualValues(t, 100*mib, used(), "a destroyed context gives back what was allocated in it")
	s.expect("free a", "error 1")
	s.expect("release 0", "ok")
	s.expect("retain 0", "ok")
	require.EqualValues(t, 100*mib, used())
}

func TestOutOfMemoryAtTheLastPage(t *testing.T) {
	s := ready(t, Options{Memory: 64 * mib, Context: 2 * mib})
	s.expect("alloc a 65011713", "error 2") // a byte too much
	require.Contains(t, s.do("alloc a 65011712"), "ok")
	s.expect("info", fmt.Sprintf("ok 0 of %d", 64*mib))
	s.expect("alloc b 1", "error 2")
	s.expect("create 0", "error 2")
	s.expect("free a", "ok")
	require.Contains(t, s.do("alloc b 1"), "ok")
}

// Managed memory takes addresses but no pages, so they can run out first.
func TestOutOfAddresses(t *testing.T) {
	s := ready(t, Options{Memory: 62 * mib, Context: -1})
	s.expect(fmt.Sprint("managed a ", 4*64*mib), "ok")
	s.expect("alloc b 4096", "error 2")
	s.expect("free a", "ok")
	require.Contains(t, s.do("alloc b 4096"), "ok")
}

func TestFreedAddressesComeBack(t *testing.T) {
	s := ready(t, Options{})
	for _, size := range []string{"512", "70000", "2097152", "50000000"} {
		first := s.do("alloc a " + size)
		s.do("alloc b " + size)
		s.expect("free a", "ok")
		require.Equal(t, first, s.do("alloc c "+size), size)
		s.expect("free b", "ok")
		s.expect("free c", "ok")
	}
}

func TestDataComesBack(t *testing.T) {
	s := ready(t, Options{})
	s.do("alloc a 4096")
	s.do("alloc b 3000000")
	s.do("pitch p 4 3")
	talk(s, `
		write a 100 tensor   -> ok
		read a 100 6         -> ok tensor
		copy b a 4096        -> ok
		read b 102 4         -> ok nsor
		fill b 65 3000000    -> ok
		read b 2999998 2     -> ok AA
		fill b 65 3000001    -> error 1
		read a 4093 4        -> error 1
		write a 4090 toolong -> error 1
		rows p 512 3         -> ok
		read p 1024 4        -> ok DCBA
		range b 4096         -> ok 4096 in 3000000
		free a               -> ok
		read a 100 6         -> error 1`)
}

func TestManagedMemoryMovesWhenTouched(t *testing.T) {
	s := ready(t, Options{Memory: 16 * mib, Context: 2 * mib})
	s.expect("managed m 33554432", "ok") // more than there is
	require.EqualValues(t, 14*mib, s.free())
	s.expect("fill m 66 2097153", "ok")
	require.EqualValues(t, 10*mib, s.free())
	s.expect("fill m 66 33554432", "ok")
	require.EqualValues(t, 0, s.free(), "it fills the device and stays on the host beyond")
	s.expect("read m 33554430 2", "ok BB")
	s.expect("free m", "ok")
	require.EqualValues(t, 14*mib, s.free())
}

func TestEventsTellTheTimeOfCopies(t *testing.T) {
	s := ready(t, Options{})
	var before, early int
	var ms float64
	_, err := fmt.Sscanf(s.do("timing"), "ok %d %d %f", &before, &early, &ms)
	require.NoError(t, err)
	require.Contains(t, []int{0, 600}, before)
	require.Contains(t, []int{0, 600}, early)
	require.GreaterOrEqual(t, ms, 8.0*mib/24/1e6, "8 MiB over the bus")
}

func TestThreads(t *testing.T) {
	s := ready(t, Options{})
	before := s.free()
	s.expect("threads 8", "ok")
	require.Equal(t, before, s.free())
}

func TestFaults(t *testing.T) {
	s := ready(t, Options{
		Fail: []Fault{{Function: "cuMemAlloc_v2", From: 2, Code: 2}, {Function: "cuMemFree_v2", From: 2, Onward: true, Code: 700}},
	})
	before := s.free()
	require.Contains(t, s.do("alloc a 4096"), "ok")
	s.expect("alloc b 4096", "error 2")
	require.Contains(t, s.do("alloc b 4096"), "ok")
	s.expect("free a", "ok")
	s.expect("free b", "error 700")
	s.expect("free b", "error 700")
	require.EqualValues(t, before-2*mib, s.free(), "a failed free changes nothing")
}

func TestLostDevice(t *testing.T) {
	s := start(t, Options{LostFrom: 4})
	talk(s, `
		init         -> ok
		retain 0     -> ok
		alloc a 4096 -> error 999
		free a       -> error 999
		info         -> error 999
		create 0     -> error 46`)
}

func TestLatency(t *testing.T) {
	s := ready(t, Options{Latency: []Delay{{"cuMemAlloc_v2", 30 * time.Millisecond}}})
	begin := time.Now()
	s.do("alloc a 4096")
	require.GreaterOrEqual(t, time.Since(begin), 30*time.Millisecond)
}

func TestControl(t *testing.T) {
	o := Options{State: filepath.Join(t.TempDir(), "state")}
	s := ready(t, o)
	c, err := OpenControl(o.State)
	require.NoError(t, err)
	defer func() { require.NoError(t, c.Close()) }()

	s.do("alloc a 5000")
	usage, ok := c.Usage(s.cmd.Process.Pid, 0)
	require.True(t, ok)
	require.Equal(t, Usage{Used: 258 * mib, Requested: 5000, Buffers: 1, Contexts: 1}, usage)

	require.NoError(t, c.Fail(Fault{Function: "*", From: 2, Code: 999}))
	require.Error(t, c.Fail(Fault{Function: "cuInit", Code: 1}))
	require.Contains(t, s.do("alloc b 1"), "ok")
	s.expect("free b", "error 999")
	s.expect("free b", "ok")
	c.Lose()
	s.expect("free a", "error 999")
	c.Heal()
	s.expect("free a", "ok")
}

func TestAKilledProcessGivesItsMemoryBack(t *testing.T) {
	o := Options{State: filepath.Join(t.TempDir(), "state"), Memory: gib}
	a, b := ready(t, o), ready(t, o)
	require.Contains(t, a.do("alloc a 268435456"), "ok")
	require.EqualValues(t, 256*mib, b.free(), "the other process's memory and both contexts are in use")
	b.expect("alloc b 268435457", "error 2")
	a.kill()
	require.Contains(t, b.do("alloc b 268435457"), "ok", "without asking for the memory info first")
	require.EqualValues(t, 510*mib, b.free())
}

func TestTheFirstProcessDescribesTheMachine(t *testing.T) {
	o := Options{State: filepath.Join(t.TempDir(), "state"), Memory: gib}
	a := ready(t, o)
	o.Memory = 2 * gib
	require.Contains(t, ready(t, o).do("info"), fmt.Sprint("of ", gib))
	a.kill()
	require.Contains(t, ready(t, o).do("info"), fmt.Sprint("of ", gib), "another process is alive still")
}

func TestSettingsThatCannotBeRead(t *testing.T) {
	s := start(t, Options{}, "GPUEMU_MEMORY=1.5GiB", "GPUEMU_CONTEXT=MiB", "GPUEMU_DEVICES=two", "GPUEMU_FAIL=cuInit", "GPUEMU_LATENCY=10")
	talk(s, `
		init     -> ok
		count    -> ok 1
		retain 0 -> ok`)
	require.Equal(t, int64(24*gib-256*mib), s.free(), "as if they were not set")
	require.NoError(t, s.in.Close())
	require.NoError(t, s.cmd.Wait())
	for _, text := range []string{"MEMORY: cannot read 1.5GiB", "CONTEXT: cannot read MiB", "DEVICES: cannot read two", "FAIL: cannot read cuInit", "LATENCY: cannot read 10"} {
		require.Contains(t, s.stderr.String(), "gpuemu: GPUEMU_"+text)
	}
}

func TestGapsNameThemselvesOnce(t *testing.T) {
	s := ready(t, Options{})
	s.expect("module", "error 801")
	s.expect("module", "error 801")
	require.NoError(t, s.in.Close())
	require.NoError(t, s.cmd.Wait())
	require.Equal(t, "gpuemu: cuModuleLoad is not emulated\n", s.stderr.String())
}

func TestRerunReportsFailure(t *testing.T) {
	inner := &failures{TB: t}
	if !Rerun(inner, Options{}) {
		t.Fatal("on purpose, in the child")
	}
	require.Equal(t, 1, inner.count)
}

// failures counts a test's failures instead of failing it.
type failures struct {
	testing.TB
	count int
}

func (f *failures) Errorf(string, ...any) { f.count++ }
