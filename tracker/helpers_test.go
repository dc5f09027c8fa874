package tracker_test

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/cachetest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

var update = flag.Bool("update", false, "write the golden files anew")

// golden compares got with a file of testdata.
func golden(t *testing.T, name, got string) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		require.NoError(t, os.MkdirAll("testdata", 0o755))
		require.NoError(t, os.WriteFile(path, []byte(got), 0o644))
	}
	want, err := os.ReadFile(path)
	require.NoError(t, err, "run go test -update to make it")
	require.Equal(t, string(want), got)
}

// clock is a time that passes a second at each look.
func clock() func() time.Time {
	now := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)
	return func() time.Time {
		now = now.Add(time.Second)
		return now
	}
}

// open returns a tracker over a fresh simulated GPU, closed with the test, and its report.
func open(t *testing.T, cfg tracker.Config) (*tracker.MemTracker, *bytes.Buffer) {
	t.Helper()
	if cfg.Device == nil {
		cfg.Device = device(t, sim.Config{})
	}
	report := new(bytes.Buffer)
	if cfg.Report == nil {
		cfg.Report = report
	}
	tr, err := tracker.New(cfg)
	require.NoError(t, err)
	t.Cleanup(func() { tr.Close() })
	return tr, report
}

func device(t *testing.T, cfg sim.Config) cachetest.Device {
	dev, err := cachetest.NewDevice(cfg)
	require.NoError(t, err)
	return dev
}

// take allocates float32 of the given shape.
func take(t *testing.T, tr *tracker.MemTracker, kind tracker.Kind, dims ...int) *tracker.Buffer {
	t.Helper()
	buf, err := tr.Alloc(alloc.Shape(dims), alloc.Float32, kind)
	require.NoError(t, err)
	return buf
}

// unregister takes registered memory out of the ledger, and returns what puts it back.
func unregister(t *testing.T, tr *tracker.MemTracker, p alloc.Ptr) (putBack func() error) {
	t.Helper()
	putBack, err := tr.Unregister(p)
	require.NoError(t, err)
	return putBack
}
