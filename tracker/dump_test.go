package tracker_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/rewind"
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
	d := tr.Dump()
	d.Reason = "to see"
	require.NoError(t, d.WriteJSON(&b))
	return b.Bytes()
}

func readDump(t *testing.T, path string) *snapshot.Dump {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	d, err := snapshot.ReadDump(f)
	require.NoError(t, err)
	return d
}

// TestADumpsHistoryReachesItsSnapshot: what happens while a dump is taken, here in the program's clock, is in its
// history or after its snapshot. An event between the two would make what is rewound from the snapshot wrong.
func TestADumpsHistoryReachesItsSnapshot(t *testing.T) {
	var tr *tracker.MemTracker
	during := false
	now := time.Unix(1_700_000_000, 0)
	clock := func() time.Time {
		if during {
			during = false
			take(t, tr, tracker.Temporary, 7)
			during = true
		}
		return now
	}
	tr, _ = open(t, tracker.Config{Clock: clock})
	kept := take(t, tr, tracker.Activation, 3)
	first := tr.LightSnapshot().Events
	during = true
	text := dumped(t, tr)
	during = false
	d, err := snapshot.ReadDump(bytes.NewReader(text))
	require.NoError(t, err)
	require.Greater(t, d.Snapshot.Events, first, "something was allocated meanwhile")
	assert.Equal(t, d.Snapshot.Events, tables.OfHistory(&d.History).First+uint64(len(slices.Collect(d.Events()))))

	before, err := rewind.At(d, first)
	require.NoError(t, err)
	live := slices.Collect(before.Allocations())
	require.Len(t, live, 1)
	assert.Equal(t, kept.Ptr(), live[0].Ptr)
}

func TestDumpIsReadAsItWasWritten(t *testing.T) {
	tr := busy(t, tracker.Config{})
	d, err := snapshot.ReadDump(bytes.NewReader(dumped(t, tr)))
	require.NoError(t, err)

	assert.Equal(t, "to see", d.Reason)
	assert.Equal(t, os.Getpid(), d.Snapshot.Origin.PID)
	assert.NotEmpty(t, d.Build.GoVersion)
	s := tr.Snapshot()
	require.NotEmpty(t, d.Devices)
	assert.Equal(t, &snapshot.Snapshot{
		Device: "Simulated GPU", Levels: snapshot.Levels{DriverUsed: s.DriverUsed, DriverTotal: s.DriverTotal, Reserved: s.Reserved},
	}, d.Devices[0])
	assert.Equal(t, s.Live, d.Snapshot.Live)
	assert.NotEmpty(t, d.Snapshot.Segments)
	assert.Equal(t, s.Sub(nil), d.Snapshot.Sub(nil))
	assert.Equal(t, events(tr.Dump()), events(d))
	assert.Contains(t, events(d)[0], "section_begin")
}

// events prints each event, with what every field of it says.
func events(d *snapshot.Dump) (lines []string) {
	for e := range d.Events() {
		lines = append(lines, fmt.Sprint(e.Action, " ", e.Seq, " ", e.Time.UnixNano(), e.Ptr, e.Requested, e.Allocated, e.Kind, e.Shape, e.DType,
			" ", e.Section, " ", e.Span, " ", e.Mark, "\n", e.Stack))
	}
	return lines
}

func TestHistoryIsReadAsItWasWritten(t *testing.T) {
	written := busy(t, tracker.Config{MaxEvents: 5}).Dump()
	text, err := written.MarshalJSON()
	require.NoError(t, err)
	var read snapshot.Dump
	require.NoError(t, read.UnmarshalJSON(text))
	assert.Equal(t, events(written), events(&read))
	assert.Equal(t, tables.OfHistory(&written.History).First, tables.OfHistory(&read.History).First)
	assert.NotZero(t, tables.OfHistory(&read.History).First)
}

func TestBadDumpsAreErrors(t *testing.T) {
	text := dumped(t, busy(t, tracker.Config{}))
	for name, test := range map[string]struct{ old, new, want string }{
		"another version": {`"schema":"gpumemtrack.dump","version":2`, `"schema":"gpumemtrack.dump","version":3`, "this program reads versions up to 2"},
		"another schema":  {`"schema":"gpumemtrack.dump"`, `"schema":"gpumemtrack.delta"`, `want "gpumemtrack.dump"`},
		"another history": {`"schema":"gpumemtrack.history","version":3`, `"schema":"gpumemtrack.history","version":9`, "this program reads versions up to 3"},
		"no snapshot":     {`"snapshot": {`, `"photograph": {`, "lacks its snapshot"},
		"a wild stack":    {`"stack":0`, `"stack":99`, "99"},
		"a wild frame":    {`"frames":[0,`, `"frames":[77,`, "stack 0: frame 77 of"},
		"no frame":        {`"frames":[0,`, `"frames":[-1,`, "stack 0: frame -1 of"},
		"a wild action":   {`"action":"oom"`, `"action":"dance"`, `"dance"`},
	} {
		t.Run(name, func(t *testing.T) {
			require.Contains(t, string(text), test.old)
			_, err := snapshot.ReadDump(bytes.NewReader(bytes.ReplaceAll(text, []byte(test.old), []byte(test.new))))
			assert.ErrorContains(t, err, test.want)
		})
	}
	for _, n := range []int{0, 1, len(text) / 2, len(text) - 2} {
		_, err := snapshot.ReadDump(bytes.NewReader(text[:n]))
		assert.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
}

func FuzzReadDump(f *testing.F) {
	seed := []byte(`{"schema":"gpumemtrack.dump","version":1,
"snapshot":{"schema":"gpumemtrack.snapshot","version":1},
"history":{"schema":"gpumemtrack.history","version":1,"sections":["","a"],"stacks":[{"frames":[{"line":1}]}],
"groups":[{"kind":"Input","dtype":"int4","shape":[3]}],"events":[{"ns":1,"action":"alloc","group":0,"stack":0,"section":1}]}}`)
	_, err := snapshot.ReadDump(bytes.NewReader(seed))
	require.NoError(f, err)
	f.Add(seed)
	f.Add([]byte(`{"schema":"gpumemtrack.dump","version":1,"snapshot":{"schema":"gpumemtrack.snapshot","version":1}}`))
	f.Fuzz(func(t *testing.T, text []byte) {
		d, err := snapshot.ReadDump(bytes.NewReader(text))
		if err != nil {
			return
		}
		for range d.Events() {
		}
		for range d.Snapshot.CallSites() {
		}
		require.NoError(t, d.WriteJSON(io.Discard))
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
		require.NotEmpty(t, oom.Dump)
		d := readDump(t, oom.Dump)
		assert.Contains(t, d.Reason, "out of device memory")
		assert.Equal(t, int64(1), d.Snapshot.Live.Count)
		last := events(d)
		assert.Contains(t, last[len(last)-1], "oom")
		assert.Contains(t, err.Error(), "\n\tdump: "+oom.Dump)
		assertDumpInJSON(t, oom, oom.Dump)
	}
	assert.Empty(t, oom.Dump)
	assert.ErrorContains(t, oom, "2 were written already")
	assert.Len(t, files(t, dir), 2)
	assertDumpInJSON(t, oom, nil)
}

// assertDumpInJSON: the JSON of the error has the values, and where the dump is.
func assertDumpInJSON(t *testing.T, oom *tracker.OutOfMemoryError, dump any) {
	t.Helper()
	text, err := json.Marshal(oom)
	require.NoError(t, err)
	var read map[string]any
	require.NoError(t, json.Unmarshal(text, &read))
	assert.Equal(t, dump, read["dump"])
	assert.EqualValues(t, alloc.GiB, read["requested_bytes"])
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

// TestDumpsOfOtherProcessesStay: sixteen ranks that dump to one directory lose nothing.
func TestDumpsOfOtherProcessesStay(t *testing.T) {
	dir := t.TempDir()
	tr, _ := open(t, tracker.Config{MaxDumps: 2})
	first, err := tr.DumpFile(dir, "test")
	require.NoError(t, err)
	own := fmt.Sprintf("-%d-", os.Getpid())
	require.Contains(t, filepath.Base(first), own)
	var others []string
	for i := range 16 {
		other := strings.Replace(first, own, fmt.Sprintf("-%d%d-", os.Getpid(), i), 1)
		require.NoError(t, os.WriteFile(other, nil, 0o644))
		others = append(others, other)
	}
	elsewhere := strings.Replace(first, own, "-node-2"+own, 1) // the same number, another machine
	require.NoError(t, os.WriteFile(elsewhere, nil, 0o644))
	var last []string
	for range 3 {
		path, err := tr.DumpFile(dir, "test")
		require.NoError(t, err)
		last = append(last, path)
	}
	assert.ElementsMatch(t, append(others, elsewhere, last[1], last[2]), files(t, dir))
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

// TestDumpsAreBoundedInBytes: what is of least use is left out first, and counted.
func TestDumpsAreBoundedInBytes(t *testing.T) {
	dir := t.TempDir()
	const live = 10_000
	full := func(limit alloc.Bytes) *tracker.MemTracker {
		tr, _ := open(t, tracker.Config{MaxDumpBytes: limit})
		for range live {
			take(t, tr, tracker.Activation, 16)
		}
		for range 20 {
			tr.Track()
		}
		return tr
	}
	path, err := full(alloc.GiB).DumpFile(dir, "test")
	require.NoError(t, err)
	whole := readDump(t, path)
	require.Zero(t, tables.Of(&whole.Snapshot.Tables).LeftOut)
	segments, events := int64(len(whole.Snapshot.Segments)), int64(len(tables.OfHistory(&whole.History).Events))
	require.NotZero(t, segments)
	info, err := os.Stat(path)
	require.NoError(t, err)
	size := alloc.Bytes(info.Size())

	one := tables.LeftOut{Events: events - 1<<12, Marks: 4}
	two := one
	two.Segments, two.SegmentBytes = segments, whole.Snapshot.Reserved
	three := two
	three.Allocations = whole.Snapshot.Live
	four := three
	four.Events, four.Marks = events-1<<8, 20
	for _, test := range []struct {
		limit alloc.Bytes
		want  tables.LeftOut
	}{
		{size * 9 / 10, one},
		{size * 6 / 10, two},
		{size / 3, three},
		{size / 20, four},
	} {
		path, err := full(test.limit).DumpFile(dir, "test")
		require.NoError(t, err)
		info, err := os.Stat(path)
		require.NoError(t, err)
		assert.LessOrEqual(t, info.Size(), int64(test.limit))
		d := readDump(t, path)
		assert.Equal(t, test.want, tables.Of(&d.Snapshot.Tables).LeftOut, "%v of %v", test.limit, size)
		assert.Equal(t, events, int64(len(tables.OfHistory(&d.History).Events))+tables.Of(&d.Snapshot.Tables).LeftOut.Events)
		assert.Equal(t, uint64(tables.Of(&d.Snapshot.Tables).LeftOut.Events), tables.OfHistory(&d.History).First)
		assert.Equal(t, 20, len(d.Marks)+int(tables.Of(&d.Snapshot.Tables).LeftOut.Marks))
		assert.Equal(t, live, len(slices.Collect(d.Snapshot.Allocations()))+int(tables.Of(&d.Snapshot.Tables).LeftOut.Allocations.Count))
		assert.Equal(t, whole.Snapshot.Live, d.Snapshot.Live, "never left out")
		assert.Equal(t, whole.Snapshot.Live, d.Snapshot.Sub(nil).Sum())
	}

	before := files(t, dir)
	_, err = full(100).DumpFile(dir, "test")
	assert.ErrorContains(t, err, "more than the 100 B that it may")
	assert.Equal(t, before, files(t, dir), "nothing of it stays")
}

// byManyLines allocates from 2^depth call stacks in turn.
//
//go:noinline
func byManyLines(depth int, path int, f func()) {
	if depth == 0 {
		f()
		return
	}
	if path&1 == 0 {
		byManyLines(depth-1, path>>1, f)
	} else {
		byManyLines(depth-1, path>>1, f)
	}
}

// TestOutOfMemoryDumpOfAMillionBuffers: it is written, whatever has to be left out.
func TestOutOfMemoryDumpOfAMillionBuffers(t *testing.T) {
	const live, sites = 1_000_000, 10_000
	tr, _ := open(t, tracker.Config{OOMDir: t.TempDir(), Device: device(t, sim.Config{Memory: alloc.TiB})})
	for site := range sites {
		byManyLines(14, site, func() {
			for range live / sites {
				if _, err := tr.AllocBytes(alloc.Bytes(1+site%7), tracker.Activation); err != nil {
					t.Fatal(err)
				}
			}
		})
	}
	_, err := tr.Alloc(alloc.Shape{1 << 20, 1 << 21}, alloc.Uint8, tracker.Input) // twice what sim may have
	var oom *tracker.OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	require.NotEmpty(t, oom.Dump)
	info, err := os.Stat(oom.Dump)
	require.NoError(t, err)
	assert.LessOrEqual(t, info.Size(), int64(16*alloc.MiB))

	d, s := readDump(t, oom.Dump), tr.LightSnapshot()
	assert.Equal(t, s.Live, d.Snapshot.Live)
	assert.Equal(t, s.Live, tables.Of(&d.Snapshot.Tables).LeftOut.Allocations)
	assert.Equal(t, s.Reserved, tables.Of(&d.Snapshot.Tables).LeftOut.SegmentBytes)
	assert.Equal(t, s.Cache, d.Snapshot.Cache)
	assert.Zero(t, tables.Of(&d.Snapshot.Tables).LeftOut.Sites)
	assert.Zero(t, tables.Of(&d.Snapshot.Tables).LeftOut.Events)
	assert.Equal(t, slices.Collect(s.CallSites()), slices.Collect(d.Snapshot.CallSites()), "with their whole stacks")

	// Smaller ones lose the sites that hold least.
	small, _ := open(t, tracker.Config{MaxDumpBytes: 256 * alloc.KiB})
	for site := range 3000 {
		byManyLines(14, site, func() {
			_, err := small.AllocBytes(alloc.Bytes(1+site), tracker.Activation)
			require.NoError(t, err)
		})
	}
	path, err := small.DumpFile(t.TempDir(), "test")
	require.NoError(t, err)
	d = readDump(t, path)
	kept := d.Snapshot.Sub(nil).Sum()
	assert.Positive(t, kept.Count)
	assert.Equal(t, 3000-kept.Count, tables.Of(&d.Snapshot.Tables).LeftOut.Sites)
	assert.Equal(t, small.LightSnapshot().Live, kept.Add(tables.Of(&d.Snapshot.Tables).LeftOut.Unsited.Live))
	smallest := mem.Tally{Count: tables.Of(&d.Snapshot.Tables).LeftOut.Sites, Bytes: alloc.Bytes(tables.Of(&d.Snapshot.Tables).LeftOut.Sites * (tables.Of(&d.Snapshot.Tables).LeftOut.Sites + 1) / 2)}
	assert.Equal(t, tables.Totals{Live: smallest, Peak: smallest, Total: smallest}, tables.Of(&d.Snapshot.Tables).LeftOut.Unsited, "those that hold least")
}

// TestDevicesMayDump: no lock is held while a device is asked.
func TestDevicesMayDump(t *testing.T) {
	dev := &late{Device: device(t, sim.Config{})}
	tr, _ := open(t, tracker.Config{Device: dev})
	dir := t.TempDir()
	dump := func() {
		_, err := tr.DumpFile(dir, "test")
		assert.NoError(t, err)
	}
	dev.meanwhile = func() {
		dump()
		tr.Track()
	}
	ends("DumpFile", dump)
	assert.Len(t, files(t, dir), 2)
}

func TestDumpWhereNoneCanBe(t *testing.T) {
	file := filepath.Join(t.TempDir(), "file")
	require.NoError(t, os.WriteFile(file, nil, 0o644))
	tr, _ := open(t, tracker.Config{OOMDir: file})
	_, err := tr.Alloc(alloc.Shape{1 << 20, 1 << 20}, alloc.Uint8, tracker.Input) // all that sim may have
	var oom *tracker.OutOfMemoryError
	require.ErrorAs(t, err, &oom)
	assert.Contains(t, err.Error(), "\n\tno dump: ")

	assert.ErrorContains(t, tr.Dump().WriteJSON(&brokenWriter{n: 100}), "write dump: ")
}

// TestDumpOfMoreThanEightEiB: a line that allocated more in all than 64 bits count can be read again.
func TestDumpOfMoreThanEightEiB(t *testing.T) {
	if strconv.IntSize == 32 {
		t.Skip("no shape has that many elements on a machine of 32 bits")
	}
	var most int64 = 1 << 62
	tr, _ := open(t, tracker.Config{})
	for range 3 {
		require.NoError(t, tr.Register(0x1000, alloc.DeviceMemory, alloc.Shape{int(most)}, alloc.Uint8, tracker.Input))
		_, err := tr.Unregister(0x1000)
		require.NoError(t, err)
	}
	var dump, text bytes.Buffer
	require.NoError(t, tr.Dump().WriteJSON(&dump))
	_, err := snapshot.ReadDump(&dump)
	require.NoError(t, err)
	require.NoError(t, tr.Snapshot().WriteJSON(&text))
	_, err = snapshot.Read(&text)
	require.NoError(t, err)
}
