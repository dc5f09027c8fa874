//go:build amd64 || arm64

package attach

import (
	"fmt"
	"os/exec"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// TestDefaultStreamsAndGreenContexts: stream 0 is the thread's own in the functions that end with _ptsz. What is allocated in a
// green context is on its device, and lives as long as the primary context.
func TestDefaultStreamsAndGreenContexts(t *testing.T) {
	program := build(t, "newer", func(out, libs string) *exec.Cmd {
		return exec.Command(compiler(), "-g", "-O1", "-Wall", "-Werror", "-o", out, "testdata/newer.c", "-L"+libs, "-l:libcuda.so.1")
	})
	for name, newOne := range map[string]func() *Watcher{
		"probes": func() *Watcher { return newWatcher(t, Config{}) }, "preload": func() *Watcher { return newPreload(t) },
	} {
		t.Run(name, func(t *testing.T) {
			w := newOne()
			c := start(t, w, program)
			s := checked(t, w, c)
			streams := map[alloc.Bytes]alloc.Stream{}
			for a := range s.Snapshot().Allocations() {
				streams[a.Requested] = a.Stream
			}
			assert.Equal(t, map[alloc.Bytes]alloc.Stream{1000: 0, 1001: 2, 1002: 1, 1003: 2, 1004: 2, 2000: 0, 2001: 0}, streams)
			device, _ := s.Device()
			assert.Equal(t, "GPU", device)
			fmt.Fprintln(c.in)
			checked(t, w, c) // without the green context
			assert.Len(t, s.addresses(), 7)
			fmt.Fprintln(c.in)
			checked(t, w, c) // without the primary context
			assert.Empty(t, s.addresses())
			assert.Equal(t, 7, c.end(t))
		})
	}
}
