package watch

import (
	"bytes"
	"fmt"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/tracker/attach"
)

// TestUntrackedBeforeAttach: the driver says how much a process had, and on which GPU.
func TestUntrackedBeforeAttach(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	if gpuemu.Rerun(t, gpuemu.Options{State: state, Devices: 2}, "CUDA_VISIBLE_DEVICES=1") {
		return
	}
	libs := canAttach(t)
	path := filepath.Join(t.TempDir(), "client")
	text, err := exec.Command("gcc", "-g", "-O1", "-fno-omit-frame-pointer", "-DLINKED", "-o", path,
		"../../../../tracker/attach/testdata/client.c", "-L"+libs.Dir, "-l:libcuda.so.1", "-lpthread").CombinedOutput()
	require.NoError(t, err, "%s", text)
	driver, err := nvml.Open()
	require.NoError(t, err)
	defer driver.Close()
	control, err := gpuemu.Attach()
	require.NoError(t, err)
	client := exec.Command(path, "leak", "2", "wait", "free", "leak", "3")
	in, err := client.StdinPipe()
	require.NoError(t, err)
	require.NoError(t, client.Start())
	t.Cleanup(func() { client.Process.Kill(); client.Wait() })
	buffers := func() uint32 { u, _ := control.Usage(client.Process.Pid, 1); return u.Buffers }
	require.Eventually(t, func() bool { return buffers() == 2 }, time.Minute, time.Millisecond)

	w, err := attach.New(attach.Config{Driver: driver})
	require.NoError(t, err)
	defer w.Close()
	require.NoError(t, w.Watch(client.Process.Pid))
	_, err = in.Write([]byte("\n"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { w.Sync(); return len(w.Sources()) == 1 && w.Sources()[0].LightSnapshot().Live.Count == 3 }, time.Minute, time.Millisecond)

	s := w.Sources()[0]
	name, ordinal := s.Device()
	assert.Equal(t, "GPU [0]", fmt.Sprintf("%s [%d]", name, ordinal), "the only one that the process uses")
	held := 256*alloc.MiB + 2*alloc.MiB // a context, and one page for both buffers
	assert.Equal(t, held, s.PriorBytes())
	at := s.LightSnapshot()
	assert.Equal(t, 24*alloc.GiB+320*alloc.MiB, at.DriverTotal)
	assert.Equal(t, at.DriverUsed-3*alloc.MiB, at.Untracked())
	assert.GreaterOrEqual(t, at.DriverUsed, 256*alloc.MiB)
	var out bytes.Buffer
	writeAttachedEnd(&out, s, s.Snapshot(), unwatched)
	assert.Contains(t, out.String(), "untracked before attach: 258.0 MiB")
	assert.Contains(t, strings.Join(w.Warnings(), "\n"), "2 frees were of memory that is not in the ledger")
}
