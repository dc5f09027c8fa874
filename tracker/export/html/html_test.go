package html_test

import (
	"bytes"
	"encoding/json"
	"io"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
)

func write(t *testing.T, r export.Record) string {
	t.Helper()
	var b bytes.Buffer
	require.NoError(t, html.Write(&b, r))
	return b.String()
}

func record(t *testing.T) export.Record {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	return export.Take(tr)
}

func TestPageHoldsTheNumbers(t *testing.T) {
	r := record(t)
	r.Snapshot.Origin = tracker.Origin{Program: "train", PID: 7, Rank: new(3), WorldSize: 8, Host: "node-1"}
	page := write(t, r)
	for _, want := range []string{
		"Simulated GPU [0]", "train[7], rank 3 of 8 on node-1", `id="live">` + r.Snapshot.Live.Bytes.String(), "(64, 3, 3, 3)", `id="mark-4"`,
		"Permission is hereby granted", // the chart's licence
	} {
		assert.Contains(t, page, want)
	}
	assert.NotRegexp(t, regexp.MustCompile(`(src|href)=`), page, "it must need no network")
}

func TestPageLeavesOutWhatIsUnknown(t *testing.T) {
	r := record(t)
	assert.Contains(t, write(t, r), `id="untracked"`)
	r.Snapshot.DriverUsed = 0 // less than the cache holds
	page := write(t, r)
	assert.Contains(t, page, `id="driver">0 B`)
	assert.NotContains(t, page, `id="untracked"`)
}

func TestPageEscapesWhatItShows(t *testing.T) {
	r := record(t)
	r.Snapshot.Origin.Host = "</script><script>alert(1)</script>"
	assert.NotContains(t, write(t, r), r.Snapshot.Origin.Host)
}

func TestPageOfNothing(t *testing.T) {
	page := write(t, export.Take(exporttest.New(t, tracker.Config{})))
	assert.Contains(t, page, "No live buffers.")
	assert.Contains(t, page, "the program did not call Track")
}

// chart is the page's data over time.
type chart struct {
	Seconds   []float64
	Allocated []*int64
	Reserved  []*int64
	Marks     []struct{ Mark int }
}

func charted(t *testing.T, page string) (c chart) {
	_, data, ok := strings.Cut(page, "const chartData = ")
	require.True(t, ok)
	require.NoError(t, json.NewDecoder(strings.NewReader(data)).Decode(&c))
	return c
}

// TestReservedStandsWhereItIsKnown: of a tracker without segments in its history it
// is known at marks and at the end, and nowhere else.
func TestReservedStandsWhereItIsKnown(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{NoCache: true})
	for range 3 {
		b, err := tr.AllocBytes(alloc.MiB, tracker.Input)
		require.NoError(t, err)
		tr.Track()
		require.NoError(t, b.Free())
	}
	var reserved []int64
	for _, b := range charted(t, write(t, export.Take(tr))).Reserved {
		if b != nil {
			reserved = append(reserved, *b)
		}
	}
	assert.Equal(t, []int64{1 << 20, 1 << 20, 1 << 20, 0}, reserved)
}

// TestClockThatJumps: the chart goes forward, and stays bounded.
func TestClockThatJumps(t *testing.T) {
	now, step := time.Date(2026, 11, 21, 3, 30, 4, 0, time.UTC), time.Hour
	tr := exporttest.New(t, tracker.Config{Clock: func() time.Time {
		step = -step
		return now.Add(step)
	}})
	for range 5000 {
		b, err := tr.AllocBytes(alloc.MiB, tracker.Input)
		require.NoError(t, err)
		require.NoError(t, b.Free())
	}
	seconds := charted(t, write(t, export.Take(tr))).Seconds
	assert.True(t, slices.IsSorted(seconds))
	assert.Less(t, len(seconds), 2100)
}

func TestPageOfManyMarks(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{MaxMarks: 1000})
	for range 1000 {
		tr.Track()
	}
	page := write(t, export.Take(tr))
	assert.Equal(t, 200, strings.Count(page, "<article"))
	assert.Contains(t, page, `id="mark-1000"`)
	assert.Contains(t, page, "The tables of 800 earlier marks are left out.")
	tables := make(map[bool]int)
	for _, m := range charted(t, page).Marks {
		tables[m.Mark > 0]++
		require.True(t, m.Mark == 0 || m.Mark > 800, "no line leads to a table that is not there")
	}
	assert.Equal(t, map[bool]int{true: 200, false: 300}, tables)
}

// TestPageSaysWhyThereAreNoMarks: a file can lack them although there were some.
func TestPageSaysWhyThereAreNoMarks(t *testing.T) {
	r := record(t)
	r.Marks = nil
	assert.Contains(t, write(t, r), "The record has the times of marks only, not their tables.")
	r.History = nil
	assert.Contains(t, write(t, r), "A snapshot has no marks and no history: a dump does.")
	assert.NotContains(t, write(t, r), "Drag to zoom")
	assert.ErrorIs(t, html.Write(io.Discard, export.Record{}), export.ErrNoSnapshot)
}

func TestPageIsBounded(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{NoCache: true})
	for i := range 3000 {
		_, err := tr.AllocBytes(alloc.Bytes(i+1), tracker.Input)
		require.NoError(t, err)
		tr.Track()
	}
	page := write(t, export.Take(tr))
	assert.Contains(t, page, "and smaller groups: 2500 buffers")
	assert.Less(t, len(page), 700<<10)
}
