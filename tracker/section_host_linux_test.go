package tracker_test

import (
	"os"
	"runtime"
	"runtime/debug"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// residentSize is more than what else may come and go meanwhile.
const residentSize = 64 << 20

// mapped returns memory that is not resident before it is touched, when Go has no more
// to give back.
func mapped(t *testing.T) []byte {
	debug.FreeOSMemory()
	memory, err := syscall.Mmap(-1, 0, residentSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, syscall.Munmap(memory)) })
	return memory
}

func TestResidentSetOfASection(t *testing.T) {
	tr, _ := open(t, tracker.Config{})
	memory := mapped(t)
	d := tr.Do("s", func() { touch(memory) }).Data()
	assert.Greater(t, d.RSS.Consumed(), alloc.Bytes(residentSize/2))
	assert.Less(t, d.RSS.Consumed(), alloc.Bytes(4*residentSize))
	assert.Greater(t, d.RSS.Before, alloc.MiB)
	assert.Equal(t, alloc.Bytes(-1), d.RSS.Peak, "not asked for")
	assert.Equal(t, sections.MemoryUse{Before: -1, Used: -1, Peak: -1}, d.Heap)
}

func TestHostDetailOfASection(t *testing.T) {
	for _, cfg := range []tracker.SectionConfig{{Host: "detail"}, {GCBefore: true}} {
		tr, _ := open(t, tracker.Config{Sections: cfg})
		memory := make([]byte, residentSize)
		d := tr.Do("s", func() { touch(memory) }).Data()
		assert.GreaterOrEqual(t, d.RSS.Peak, d.RSS.Used-8*alloc.MiB, "the kernel counts roughly")
		assert.Greater(t, d.Heap.Used, alloc.Bytes(residentSize))
		runtime.KeepAlive(memory)
	}
}

func TestHostMemoryOfASection(t *testing.T) {
	tr, _ := open(t, tracker.Config{Sections: tracker.SectionConfig{Host: "peak", GCBefore: true}})
	memory := mapped(t)
	outer := tr.Section("outer")
	inner := tr.Do("inner", func() { touch(memory) }).Data()
	after := tr.Do("after", func() {}).Data()
	outer.End()
	if inner.RSS.PeakAtMost {
		t.Skip("the kernel does not let the high-water mark be set back")
	}
	assert.Greater(t, inner.RSS.Peak, inner.RSS.Before+residentSize/2)
	assert.Less(t, after.RSS.Peak, inner.RSS.Peak+residentSize/2)
	assert.GreaterOrEqual(t, outer.Data().RSS.Peak, inner.RSS.Peak, "the inner section's reset did not disturb it")
	assert.Positive(t, inner.Heap.Used)
	assert.Equal(t, alloc.Bytes(-1), inner.Heap.Peak)
}

//go:noinline
func touch(memory []byte) {
	for i := 0; i < len(memory); i += 4096 {
		memory[i] = 1
	}
}

// TestCloseClosesWhatTheKernelIsAskedThrough counts the descriptors of /proc that stay.
func TestCloseClosesWhatTheKernelIsAskedThrough(t *testing.T) {
	files := func() (open int) {
		entries, err := os.ReadDir("/proc/self/fd")
		require.NoError(t, err)
		for _, e := range entries {
			if path, err := os.Readlink("/proc/self/fd/" + e.Name()); err == nil && strings.HasPrefix(path, "/proc/") && strings.Contains(path, "/stat") {
				open++
			}
		}
		return open
	}
	before := files()
	for _, cfg := range []tracker.SectionConfig{{}, {Host: "detail"}} {
		tr, _ := open(t, tracker.Config{Sections: cfg})
		assert.Equal(t, before, files(), "none without a section")
		tr.Do("s", func() {})
		tr.Do("s", func() {})
		assert.Equal(t, before+1, files())
		require.NoError(t, tr.Close())
		assert.Equal(t, before, files())
		tr.Do("s", func() {})
		assert.Equal(t, before, files())
	}
}
