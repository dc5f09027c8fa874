package tracker_test

import (
	"errors"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
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
	_, err = tracker.Make[float64](tr, nil, tracker.Unspecified)
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
	assert.Equal(t, []string{"21-Nov-26-03-30-05-2-gpu_mem_track.txt", "21-Nov-26-03-30-05-gpu_mem_track.txt"}, names)
	text, err := os.ReadFile(filepath.Join(dir, strings.ReplaceAll(names[0], "-2-", "-")))
	require.NoError(t, err)
	assert.Contains(t, string(text), "At report_test.go line ")
}

// TestReportDirectoryIsMade, and the log says once where the report is.
func TestReportDirectoryIsMade(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "runs", "today")
	var log strings.Builder
	tr, err := tracker.New(tracker.Config{Device: device(t, sim.Config{}), Dir: dir, Logger: slog.New(slog.NewTextHandler(&log, nil))})
	require.NoError(t, err)
	tr.Track()
	require.NoError(t, tr.Close())
	files, err := filepath.Glob(filepath.Join(dir, "*-gpu_mem_track.txt"))
	require.NoError(t, err)
	require.Len(t, files, 1)
	assert.Equal(t, 1, strings.Count(log.String(), files[0]), log.String())
}

func TestReportDirectoryThatCannotBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o600))
	for _, dev := range []alloc.Device{device(t, sim.Config{}), nil} {
		_, err := tracker.New(tracker.Config{Device: dev, Dir: filepath.Join(file, "below")})
		var at *os.PathError
		require.ErrorAs(t, err, &at)
		require.ErrorContains(t, err, "new tracker: begin the memory report")
		require.ErrorContains(t, err, "set Config.Dir to a directory that can be written")
	}
}

// TestReportIsRead as a script for the reference's report reads it: by the columns between
// the bars, and by the labels of the totals.
func TestReportIsRead(t *testing.T) {
	text, err := os.ReadFile("testdata/vgg19.txt")
	require.NoError(t, err)
	var rows [][]string
	for line := range strings.Lines(string(text)) {
		if cells := strings.Split(strings.TrimSpace(line), "|"); cells[0] == "+ " || cells[0] == "- " {
			for i := range cells {
				cells[i] = strings.TrimSpace(cells[i])
			}
			rows = append(rows, cells[:5])
		}
	}
	require.Len(t, rows, 19)
	assert.Equal(t, []string{"+", "7 * (512, 512, 3, 3)", "63.0 MiB", "Parameter", "float32"}, rows[0])
	assert.Equal(t, []string{"-", "1 * (40, 3, 512, 512)", "120.0 MiB", "Tensor", "float32"}, rows[18])

	totals := regexp.MustCompile(`At (\S+) line (\d+): (\S+) .*\s+Total Tensor Used Memory:([\d.]+)\s+M\w+ Total Allocated Memory:([\d.]+)\s+M`)
	marks := totals.FindAllStringSubmatch(string(text), -1)
	require.Len(t, marks, 5)
	assert.Equal(t, []string{"tracker_test.TestReport", "0.0", "0.0"}, marks[0][3:])
	assert.Equal(t, []string{"586.4", "612.0"}, marks[4][4:])
}

// TestReportIsHundredWide, unless a single name is wider.
func TestReportIsHundredWide(t *testing.T) {
	tr, report := open(t, tracker.Config{Device: named{device(t, sim.Config{}), "NVIDIA RTX PRO 6000 Blackwell Server Edition"}})
	for rank := range 6 {
		shape := make(alloc.Shape, rank+1)
		for i := range shape {
			shape[i] = 64
		}
		_, err := tr.Alloc(shape[:min(len(shape), 5)], alloc.BFloat16, tracker.OptimizerState)
		require.NoError(t, err)
		take(t, tr, tracker.Activation, rank+1)
	}
	tr.Track()
	for line := range strings.Lines(report.String()) {
		assert.LessOrEqual(t, len(line)-1, 100, line)
		assert.Equal(t, strings.TrimRight(line, " \n")+"\n", line, "no spaces at its end")
	}
	assert.Contains(t, report.String(), "\n    at report_test.go:")
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
			require.Equal(t, 1, strings.Count(block, "+ | 1 * (7,)"))
		}
	}
}
