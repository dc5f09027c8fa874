//go:build amd64 || arm64

package attach

import (
	"os/exec"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
)

// TestDriverUse: a program that allocates nothing still shows how far it came. One that has ended is
// known too, unless it loaded the driver's library without any question to it.
func TestDriverUse(t *testing.T) {
	program := build(t, "uses", func(out, _ string) *exec.Cmd {
		return exec.Command(compiler(), "-g", "-O1", "-Wall", "-Werror", "-o", out, "testdata/uses.c", "-ldl")
	})
	for kind, newOne := range map[string]func() *Watcher{
		"probes":  func() *Watcher { return newWatcher(t, Config{searchEvery: time.Millisecond}) },
		"preload": func() *Watcher { return newPreload(t) },
	} {
		for step, want := range map[string]DriverUse{
			"nothing": NotLoaded, "load": Loaded, "lookup": Loaded, "init": Initialized, "context": Called,
		} {
			t.Run(kind+", "+step, func(t *testing.T) {
				w := newOne()
				assert.Equal(t, NotLoaded, w.DriverUse())
				c := start(t, w, program, step)
				c.live(t)
				require.Eventually(t, func() bool { w.Sync(); return w.DriverUse() >= want }, time.Minute, time.Millisecond)
				assert.Equal(t, want, w.DriverUse())
				assert.Equal(t, 7, c.end(t))
				w.Sync()
				assert.Equal(t, want, w.DriverUse(), "after its end")
				assert.Empty(t, w.Sources())
				assert.Empty(t, w.Warnings())
			})
			if step == "load" {
				continue
			}
			t.Run(kind+", "+step+", at once", func(t *testing.T) {
				w := newOne()
				c := start(t, w, program, step, "end")
				c.Wait()
				require.NoError(t, w.Close())
				assert.Equal(t, want, w.DriverUse())
			})
		}
	}
}

func TestDriverUseString(t *testing.T) {
	assert.Equal(t, "never loaded libcuda", NotLoaded.String())
	assert.Equal(t, "loaded libcuda", Loaded.String())
	assert.Equal(t, "initialized the driver", Initialized.String())
	assert.Equal(t, "called the driver", Called.String())
	assert.Equal(t, "DriverUse(7)", DriverUse(7).String())
}
