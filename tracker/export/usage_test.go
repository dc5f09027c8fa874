package export_test

import (
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func TestFromSnapshotAddsUp(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	for name, s := range map[string]*snapshot.Snapshot{"whole": tr.Snapshot(), "light": tr.LightSnapshot()} {
		t.Run(name, func(t *testing.T) {
			var live, peak, total mem.Tally
			for _, r := range export.FromSnapshot(s).Rows {
				live, peak, total = live.Add(r.Live), peak.Add(r.Peak), total.Add(r.Total)
			}
			assert.Equal(t, s.Live, live)
			assert.Equal(t, s.Peak, peak)
			assert.Equal(t, s.Total, total)
		})
	}
}

func TestTheOriginIsTheTrackers(t *testing.T) {
	origin := snapshot.Origin{Host: "node-1", PID: 7, Program: "train", Rank: new(0), WorldSize: 8}
	r := exporttest.New(t, tracker.Config{Origin: origin}).Dump()
	assert.Equal(t, origin, r.Snapshot.Origin)
	assert.Equal(t, origin, export.FromSnapshot(r.Snapshot).Origin)
}

// TestTrackerAloneIsLight holds the promise of the package comment.
func TestTrackerAloneIsLight(t *testing.T) {
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("go list needs the go command in PATH")
	}
	out, err := exec.Command(tool, "list", "-deps", "github.com/gpumemtrack/gpumemtrack/tracker").Output()
	require.NoError(t, err)
	for path := range strings.FieldsSeq(string(out)) {
		for _, heavy := range []string{"google/pprof", "prometheus", "/template", "net/http", "tracker/export", "tracker/live"} {
			assert.NotContains(t, path, heavy)
		}
	}
}

// Buffers one by one add up to what their call stacks hold, of each property.
func TestFromBuffersAddsUp(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	s := tr.Snapshot()
	its, err := export.FromBuffers(s, 0)
	require.NoError(t, err)
	for _, by := range []string{"line", "kind", "shape", "section", "stream", "memory", "size"} {
		lines, _ := export.Compare([]*export.Usage{its}, []*export.Usage{export.FromSnapshot(s)}, by, "live")
		assert.NotEmpty(t, lines)
		for _, l := range lines {
			assert.True(t, l.Change().IsZero(), "%s: %+v", by, l)
		}
	}
	assert.Equal(t, len(export.FromSnapshot(s).Host) > 0, len(its.Host) > 0)

	_, err = export.FromBuffers(tr.LightSnapshot(), 0)
	assert.ErrorContains(t, err, "does not list all of its live buffers one by one")
}

func TestFromBuffersByAge(t *testing.T) {
	start := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)
	now := start
	tr := exporttest.New(t, tracker.Config{Clock: func() time.Time { return now }})
	take := func(after time.Duration, size alloc.Bytes) {
		now = start.Add(after)
		_, err := tr.AllocBytes(size, tracker.Input)
		require.NoError(t, err)
	}
	take(time.Second, alloc.KiB)
	take(10*time.Second, 2*alloc.KiB)
	now = start.Add(20 * time.Second)
	s := tr.Snapshot()
	for age, want := range map[time.Duration]alloc.Bytes{0: 3 * alloc.KiB, 9 * time.Second: 3 * alloc.KiB, 10 * time.Second: alloc.KiB, 19 * time.Second: 0} {
		u, err := export.FromBuffers(s, age)
		require.NoError(t, err)
		var live mem.Tally
		for _, r := range u.Rows {
			live = live.Add(r.Live)
		}
		assert.Equal(t, want, live.Bytes, age)
	}
}

// A buffer from before the history has its beginning for a time: it is at least as old as that.
func TestAgesBeyondTheHistory(t *testing.T) {
	now := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC)
	tr := exporttest.New(t, tracker.Config{Clock: func() time.Time { return now }})
	_, err := tr.AllocBytes(alloc.KiB, tracker.Input)
	require.NoError(t, err)
	now = now.Add(time.Minute)
	_, err = export.FromBuffers(tr.Snapshot(), time.Hour)
	assert.EqualError(t, err, "its history goes back for 1m0s, so it does not know which buffers are older than 1h0m0s")
	u, err := export.FromBuffers(tr.Snapshot(), time.Second)
	require.NoError(t, err)
	assert.Len(t, u.Rows, 1)

	f, err := files.ReadFile("torch/testdata/pytorch4.pickle")
	require.NoError(t, err)
	_, err = export.FromBuffers(f.Dump.Snapshot, time.Hour)
	assert.ErrorContains(t, err, "its buffers have no times")
}

func TestSizes(t *testing.T) {
	var u export.Usage
	for size, count := range map[alloc.Bytes]int64{0: 1, 1: 2, 1023: 1, 1024: 3, 1 << 62: 1} {
		u.Rows = append(u.Rows, export.Row{Totals: snapshot.Totals{Live: mem.Tally{Count: count, Bytes: size * alloc.Bytes(count)}}})
	}
	u.Rows = append(u.Rows, export.Row{Totals: snapshot.Totals{Live: mem.Tally{Count: -1, Bytes: -4}}})
	lines, _ := export.Compare(nil, []*export.Usage{&u}, "size", "live")
	var names []string
	for _, l := range lines {
		names = append(names, l.Key)
	}
	assert.Equal(t, []string{"4.0 EiB and more", "1.0 KiB to 2.0 KiB", "512 B to 1.0 KiB", "1 B to 2 B", "0 B", "unknown"}, names)
}
