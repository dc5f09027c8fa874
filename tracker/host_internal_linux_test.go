package tracker

import (
	"io"
	"os"
	"path/filepath"
	"runtime"
	"syscall"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

// TestNoAllocationWaitsForTheKernel has the kernel be long in setting back its mark.
func TestNoAllocationWaitsForTheKernel(t *testing.T) {
	dev, err := sim.New(sim.Config{})
	require.NoError(t, err)
	tr, err := New(Config{Device: dev, Report: io.Discard, Sections: SectionConfig{Host: "peak"}})
	require.NoError(t, err)
	defer tr.Close()
	s := &tr.sections
	s.host.ClearRefs = filepath.Join(t.TempDir(), "clear_refs")
	require.NoError(t, syscall.Mkfifo(s.host.ClearRefs, 0o600))

	begun := make(chan *Section)
	go func() { begun <- tr.Section("s") }() // waits until somebody reads what it writes
	for s.hostMark.TryLock() {
		s.hostMark.Unlock()
		runtime.Gosched()
	}
	for range 100 {
		buf, err := tr.AllocBytes(100, Input)
		require.NoError(t, err)
		require.NoError(t, buf.Free())
	}
	written, err := os.ReadFile(s.host.ClearRefs)
	require.NoError(t, err)
	assert.Equal(t, "5", string(written))
	s.host.ClearRefs = "/proc/self/clear_refs"
	(<-begun).End()
}
