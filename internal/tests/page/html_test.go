package page_test

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
)

// report returns a record and its page.
func report(t *testing.T) (export.Record, []byte) {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	r := export.Take(tr)
	var b bytes.Buffer
	require.NoError(t, html.Write(&b, r))
	return r, b.Bytes()
}

func TestReport(t *testing.T) {
	r, page := report(t)
	path := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, os.WriteFile(path, page, 0o644))
	ctx := open(t, "file://"+path)

	t.Run("draws", func(t *testing.T) {
		assert.Positive(t, evaluate[int](t, ctx, `document.querySelectorAll("#chart canvas").length`))
		assert.Positive(t, evaluate[int](t, ctx, `document.querySelectorAll("#flame div[data-name='exporttest.loadBatch']").length`))
		assert.Equal(t, r.Snapshot.Peak.Bytes.String(), evaluate[string](t, ctx, `document.getElementById("peak").textContent`))
		assert.Equal(t, 3, evaluate[int](t, ctx, `document.querySelectorAll("#live-table tbody tr").length`))
		assert.InDelta(t, float64(r.Snapshot.Allocated), evaluate[float64](t, ctx, `chartData.allocated.at(-1)`), 0)
		assert.Equal(t, float64(r.Snapshot.Live.Bytes), evaluate[float64](t, ctx, `flameData.bytes[0]`))
	})
	t.Run("shows a mark that is clicked", func(t *testing.T) {
		assert.True(t, evaluate[bool](t, ctx, `document.getElementById("mark-2").hidden`))
		click(t, ctx, `[data-mark="2"]`)
		assert.False(t, evaluate[bool](t, ctx, `document.getElementById("mark-2").hidden`))
		assert.True(t, evaluate[bool](t, ctx, `document.getElementById("mark-4").hidden`))
		text := evaluate[string](t, ctx, `document.getElementById("mark-2").innerText`)
		assert.Contains(t, text, "(64, 3, 3, 3)")
		assert.Contains(t, text, "13.5 KiB")
	})
	t.Run("shows a mark whose line is clicked", func(t *testing.T) {
		at := evaluate[[]float64](t, ctx, `(() => {
			const over = document.querySelector(".u-over");
			over.scrollIntoView({block: "center"}); // which also ends a scroll that is under way
			const box = over.getBoundingClientRect(), mark = chartData.marks.find(m => m.mark === 3);
			return [box.left + box.width * mark.seconds / chartData.seconds.at(-1), box.top + 20];
		})()`)
		mouse(t, ctx, at[0], at[1], "mousedown", "mouseup", "click")
		assert.False(t, evaluate[bool](t, ctx, `document.getElementById("mark-3").hidden`))
	})
	t.Run("filters the live table", func(t *testing.T) {
		evaluate[bool](t, ctx, `(() => { const f = document.getElementById("filter"); f.value = "parameter"; f.dispatchEvent(new Event("input")); return true; })()`)
		assert.Equal(t, 1, evaluate[int](t, ctx, `[...document.querySelectorAll("#live-table tbody tr")].filter(r => !r.hidden).length`))
	})
	t.Run("looks closer at a frame", func(t *testing.T) {
		click(t, ctx, `#flame div[data-name='exporttest.loadWeights']`)
		width := `document.querySelector("#flame div[data-name='exporttest.loadWeights']").clientWidth / document.getElementById("flame").clientWidth`
		waitFor(t, ctx, width+` > 0.97`)
	})
	t.Run("fits a narrow window", func(t *testing.T) {
		require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(360, 700)))
		waitFor(t, ctx, `document.documentElement.scrollWidth <= 360`)
	})
}

// click clicks an element wherever it is: the page may still be scrolling, and
// a mouse would miss.
func click(t *testing.T, ctx context.Context, selector string) {
	t.Helper()
	evaluate[bool](t, ctx, fmt.Sprintf(`(() => { document.querySelector(%q).click(); return true; })()`, selector))
}

func TestReportNeedsNoNetwork(t *testing.T) {
	_, page := report(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		_, _ = w.Write(page)
	}))
	defer server.Close()
	ctx := open(t, server.URL)
	loaded := evaluate[[]string](t, ctx, `performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.includes("favicon"))`)
	assert.Empty(t, loaded)
}
