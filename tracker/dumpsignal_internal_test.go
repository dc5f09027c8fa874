//go:build unix

package tracker

import (
	"io"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
)

func TestStoppedDumpOnSignalKeepsNothing(t *testing.T) {
	device, err := sim.New(sim.Config{})
	require.NoError(t, err)
	tr, err := New(Config{Device: device, Report: io.Discard})
	require.NoError(t, err)
	for range 3 {
		stop := tr.DumpOnSignal(t.TempDir())
		assert.Len(t, tr.dumps.signals, 1)
		stop()
		stop()
		assert.Empty(t, tr.dumps.signals)
	}
	tr.DumpOnSignal(t.TempDir())
	require.NoError(t, tr.Close())
	assert.Empty(t, tr.dumps.signals)
}
