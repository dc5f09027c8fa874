package tracker_test

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// TestReport is the reference's example, its clock held.
func TestReport(t *testing.T) {
	tr, report := open(t, tracker.Config{Clock: clock()})
	tr.Track()
	in := 3
	for _, out := range []int{64, 64, 128, 128, 256, 256, 256, 256, 512, 512, 512, 512, 512, 512, 512, 512} {
		_, err := tr.Alloc(alloc.Shape{out, in, 3, 3}, alloc.Float32, tracker.Parameter)
		require.NoError(t, err)
		_, err = tr.Alloc(alloc.Shape{out}, alloc.Float32, tracker.Parameter)
		require.NoError(t, err)
		in = out
	}
	tr.Track()
	take(t, tr, tracker.Unspecified, 30, 3, 512, 512)
	second := take(t, tr, tracker.Unspecified, 40, 3, 512, 512)
	take(t, tr, tracker.Unspecified, 60, 3, 512, 512)
	tr.Track()
	fourth := take(t, tr, tracker.Unspecified, 120, 3, 512, 512)
	take(t, tr, tracker.Unspecified, 80, 3, 512, 512)
	tr.Track()
	require.NoError(t, fourth.Free())
	require.NoError(t, second.Free())
	returned, err := tr.ClearCache()
	require.NoError(t, err)
	require.Equal(t, 480*alloc.MiB, returned)
	tr.Track()
	golden(t, "vgg19.txt", report.String())
}

func TestReportOfSignsKindsAndSites(t *testing.T) {
	tr, report := open(t, tracker.Config{Clock: clock()})
	var buffers []*tracker.Buffer
	for range 8 {
		buffers = append(buffers, take(t, tr, tracker.Parameter, 512))
	}
	take(t, tr, tracker.Gradient, 512) // same shape, another kind: a line of its own
	tr.Track()
	take(t, tr, tracker.Parameter, 512) // from 8 to 9 is + 1
	_, err := tr.AllocBytes(16, tracker.Temporary)
	require.NoError(t, err)
	_, err = tracker.Make[float64](tr)
	require.NoError(t, err)
	tr.Track()
	for _, buf := range buffers[:3] {
		require.NoError(t, buf.Free())
	}
	half, err := tr.Alloc(alloc.Shape{512}, alloc.BFloat16, tracker.Parameter)
	require.NoError(t, err)
	_, err = tr.Alloc(alloc.Shape{512}, alloc.BFloat16, tracker.Parameter)
	require.NoError(t, err)
	tr.Track()
	require.NoError(t, half.Free())
	take(t, tr, tracker.Activation, 3)
	tr.Track()
	tr.Track() // nothing changed
	golden(t, "signs.txt", report.String())
}

func TestReportFile(t *testing.T) {
	dir := t.TempDir()
	first, _ := open(t, tracker.Config{Dir: dir, Clock: clock(), Report: io.Discard})
	open(t, tracker.Config{Dir: dir, Clock: clock(), Report: io.Discard})
	first.Track()
	require.NoError(t, first.Close())

	files, err := filepath.Glob(filepath.Join(dir, "*-gpu_mem_track.txt"))
	require.NoError(t, err)
	require.Len(t, files, 2, "trackers of the same second have a file each")
	names := []string{filepath.Base(files[0]), filepath.Base(files[1])}
	assert.Contains(t, strings.ReplaceAll(names[1], "-2-", "-"), "21-Nov-26-03")
	text, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(names[0], "-2-", "-")))
	require.NoError(t, err)
	assert.Contains(t, string(text), "At report_test.go line ")
}

func TestReportDirectoryThatCannotBe(t *testing.T) {
	missing := filepath.Join(t.TempDir(), "missing")
	for _, dev := range []alloc.Device{device(t, sim.Config{}), nil} {
		_, err := tracker.New(tracker.Config{Device: dev, Dir: missing})
		require.ErrorIs(t, err, os.ErrNotExist)
		require.ErrorContains(t, err, "new tracker: begin the memory report")
	}
}

// failing is a writer that is full after a number of blocks.
type failing struct{ blocks int }

var errFull = errors.New("no space left")

func (f *failing) Write(p []byte) (int, error) {
	if f.blocks == 0 {
		return len(p) / 2, errFull
	}
	f.blocks--
	return len(p), nil
}

func TestReportThatCannotBeWritten(t *testing.T) {
	var logged strings.Builder
	tr, _ := open(t, tracker.Config{Report: &failing{blocks: 2}, Logger: slog.New(slog.NewTextHandler(&logged, nil))})
	tr.Track()
	require.NoError(t, tr.Err())
	for range 3 {
		take(t, tr, tracker.Input, 7)
		require.Equal(t, int64(1), tr.Track().Delta.Sum().Count, "tracking goes on")
	}
	require.ErrorIs(t, tr.Err(), errFull)
	require.ErrorIs(t, tr.Close(), errFull)
	require.Equal(t, 1, strings.Count(logged.String(), "level=ERROR"), "it is logged once")
}

// wholeBlocks checks that each Write is a block, and only one at a time.
type wholeBlocks struct {
	t      *testing.T
	blocks []string
}

func (w *wholeBlocks) Write(p []byte) (int, error) {
	w.blocks = append(w.blocks, string(p)) // a race if two write at once
	return len(p), nil
}

func TestTrackersShareAWriter(t *testing.T) {
	shared := &wholeBlocks{t: t}
	var wg sync.WaitGroup
	for ordinal := range 4 {
		tr, _ := open(t, tracker.Config{Device: device(t, sim.Config{Ordinal: ordinal}), Report: shared})
		wg.Go(func() {
			for range 50 {
				take(t, tr, tracker.Input, 7)
				tr.Track()
			}
		})
	}
	wg.Wait()
	require.Len(t, shared.blocks, 4*51)
	for _, block := range shared.blocks {
		require.True(t, strings.HasSuffix(block, "\n"))
		if !strings.HasPrefix(block, "GPU Memory Track | ") {
			require.Equal(t, 1, strings.Count(block, "At report_test.go line "))
			require.Equal(t, 1, strings.Count(block, "+ | 1 * Size:(7,)"))
		}
	}
}
