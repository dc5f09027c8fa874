package html_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
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

func TestPageInABrowser(t *testing.T) {
	r := record(t)
	path := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, os.WriteFile(path, []byte(write(t, r)), 0o644))
	ctx := exporttest.Browser(t, "file://"+path)

	t.Run("draws", func(t *testing.T) {
		assert.Positive(t, exporttest.Evaluate[int](t, ctx, `document.querySelectorAll("#chart canvas").length`))
		assert.Positive(t, exporttest.Evaluate[int](t, ctx, `document.querySelectorAll("#flame div[data-name='exporttest.loadBatch']").length`))
		assert.Equal(t, r.Snapshot.Peak.Bytes.String(), exporttest.Evaluate[string](t, ctx, `document.getElementById("peak").textContent`))
		assert.Equal(t, 3, exporttest.Evaluate[int](t, ctx, `document.querySelectorAll("#live-table tbody tr").length`))
		assert.InDelta(t, float64(r.Snapshot.Allocated), exporttest.Evaluate[float64](t, ctx, `chartData.allocated.at(-1)`), 0)
		assert.Equal(t, float64(r.Snapshot.Live.Bytes), exporttest.Evaluate[float64](t, ctx, `flameData.bytes[0]`))
	})
	t.Run("shows a mark that is clicked", func(t *testing.T) {
		assert.True(t, exporttest.Evaluate[bool](t, ctx, `document.getElementById("mark-2").hidden`))
		click(t, ctx, `[data-mark="2"]`)
		assert.False(t, exporttest.Evaluate[bool](t, ctx, `document.getElementById("mark-2").hidden`))
		assert.True(t, exporttest.Evaluate[bool](t, ctx, `document.getElementById("mark-4").hidden`))
		text := exporttest.Evaluate[string](t, ctx, `document.getElementById("mark-2").innerText`)
		assert.Contains(t, text, "(64, 3, 3, 3)")
		assert.Contains(t, text, "13.5 KiB")
	})
	t.Run("shows a mark whose line is clicked", func(t *testing.T) {
		at := exporttest.Evaluate[[]float64](t, ctx, `(() => {
			const over = document.querySelector(".u-over");
			over.scrollIntoView({block: "center"}); // which also ends a scroll that is under way
			const box = over.getBoundingClientRect(), mark = chartData.marks.find(m => m.mark === 3);
			return [box.left + box.width * mark.seconds / chartData.seconds.at(-1), box.top + 20];
		})()`)
		exporttest.Mouse(t, ctx, at[0], at[1], "mousedown", "mouseup", "click")
		assert.False(t, exporttest.Evaluate[bool](t, ctx, `document.getElementById("mark-3").hidden`))
	})
	t.Run("filters the live table", func(t *testing.T) {
		exporttest.Evaluate[bool](t, ctx, `(() => { const f = document.getElementById("filter"); f.value = "parameter"; f.dispatchEvent(new Event("input")); return true; })()`)
		assert.Equal(t, 1, exporttest.Evaluate[int](t, ctx, `[...document.querySelectorAll("#live-table tbody tr")].filter(r => !r.hidden).length`))
	})
	t.Run("looks closer at a frame", func(t *testing.T) {
		click(t, ctx, `#flame div[data-name='exporttest.loadWeights']`)
		width := `document.querySelector("#flame div[data-name='exporttest.loadWeights']").clientWidth / document.getElementById("flame").clientWidth`
		exporttest.WaitFor(t, ctx, width+` > 0.97`)
	})
	t.Run("fits a narrow window", func(t *testing.T) {
		require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(360, 700)))
		exporttest.WaitFor(t, ctx, `document.documentElement.scrollWidth <= 360`)
	})
}

// click clicks an element wherever it is: the page may still be scrolling, and
// a mouse would miss.
func click(t *testing.T, ctx context.Context, selector string) {
	t.Helper()
	exporttest.Evaluate[bool](t, ctx, fmt.Sprintf(`(() => { document.querySelector(%q).click(); return true; })()`, selector))
}

func TestPageNeedsNoNetwork(t *testing.T) {
	page := write(t, record(t))
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, page)
	}))
	defer server.Close()
	ctx := exporttest.Browser(t, server.URL)
	loaded := exporttest.Evaluate[[]string](t, ctx, `performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.includes("favicon"))`)
	assert.Empty(t, loaded)
}
