//go:build unix

package main

import (
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// More GPUs than the screen has lines for: none of them scrolls away.
func TestSensorsInALowTerminal(t *testing.T) {
	list := make([]nvml.Status, 8)
	for i := range list {
		list[i].Index, list[i].Name = i, "H200"
		for _, q := range nvml.Clocks.List() {
			list[i].Set(q, 1980)
		}
	}
	tall := sensorsTable(list, size{120, 50})
	assert.Contains(t, tall, "Video:  1980")
	low := sensorsTable(list, size{120, 20})
	assert.NotContains(t, low, "Video")
	assert.Contains(t, low, "SM: 1980")
	assert.Equal(t, 12, strings.Count(low, "\n"), low)
	least := sensorsTable(list, size{120, 8})
	assert.Equal(t, 7, strings.Count(least, "\n"), least)
	assert.Contains(t, least, "GPU[2]")
	assert.Contains(t, least, "… 6 more lines\n")
	assert.Equal(t, tall, sensorsTable(list, size{}), "no limit")
}

// A process that has ended and that its parent has not asked about is not alive.
func TestAZombieIsNotAlive(t *testing.T) {
	if runtime.GOOS != "linux" {
		t.Skip("needs /proc")
	}
	cmd := exec.Command("sleep", "60")
	require.NoError(t, cmd.Start())
	assert.True(t, alive(cmd.Process.Pid))
	require.NoError(t, cmd.Process.Kill())
	assert.Eventually(t, func() bool { return !alive(cmd.Process.Pid) }, 30*time.Second, time.Millisecond)
	cmd.Wait()
}
