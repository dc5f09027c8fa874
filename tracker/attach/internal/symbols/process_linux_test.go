package symbols

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/python"
)

// generations is an event source that knows the code generations of a process, and nothing else.
type generations struct {
	event.Source
	code, since uint32
}

func (g *generations) CodeGeneration(int) (generation, since uint32, ok bool) {
	return g.code, g.since, true
}
func (*generations) RemoveUnwindRules(int) {}

// TestMappingsThatAreReadWhileCodeIsUnmapped: they have a library that is about to be replaced by another at its address. When an event of
// the other is read too late for its mappings, it has no name, and never that of the first.
func TestMappingsThatAreReadWhileCodeIsUnmapped(t *testing.T) {
	dir := t.TempDir()
	memory, err := unix.Mmap(-1, 0, os.Getpagesize(), unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	require.NoError(t, err)
	defer unix.Munmap(memory)
	at := unsafe.Pointer(&memory[0])
	open := func(name string) {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, make([]byte, os.Getpagesize()), 0o700))
		file, err := os.Open(path)
		require.NoError(t, err)
		defer file.Close()
		_, err = unix.MmapPtr(int(file.Fd()), 0, at, uintptr(os.Getpagesize()), unix.PROT_READ|unix.PROT_EXEC, unix.MAP_PRIVATE|unix.MAP_FIXED)
		require.NoError(t, err)
	}
	from := &generations{code: 1, since: 1}
	none := func(int, python.Layout) error { return os.ErrNotExist }
	p := NewProcess(os.Getpid(), event.StartRecord{Since: 1}, from, python.NewProcesses(none, func(int) {}), 64)
	function := func(generation uint32) string {
		e := event.Event{Generation: generation, Depth: 1, Total: 1, End: event.Complete, TotalEnd: event.Complete}
		e.Stack[0] = uint64(uintptr(at)) + 0x11
		return p.Stacks().Stack(p.Stack(&e, event.Function{}))[0].Function
	}

	open("a.so")
	from.code = 2
	assert.Equal(t, "a.so+0x10", function(2))
	from.code, from.since = 3, 3
	p.CodeUnloaded(3) // it is mapped still
	assert.Equal(t, "a.so+0x10", function(3), "of another thread")
	open("b.so")
	from.code, from.since = 5, 5 // and it is about to be unmapped
	name := function(4)
	assert.True(t, strings.HasPrefix(name, "0x"), name)
	p.CodeUnloaded(5)
	assert.Equal(t, "b.so+0x10", function(5))
}
