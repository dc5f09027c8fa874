package tracker_test

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// inDir returns a tracker with its report in a directory of its own, and a Track
// that tells its number as a buffer's size.
func inDir(t *testing.T, cfg tracker.Config) (tr *tracker.MemTracker, dir string, track func()) {
	cfg.Dir, cfg.Report, cfg.Clock = t.TempDir(), io.Discard, clock()
	tr, _ = open(t, cfg)
	n := 0
	return tr, cfg.Dir, func() {
		n++
		take(t, tr, tracker.Input, n)
		tr.Track()
	}
}

// onlyFile returns the text of the only file in a directory, and its path.
func onlyFile(t *testing.T, dir string) (path, text string) {
	t.Helper()
	paths := files(t, dir)
	require.Len(t, paths, 1)
	b, err := os.ReadFile(paths[0])
	require.NoError(t, err)
	return paths[0], string(b)
}

// TestReportWhoseFileIsTaken: it goes on in a new file, which says so.
func TestReportWhoseFileIsTaken(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open file cannot be deleted there")
	}
	elsewhere := t.TempDir()
	for name, take := range map[string]func(path string) error{
		"deleted": os.Remove,
		"moved":   func(path string) error { return os.Rename(path, filepath.Join(elsewhere, filepath.Base(path)+".1")) },
		"emptied": func(path string) error { return os.Truncate(path, 0) },
	} {
		t.Run(name, func(t *testing.T) {
			tr, dir, track := inDir(t, tracker.Config{})
			track()
			track()
			path, whole := onlyFile(t, dir)
			require.Equal(t, []int{1, 2}, sizes(whole))
			require.NoError(t, take(path))
			track()
			track()
			again, text := onlyFile(t, dir)
			assert.Equal(t, path, again)
			assert.Equal(t, []int{3, 4}, sizes(text))
			header, _, _ := strings.Cut(text, "\n+ |")
			assert.Contains(t, header, "Simulated GPU [0], 24.0 GiB\nTotal Tensor Used Memory:12 B ")
			assert.Contains(t, header, "This file begins with mark 3. The file with the marks before it was deleted, moved or emptied.\n")
			assert.NoError(t, tr.Close())
		})
	}
}

// TestReportWhoseDirectoryIsTaken: there is an error, and the report goes on when
// the directory is back.
func TestReportWhoseDirectoryIsTaken(t *testing.T) {
	if runtime.GOOS == "windows" {
		t.Skip("an open file cannot be deleted there")
	}
	tr, dir, track := inDir(t, tracker.Config{Logger: silent})
	track()
	require.NoError(t, tr.Err())
	require.NoError(t, os.RemoveAll(dir))
	track()
	track()
	require.ErrorIs(t, tr.Err(), os.ErrNotExist)
	require.NoError(t, os.Mkdir(dir, 0o755))
	track()
	_, text := onlyFile(t, dir)
	assert.Contains(t, text, "\n2 marks are missing here: ")
	assert.Equal(t, []int{4}, sizes(text))
	assert.ErrorIs(t, tr.Close(), os.ErrNotExist)
}

// TestReportOfAProgramThatGoesElsewhere: a directory is where it was at New.
func TestReportOfAProgramThatGoesElsewhere(t *testing.T) {
	dir := t.TempDir()
	t.Chdir(dir)
	tr, err := tracker.New(tracker.Config{Device: device(t, sim.Config{})})
	require.NoError(t, err)
	t.Chdir(t.TempDir())
	tr.Track()
	require.NoError(t, tr.Close())
	_, text := onlyFile(t, dir)
	assert.Contains(t, text, "At reportfile_test.go line ")
}

// TestReportIsBounded: it is the latest marks, in two files, without a gap.
func TestReportIsBounded(t *testing.T) {
	const bound = 64 * alloc.KiB
	tr, dir, track := inDir(t, tracker.Config{MaxReportBytes: bound})
	path, _ := onlyFile(t, dir)
	older := strings.TrimSuffix(path, "-gpu_mem_track.txt") + "-older-gpu_mem_track.txt"
	const marks = 1000
	for range marks {
		track()
		sum := int64(0)
		for _, path := range files(t, dir) {
			info, err := os.Stat(path)
			require.NoError(t, err)
			sum += info.Size()
		}
		require.LessOrEqual(t, sum, int64(bound))
	}
	require.NoError(t, tr.Close())
	assert.ElementsMatch(t, []string{older, path}, files(t, dir))

	var all []int
	for _, path := range []string{older, path} {
		text, err := os.ReadFile(path)
		require.NoError(t, err)
		kept := sizes(string(text))
		assert.Greater(t, len(kept), 20)
		first := kept[0]
		live := alloc.Bytes(0)
		for n := range first {
			live += 4 * alloc.Bytes(n)
		}
		assert.Contains(t, string(text), fmt.Sprintf("This file begins with mark %d. The marks from ", first))
		assert.Contains(t, string(text), "; those before are dropped, as a report takes no more than 64.0 KiB: see Config.MaxReportBytes.\n")
		assert.Contains(t, string(text), fmt.Sprintf("Total Tensor Used Memory:%.1f ", float64(live)/float64(alloc.MiB)), "the level that the deltas begin with")
		all = append(all, kept...)
	}
	assert.Equal(t, upTo(marks)[all[0]-1:], all)
}

// TestReportOfAMarkThatIsTooLarge: its last changes are left out, and nothing else.
func TestReportOfAMarkThatIsTooLarge(t *testing.T) {
	tr, dir, track := inDir(t, tracker.Config{MaxReportBytes: 1})
	for n := range 1000 {
		take(t, tr, tracker.Activation, 10_000+n)
	}
	track()
	_, text := onlyFile(t, dir)
	assert.LessOrEqual(t, len(text), int(4*alloc.KiB))
	assert.Equal(t, 10_999, sizes(text)[0])
	assert.Regexp(t, fmt.Sprintf("\n%d more changes are left out: see Config.MaxReportBytes\n\nAt reportfile_test.go line .*\nTotal Tensor Used Memory:.*\n +Driver Used Memory:.*\n$", 1001-len(sizes(text))), text)
	assert.NoError(t, tr.Close())
}

// TestNewThatFailsLeavesNoReport: not even an empty one.
func TestNewThatFailsLeavesNoReport(t *testing.T) {
	dir := t.TempDir()
	_, err := tracker.New(tracker.Config{Device: device(t, sim.Config{}), Dir: dir, Report: &failing{}})
	require.ErrorIs(t, err, errFull)
	assert.Empty(t, files(t, dir))
}

// named is a device with a name from outside.
type named struct {
	alloc.Device
	name string
}

func (d named) Name() string { return d.name }

// TestNamesFromOutsideInAReport cannot break its lines, nor steer a terminal.
func TestNamesFromOutsideInAReport(t *testing.T) {
	for name, want := range map[string]string{
		"NVIDIA A100-SXM4 40GB": "NVIDIA A100-SXM4 40GB [0], 24.0 GiB",
		"Größe 显卡":              "Größe 显卡 [0], 24.0 GiB",
		"a\nAt main.go line 1":  `"a\nAt main.go line 1 [0], 24.0 GiB"`,
		"\x1b[31mred":           `"\x1b[31mred [0], 24.0 GiB"`,
		"\x9b31m\xff":           `"\x9b31m\xff [0], 24.0 GiB"`,
		"left\u202eright":       `"left\u202eright [0], 24.0 GiB"`,
	} {
		tr, report := open(t, tracker.Config{Device: named{device(t, sim.Config{}), name}})
		first, _, _ := strings.Cut(report.String(), "\n")
		assert.Contains(t, first, " | "+want)
		require.NoError(t, tr.Close())
	}
	var d snapshot.Delta
	require.NoError(t, d.UnmarshalJSON([]byte(`{"schema":"gpumemtrack.delta","version":1,"changes":[{"kind":"Input","dtype":"int4","shape":[3],
"count":1,"bytes":2,"sites":[{"function":"main.\u001b[2Jf","file":"a\nb.go","line":3,"count":1,"bytes":2}]}]}`)))
	assert.Contains(t, d.String(), `| "a\nb.go:3 main.\x1b[2Jf"`)
	assert.NotContains(t, d.String(), "\x1b")
}
