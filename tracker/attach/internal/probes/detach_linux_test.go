//go:build amd64 || arm64

package probes

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach/internal/event"
)

// TestNoEventIsOfAfterDetach: while the probes are removed, what those write that are still there is not read.
func TestNoEventIsOfAfterDetach(t *testing.T) {
	libs, err := gpuemu.Build()
	if err != nil {
		t.Skip(err)
	}
	s, err := New(event.Watched(nil), 1<<20, Newest)
	if errors.Is(err, fs.ErrPermission) || errors.Is(err, unix.EPERM) || errors.Is(err, unix.ENOSYS) {
		t.Skipf("BPF and uprobes are refused here: %v", err)
	}
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.ProbeLibrary(filepath.Join(libs.Dir, "libcuda.so.1"), ""))
	client := filepath.Join(t.TempDir(), "client")
	text, err := exec.Command("gcc", "-DLINKED", "-o", client, "../../testdata/client.c", "-L"+libs.Dir, "-l:libcuda.so.1", "-lpthread").CombinedOutput()
	require.NoError(t, err, "%s", text)
	events := func() (count int) {
		require.NoError(t, s.Watch(os.Getpid()))
		cmd := gpuemu.Command(t, gpuemu.Options{}, client, "leak", "3")
		require.NoError(t, cmd.Start())
		s.Unwatch(os.Getpid())
		_ = cmd.Wait() // its status is how it ends
		require.NoError(t, s.Flush())
		for e := new(event.Event); ; count++ {
			if err := s.Next(e); errors.Is(err, event.ErrFlushed) {
				return count
			}
			require.NoError(t, err)
		}
	}
	assert.Greater(t, events(), 3)
	s.detached.Store(event.Now()) // Detach has begun
	assert.Zero(t, events())
}
