package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/internal/bounded"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/torch"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// writeRecording writes a recording whose data take more than a MiB, and returns the least --max-memory that reads it, up to a
// sixteenth of a MiB.
func writeRecording(t *testing.T, path string) (least alloc.Bytes) {
	gpu, err := sim.New(sim.Config{})
	require.NoError(t, err)
	tr, err := tracker.New(tracker.Config{Device: gpu, Report: io.Discard})
	require.NoError(t, err)
	for i := range 6000 {
		_, err := tr.Alloc(alloc.Shape{1 + i%40}, alloc.Float32, tracker.Activation)
		require.NoError(t, err)
	}
	var text bytes.Buffer
	defer tr.Close()
	require.NoError(t, torch.Write(&text, &snapshot.Dump{Snapshot: tr.Snapshot()}))
	require.NoError(t, os.WriteFile(path, text.Bytes(), 0o600))
	for least = 1 << 20; ; least += 1 << 16 {
		_, err := Open(&App{command: "show", maxMemory: least}, path)
		if err == nil {
			require.Greater(t, least, alloc.Bytes(1<<20))
			return least
		}
		require.ErrorIs(t, err, bounded.ErrTooLarge)
	}
}

// TestPoolOfLargeFiles: files that fit the limit one at a time are all read, and never two at once; with twice the limit,
// never three.
func TestPoolOfLargeFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rank.pickle")
	least := writeRecording(t, path)
	for most := range 2 {
		p := NewPool(&App{command: "show", maxMemory: least * alloc.Bytes(1+most)})
		var uses atomic.Int64
		var all sync.WaitGroup
		for range 8 {
			all.Go(func() {
				for range 3 {
					assert.NoError(t, p.Read(path, func(f *files.File) error {
						assert.LessOrEqual(t, uses.Add(1), int64(1+most))
						runtime.Gosched()
						assert.NotEmpty(t, f.Usage.Fill().Rows)
						uses.Add(-1)
						return nil
					}))
				}
			})
		}
		all.Wait()
	}
	p := NewPool(&App{command: "show", maxMemory: least / 2})
	err := p.Read(path, func(*files.File) error { return nil })
	require.ErrorIs(t, err, bounded.ErrTooLarge)
	assert.ErrorContains(t, err, "raise --max-memory")
}

// TestPoolReturnsErrors: of files and of who uses them; and the memory is given back.
func TestPoolReturnsErrors(t *testing.T) {
	path := filepath.Join(t.TempDir(), "rank.pickle")
	p := NewPool(&App{command: "show", maxMemory: writeRecording(t, path)})
	failed := errors.New("failed")
	for range 3 {
		require.ErrorIs(t, p.Read(path+".none", func(*files.File) error { return nil }), os.ErrNotExist)
		require.ErrorIs(t, p.Read(path, func(*files.File) error { return fmt.Errorf("use: %w", failed) }), failed)
		require.NoError(t, p.Read(path, func(*files.File) error { return nil }))
	}
}
