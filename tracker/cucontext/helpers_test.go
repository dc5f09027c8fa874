//go:build cuda && cgo && linux

package cucontext_test

import (
	"io"
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"gorgonia.org/cu"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/alloctest"
	"github.com/gpumemtrack/gpumemtrack/alloc/cuda"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/gpuemu"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/cucontext"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// These tests run on whichever driver answers: a real one, or the emulated one
// under `go run ./internal/testing/gpuemu/gpuemu run`. Those that need faults start
// themselves again under the emulated one.

func open(t *testing.T) cuda.Device {
	t.Helper()
	dev, err := cuda.Open(0)
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, dev.Close()) })
	return dev
}

// control is the emulated machine's, or nil on a real one.
func control(t *testing.T) *gpuemu.Control {
	t.Helper()
	if !gpuemu.Emulated() {
		return nil
	}
	c, err := gpuemu.Attach()
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, c.Close()) })
	return c
}

func fail(t *testing.T, c *gpuemu.Control, function string, code int) {
	t.Helper()
	require.NoError(t, c.Fail(gpuemu.Fault{Function: function, From: 1, Code: code}))
}

func newTracker(t *testing.T) *tracker.MemTracker {
	t.Helper()
	tr, err := tracker.New(tracker.Config{Device: open(t), NoCache: true, Report: io.Discard})
	require.NoError(t, err)
	t.Cleanup(func() { assert.NoError(t, tr.Close()) })
	return tr
}

func newContext(t *testing.T) *cu.Ctx {
	t.Helper()
	ctx := cu.NewContext(0, cu.SchedAuto)
	t.Cleanup(func() { assert.NoError(t, ctx.Close()) })
	// v0.9.6's Close races with the start of its own Run unless a call was made between.
	require.NoError(t, ctx.Do(func() error { return nil }))
	return ctx
}

func trackErr(ctx any) error { return ctx.(interface{ TrackErr() error }).TrackErr() }

// live is the ledger: bytes by address.
func live(tr *tracker.MemTracker) map[cu.DevicePtr]int {
	m := map[cu.DevicePtr]int{}
	for a := range tr.Snapshot().Allocations() {
		m[cu.DevicePtr(a.Ptr)] = int(a.Requested)
	}
	return m
}

// asked is the line of code that asked for memory. A report names it too, where it is
// not in a package of this module.
func asked(a snapshot.Allocation) string {
	for _, f := range a.Stack {
		if !strings.HasPrefix(f.Function, "gorgonia.org/cu.") && !strings.Contains(f.Function, "/tracker/cucontext.") {
			return f.String()
		}
	}
	return ""
}

func TestFromContext(t *testing.T) {
	ctx := cu.NewContext(0, cu.SchedAuto)
	t.Cleanup(func() { assert.NoError(t, ctx.Close()) })
	conformance := alloctest.Device
	if !gpuemu.Emulated() { // a real GPU may have other users
		conformance = alloctest.SharedDevice
	}
	conformance(t, func(t *testing.T) alloc.Device {
		dev, err := cucontext.FromContext(ctx)
		require.NoError(t, err)
		t.Cleanup(func() { assert.NoError(t, dev.Close()) })
		return dev
	})
	p, err := ctx.MemAlloc(1)
	require.NoError(t, err, "closing the Device leaves the context alone")
	ctx.MemFree(p)
	require.NoError(t, ctx.Error())
}

// TestWhereNoDriverAnswers shows why only this package links gorgonia.org/cu: it ends the
// program before main.
func TestWhereNoDriverAnswers(t *testing.T) {
	cmd := gpuemu.Command(t, gpuemu.Options{Devices: -1}, os.Args[0], "-test.run=^$")
	out, err := cmd.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 1, exit.ExitCode())
	require.Contains(t, string(out), "Error in initialization")
	require.True(t, strings.HasSuffix(strings.TrimSpace(string(out)), "NoDevice"), "%s", out)
}
