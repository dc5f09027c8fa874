package tracker_test

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// busy returns a tracker with events of many kinds in its history.
func busy(t *testing.T, cfg tracker.Config) *tracker.MemTracker {
	tr, _ := open(t, cfg)
	step := tr.Section("step")
	buf := take(t, tr, tracker.Activation, 3, 5)
	buf.SetLabel("x")
	require.NoError(t, take(t, tr, tracker.Temporary, 1<<20).Free())
	step.End()
	tr.Track()
	_, err := tr.Alloc(alloc.Shape{1 << 20, 1 << 20}, alloc.Uint8, tracker.Input) // all that sim may have
	require.ErrorIs(t, err, alloc.ErrOutOfMemory)
	return tr
}

func dumped(t *testing.T, tr *tracker.MemTracker) []byte {
	var b bytes.Buffer
	require.NoError(t, tr.Dump(&b, "to see"))
	return b.Bytes()
}

func readDump(t *testing.T, path string) *tracker.Dump {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	d, err := tracker.ReadDump(f)
	require.NoError(t, err)
	return d
}

func TestDumpIsReadAsItWasWritten(t *testing.T) {
	tr := busy(t, tracker.Config{})
	d, err := tracker.ReadDump(bytes.NewReader(dumped(t, tr)))
	require.NoError(t, err)

	assert.Equal(t, "to see", d.Reason)
	assert.Equal(t, os.Getpid(), d.Process.PID)
	assert.NotEmpty(t, d.Process.Go)
	s := tr.Snapshot()
	require.NotEmpty(t, d.Devices)
	assert.Equal(t, tracker.DeviceInfo{
		Name: sim.DefaultName, Used: s.DriverUsed, Total: s.DriverTotal, Reserved: s.Reserved,
	}, d.Devices[0])
	assert.Equal(t, s.Live, d.Snapshot.Live)
	assert.NotEmpty(t, d.Snapshot.Segments)
	assert.Equal(t, slices.Collect(s.Groups()), slices.Collect(d.Snapshot.Groups()))
	assert.Equal(t, events(tr.History()), events(d.History))
	assert.Equal(t, tr.History().Dropped(), d.History.Dropped())
	assert.Contains(t, events(d.History)[0], "section_begin")
}

// events prints each event, with what every field of it says.
func events(h *tracker.History) (lines []string) {
	for e := range h.Events() {
		lines = append(lines, fmt.Sprint(e.Action, " ", e.Seq, " ", e.Time.UnixNano(), e.Ptr, e.Requested, e.Allocated, e.Kind, e.Shape, e.DType,
			" ", e.Section, " ", e.Span, " ", e.Mark, "\n", e.Stack))
	}
	return lines
}

func TestHistoryIsReadAsItWasWritten(t *testing.T) {
	h := busy(t, tracker.Config{MaxEvents: 5}).History()
	text, err := h.MarshalJSON()
	require.NoError(t, err)
	var read tracker.History
	require.NoError(t, read.UnmarshalJSON(text))
	assert.Equal(t, events(h), events(&read))
	assert.Equal(t, h.Dropped(), read.Dropped())
	assert.NotZero(t, read.Dropped())
}

func TestBadDumpsAreErrors(t *testing.T) {
	text := dumped(t, busy(t, tracker.Config{}))
	for name, test := range map[string]struct{ old, new, want string }{
		"another version": {`"schema":"gpumemtrack.dump","version":1`, `"schema":"gpumemtrack.dump","version":2`, "this program reads version 1"},
		"another schema":  {`"schema":"gpumemtrack.dump"`, `"schema":"gpumemtrack.delta"`, `want "gpumemtrack.dump"`},
		"another history": {`"schema":"gpumemtrack.history","version":1`, `"schema":"gpumemtrack.history","version":9`, "this program reads version 1"},
		"no history":      {`"history"`, `"story"`, "lacks its snapshot or its history"},
		"a wild stack":    {`"stack":0`, `"stack":99`, "99"},
		"a wild action":   {`"action":"oom"`, `"action":"dance"`, `"dance"`},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, string(text), test.old)
			_, err := tracker.ReadDump(bytes.NewReader(bytes.ReplaceAll(text, []byte(test.old), []byte(test.new))))
			assert.ErrorContains(t, err, test.want)
		})
	}
	for _, n := range []int{0, 1, len(text) / 2, len(text) - 2} {
		_, err := tracker.ReadDump(bytes.NewReader(text[:n]))
		assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
}

func FuzzReadDump(f *testing.F) {
	seed := []byte(`{"schema":"gpumemtrack.dump","version":1,
"snapshot":{"schema":"gpumemtrack.snapshot","version":1},
"history":{"schema":"gpumemtrack.history","version":1,"sections":["","a"],"stacks":[{"frames":[{"line":1}]}],
"groups":[{"kind":"Input","dtype":"int4","shape":[3]}],"events":[{"ns":1,"action":"alloc","group":0,"stack":0,"section":1}]}}`)
	_, err := tracker.ReadDump(bytes.NewReader(seed))
	require.NoError(f, err)
	f.Add(seed)
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := tracker.ReadDump(bytes.NewReader(text))
		if err != nil {
			return
		}
		for range d.History.Events() {
		}
		for range d.Snapshot.Sites() {
		}
		_, err = d.Snapshot.MarshalJSON()
		require.NoError(t, err)
		_, err = d.History.MarshalJSON()
		require.NoError(t, err)
	})
}

// files returns what lies in a directory, hidden files too.
func files(t *testing.T, dir string) (paths []string) {
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	for _, e := range entries {
		paths = append(paths, filepath.Join(dir, e.Name()))
	}
	return paths
}

func TestOutOfMemoryWritesADumpFirst(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "dumps")
	tr, _ := open(t, tracker.Config{OOMDir: dir, MaxDumps: 2, Device: device(t, sim.Config{Memory: 512 * alloc.MiB})})
	take(t, tr, tracker.Parameter, 1<<20)
	var oom *tracker.OutOfMemoryError
	for n := range 3 {
		_, err := tr.AllocBytes(alloc.GiB, tracker.Activation)
		require.ErrorAs(t, err, &oom)
		if n == 2 {
			break
		}
		require.NoError(t, oom.DumpErr)
		d := readDump(t, oom.Dump)
		assert.Contains(t, d.Reason, "out of device memory")
		assert.Equal(t, int64(1), d.Snapshot.Live.Count)
		last := events(d.History)
		assert.Contains(t, last[len(last)-1], "oom")
		assert.Contains(t, err.Error(), "\n\tdump: "+oom.Dump)
	}
	assert.Empty(t, oom.Dump)
	assert.ErrorContains(t, oom.DumpErr, "2 were written already")
	assert.Len(t, files(t, dir), 2)
}

func TestDumpsOfADirectoryAreBoundedInNumber(t *testing.T) {
	dir := t.TempDir()
	note := filepath.Join(dir, "gpumemtrack-notes.txt")
	require.NoError(t, os.WriteFile(note, nil, 0o644))
	tr, _ := open(t, tracker.Config{MaxDumps: 3})
	var paths []string
	for range 5 {
		path, err := tr.DumpFile(dir, "test")
		require.NoError(t, err)
		paths = append(paths, path)
	}
	assert.ElementsMatch(t, append(paths[2:], note), files(t, dir), "the oldest are gone, and nothing else")
}

// TestDumpsOfTrackersInOneDirectory: names do not clash, a directory's own name
// may hold anything, and a clock that is behind does not cost the dump just written.
func TestDumpsOfTrackersInOneDirectory(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "run[1] *")
	at := func(year int) *tracker.MemTracker {
		now := time.Date(year, 1, 1, 0, 0, 0, 0, time.UTC)
		tr, _ := open(t, tracker.Config{MaxDumps: 2, Clock: func() time.Time { return now }})
		return tr
	}
	for _, tr := range []*tracker.MemTracker{at(2026), at(2026), at(2026), at(1999)} {
		path, err := tr.DumpFile(dir, "test")
		require.NoError(t, err)
		assert.FileExists(t, path)
	}
	assert.Len(t, files(t, dir), 2)
}

func TestDumpsAreBoundedInBytes(t *testing.T) {
	dir := t.TempDir()
	whole, _ := open(t, tracker.Config{MaxDumpBytes: alloc.GiB, NoCache: true})
	for range 10_000 {
		take(t, whole, tracker.Activation, 16)
	}
	path, err := whole.DumpFile(dir, "test")
	require.NoError(t, err)
	assert.Equal(t, 10_000, readDump(t, path).History.Len())
	info, err := os.Stat(path)
	require.NoError(t, err)
	size := alloc.Bytes(info.Size())

	for _, test := range []struct {
		limit       alloc.Bytes
		events      int
		allocations int
	}{
		{size * 9 / 10, 1 << 12, 10_000},
		{size / 3, 1 << 12, 0},
		{size / 20, 1 << 8, 0},
	} {
		tr, _ := open(t, tracker.Config{MaxDumpBytes: test.limit, NoCache: true})
		for range 10_000 {
			take(t, tr, tracker.Activation, 16)
		}
		path, err := tr.DumpFile(dir, "test")
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		assert.LessOrEqual(t, info.Size(), int64(test.limit))
		d := readDump(t, path)
		assert.Equal(t, test.events, d.History.Len(), "%v", test.limit)
		assert.Equal(t, test.allocations, len(slices.Collect(d.Snapshot.Allocations())), "%v", test.limit)
		assert.Equal(t, int64(10_000), d.Snapshot.Live.Count, "never empty")
	}

	before := files(t, dir)
	tiny, _ := open(t, tracker.Config{MaxDumpBytes: 100})
	_, err = tiny.DumpFile(dir, "test")
	assert.ErrorContains(t, err, "more than the 100 B that a dump may")
	assert.Equal(t, before, files(t, dir), "nothing of it stays")
}

func TestDumpWhereNoneCanBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	tr, _ := open(t, tracker.Config{OOMDir: file})
	_, err := tr.Alloc(alloc.Shape{1 << 20, 1 << 20}, alloc.Uint8, tracker.Input) // all that sim may have
	var oom *tracker.OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.Error(t, oom.DumpErr)
	assert.Contains(t, err.Error(), "\n\tno dump: ")

	assert.ErrorContains(t, tr.Dump(&brokenWriter{n: 100}, ""), "write dump: ")
}
