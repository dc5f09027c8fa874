//go:build linux

package process

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/linked"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
)

// anyLibrary is a feed that can watch every file, or none.
type anyLibrary struct {
	event.Source
	err error
}

func (a anyLibrary) ProbeLibrary(_, _ string) error { return a.err }

// reports are what a discovery reports. It must not hold its lock then, as the receiver asks a Driver.
type reports struct {
	holds *sync.Mutex
	early []int
}

func (*reports) Warn(string)        {}
func (*reports) LoadedDriver()      {}
func (*reports) ReturnsNothing(int) {}

func (r *reports) LoadedEarly(pid int, _ string, _ bool) {
	if r.holds != nil {
		r.holds.Lock()
		defer r.holds.Unlock()
	}
	r.early = append(r.early, pid)
}

// ofThisProcess is of this process, which has loaded its own file.
func ofThisProcess(t *testing.T, err error) *Discovery {
	self, exeErr := os.Executable()
	require.NoError(t, exeErr)
	found := &reports{}
	l := NewDiscovery(found, anyLibrary{err: err}, []event.Function{{Library: self}}, python.NewProcesses(nil, nil))
	found.holds = &l.mu
	l.Add(os.Getpid())
	return l
}

// TestALibraryThatIsFoundLate is reported without a lock.
func TestALibraryThatIsFoundLate(t *testing.T) {
	l := ofThisProcess(t, nil)
	require.NoError(t, l.Scan())
	assert.Equal(t, []int{os.Getpid()}, l.report.(*reports).early)
}

// TestALibraryOfTwoProcesses: both had it before it was found.
func TestALibraryOfTwoProcesses(t *testing.T) {
	path, err := exec.LookPath("cat")
	require.NoError(t, err)
	path, err = filepath.EvalSymlinks(path)
	require.NoError(t, err)
	found := &reports{}
	l := NewDiscovery(found, anyLibrary{}, []event.Function{{Library: path}}, python.NewProcesses(nil, nil))
	for range 2 {
		cmd := exec.Command(path)
		in, err := cmd.StdinPipe()
		require.NoError(t, err)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		defer cmd.Wait()
		defer in.Close()
		fmt.Fprintln(in)
		_, err = out.Read(make([]byte, 1)) // so its code is mapped, which it need not be when Start returns
		require.NoError(t, err)
		l.Add(cmd.Process.Pid)
	}
	require.NoError(t, l.Scan())
	assert.Len(t, found.early, 2)
}

// TestLibrariesThatCannotBeWatched are reported once, and what is kept of them is bounded.
func TestLibrariesThatCannotBeWatched(t *testing.T) {
	l := ofThisProcess(t, errors.New("no symbols"))
	assert.ErrorContains(t, l.Scan(), "no symbols")
	assert.NoError(t, l.Scan())
	clear(l.failed)
	for i := range maxFailed {
		l.failed[string(rune(i))] = true
	}
	assert.Error(t, l.Scan())
	assert.LessOrEqual(t, len(l.failed), maxFailed)
}

// TestFilesOfALibrary: a library's files with a version are watched, too, since a program loads one of these. In Python's packages they
// are copies, no links.
func TestFilesOfALibrary(t *testing.T) {
	dir := t.TempDir()
	library := filepath.Join(dir, "libpool.so")
	for _, name := range []string{"libpool.so", "libpool.so.0", "libpool.so.0.13.1", "libpool.so.txt", "libpool-base.so.1"} {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), nil, 0o600))
	}
	want := []string{library, library + ".0", library + ".0.13.1"}
	t.Setenv("LD_LIBRARY_PATH", dir)
	assert.Subset(t, linked.DefaultLibraries("libpool.so"), want)
	assert.NotContains(t, linked.DefaultLibraries("libpool.so"), library+".txt")
	for given, its := range map[string]int{"libpool.so": 3, library: 3, library + ".0": 2} {
		l := NewDiscovery(&reports{}, anyLibrary{}, []event.Function{{Library: given}}, python.NewProcesses(nil, nil))
		require.NoError(t, l.ProbeFirst(nil))
		assert.Empty(t, l.Stop(), "it exists")
		found := 0
		for _, path := range want {
			info, err := os.Stat(path)
			require.NoError(t, err)
			if slices.ContainsFunc(l.files, func(f probed) bool { return os.SameFile(f.file, info) }) {
				found++
			}
			_, ok := l.libraryOf(path)
			assert.True(t, ok || its == 2, path)
		}
		assert.Equal(t, its, found, given)
	}
}

// TestTheShimHasNoProbes, though it has the driver's name.
func TestTheShimHasNoProbes(t *testing.T) {
	l := NewDiscovery(&reports{}, anyLibrary{}, []event.Function{{}}, python.NewProcesses(nil, nil))
	for path, want := range map[string]bool{
		"/usr/lib/libcuda.so.1": true,
		"/home/me/.cache/gpumemtrack/shim-0123456789abcdef/libcuda.so.1": false,
	} {
		_, ok := l.libraryOf(path)
		assert.Equal(t, want, ok, path)
	}
}

// TestALibraryThatIsNowhere is distinguished from one that was found late.
func TestALibraryThatIsNowhere(t *testing.T) {
	l := NewDiscovery(&reports{}, anyLibrary{}, []event.Function{{}, {Library: "libnowhere.so"}}, python.NewProcesses(nil, nil))
	require.NoError(t, l.ProbeFirst(nil))
	assert.Equal(t, []string{"libnowhere.so"}, l.Stop())
}
