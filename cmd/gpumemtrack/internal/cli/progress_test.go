package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
)

func TestBar(t *testing.T) {
	const mib = int64(alloc.MiB)
	for want, got := range map[string]string{
		"████████████░░░░░░░░░░░░  50 %, 32.0 MiB of 64.0 MiB, 16.0 MiB/s, 2s left": barOf(32*mib, 64*mib, 2*time.Second, 0),
		"████████████████████████ 100 %, 64.0 MiB, adding up":                       barOf(65*mib, 64*mib, time.Second, 0),
		"░░░░░░░░░░░░░░░░░░░░░░░░   0 %, 0 B of 64.0 MiB, 0 B/s":                    barOf(0, 64*mib, time.Second, 0),
		"read 32.0 MiB, 16.0 MiB/s": barOf(32*mib, 0, 2*time.Second, 0),
		"████████████░░░░░░░░░░░░  50 %, 32.0 Mi…": barOf(32*mib, 64*mib, 2*time.Second, 41),
	} {
		assert.Equal(t, want, got)
	}
}

// shown is a progress on two terminals, which are buffers, at a time that stands still.
func shown() (p *progress, screen, bar *bytes.Buffer) {
	screen, bar = new(bytes.Buffer), new(bytes.Buffer)
	return &progress{bar: bar, screen: screen, silent: -1, now: func() time.Time { return time.Time{}.Add(time.Second) }}, screen, bar
}

// TestProgress: the bar is drawn over itself, goes before anything is printed, and comes back only if more is read.
func TestProgress(t *testing.T) {
	p, screen, bar := shown()
	p.began = p.now()
	p.size.Add(100)
	p.read(50)
	require.True(t, p.redraw())
	assert.Contains(t, bar.String(), ClearLine+"████████████░")
	bar.Reset()

	p.early("a table\nof two lines\n")
	assert.Equal(t, ClearLine, bar.String(), "the bar is below it")
	assert.Equal(t, "a table\nof two lines\n", screen.String())
	require.True(t, p.redraw())
	screen.Reset()
	bar.Reset()
	p.answer()
	assert.Equal(t, ClearLine, bar.String())
	assert.Equal(t, "\r\x1b[2A\x1b[J", screen.String(), "the answer takes its place")

	screen.Reset()
	bar.Reset()
	p.answer()
	require.True(t, p.redraw())
	assert.Empty(t, bar.String()+screen.String(), "nothing more was read")
	p.read(10)
	require.True(t, p.redraw())
	assert.Contains(t, bar.String(), "60 %")
	p.finish()
	bar.Reset()
	assert.False(t, p.redraw())
	p.early("too late\n")
	assert.Empty(t, bar.String()+screen.String())
}

// TestProgressOfFiles: what is not read of a file does not count, unless the files were announced.
func TestProgressOfFiles(t *testing.T) {
	path := filepath.Join(t.TempDir(), "a")
	require.NoError(t, os.WriteFile(path, make([]byte, 1000), 0o600))
	p, _, _ := shown()
	p.begin.Do(func() {}) // nothing draws
	a := &App{progress: p}
	for range 2 {
		f, err := openFile(a, path)
		require.NoError(t, err)
		assert.GreaterOrEqual(t, p.size.Load(), int64(1000))
		_, err = f.Read(make([]byte, 100))
		require.NoError(t, err)
		require.NoError(t, f.Close())
		assert.Equal(t, p.done.Load(), p.size.Load())
	}

	p, _, _ = shown()
	p.begin.Do(func() {})
	Announce(&App{progress: p}, []string{path, path, filepath.Join(t.TempDir(), "missing")})
	f, err := openFile(&App{progress: p}, path)
	require.NoError(t, err)
	require.NoError(t, f.Close())
	assert.EqualValues(t, 2000, p.size.Load())
}

// TestEarlyAnswer: of a large snapshot, what is live at its end is shown before its events are read; of a small one, of other files,
// and after the answer, nothing is.
func TestEarlyAnswer(t *testing.T) {
	const recorded = "../../../../tracker/export/torch/testdata/pytorch4.pickle"
	shows := func(path string, answered bool) string {
		p, screen, _ := shown()
		p.begin.Do(func() {})
		if answered {
			p.answer()
		}
		ShowEarly(&App{progress: p}, path, func(f *files.File) string { return f.Usage.Name + ": " + f.Dump.Snapshot.Live.String() + "\n" })
		return screen.String()
	}
	assert.Empty(t, shows(recorded, false), "it is small")
	leastEarly = 1
	defer func() { leastEarly = 16 << 20 }()
	assert.Equal(t, recorded+": 1 buffer, 5.0 GiB\n", shows(recorded, false))
	assert.Empty(t, shows(recorded, true))
	assert.Empty(t, shows("progress_test.go", false))
	assert.Empty(t, shows("missing", false))
	assert.Empty(t, shows("-", false))
}

// TestNoProgressInAPipe: without a terminal nothing is drawn, and nothing is in the way of what is printed.
func TestNoProgressInAPipe(t *testing.T) {
	var stdout, stderr bytes.Buffer
	p := newProgress(&stdout, &stderr)
	p.open(100)
	p.read(100)
	p.early("a table\n")
	p.answer()
	p.finish()
	assert.Empty(t, stdout.String()+stderr.String())
	var none *progress
	none.open(1)
	none.read(1)
	none.answer()
	none.finish()
}
