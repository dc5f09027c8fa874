package html_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"regexp"
	"testing"

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

func TestPageEscapesWhatItShows(t *testing.T) {
	r := record(t)
	r.Snapshot.Origin.Host = "</script><script>alert(1)</script>"
	assert.NotContains(t, write(t, r), r.Snapshot.Origin.Host)
}

func TestPageOfNothing(t *testing.T) {
	r := export.Take(exporttest.New(t, tracker.Config{}))
	r.History = nil
	page := write(t, r)
	assert.Contains(t, page, "No live buffers.")
	assert.Contains(t, page, "the program did not call Track")
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
