//go:build unix

package tracker_test

import (
	"log/slog"
	"path/filepath"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/testing/goroutines"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

func TestDumpOnSignal(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dumps")
	tr, _ := open(t, tracker.Config{Logger: silent})
	take(t, tr, tracker.Parameter, 7)
	stop := tr.DumpOnSignal(dir)
	require.NoError(t, syscall.Kill(syscall.Getpid(), syscall.SIGUSR1))
	require.Eventually(t, func() bool {
		found, err := filepath.Glob(filepath.Join(dir, "gpumemtrack-*.json"))
		return err == nil && len(found) == 1
	}, time.Minute, time.Millisecond)
	stop()
	stop()
	d := readDump(t, files(t, dir)[0])
	assert.Equal(t, "user defined signal 1", d.Reason)
	assert.Equal(t, int64(1), d.Snapshot.Live.Count)
}

// TestLoggerOfASignalsDump may stop what it is told of, and close the tracker.
func TestLoggerOfASignalsDump(t *testing.T) {
	var tr *tracker.MemTracker
	var stop func()
	begun, logged := make(chan struct{}), make(chan struct{})
	tr, _ = open(t, tracker.Config{Logger: slog.New(handler{call: func() {
		defer close(logged)
		<-begun
		stop()
		assert.NoError(t, tr.Close())
	}})})
	dir := t.TempDir()
	stop = tr.DumpOnSignal(dir)
	close(begun)
	require.NoError(t, syscall.Kill(syscall.Getpid(), syscall.SIGUSR1))
	ends("the handler", func() { <-logged })
	assert.Len(t, files(t, dir), 1)
}

func TestCloseStopsDumpOnSignal(t *testing.T) {
	goroutines.Check(t)
	dir := t.TempDir()
	tr, _ := open(t, tracker.Config{})
	stop := tr.DumpOnSignal(dir)
	require.NoError(t, tr.Close())
	stop()
	stop = tr.DumpOnSignal(dir)
	stop()
	assert.Empty(t, files(t, dir))
}
