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
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/chromedp"
	"github.com/chromedp/chromedp/kb"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/html"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// report returns a dump and its page.
func report(t *testing.T) (*snapshot.Dump, []byte) {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	r := tr.Dump()
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
		assert.Positive(t, evaluate[int](t, ctx, `document.querySelectorAll("#flame [data-name='exporttest.loadBatch']").length`))
		assert.Equal(t, r.Snapshot.Peak.Bytes.String(), evaluate[string](t, ctx, `document.getElementById("peak").textContent`))
		assert.Equal(t, 3, evaluate[int](t, ctx, `document.querySelectorAll("#live-table tbody tr").length`))
		assert.InDelta(t, float64(r.Snapshot.Allocated), evaluate[float64](t, ctx, `chartData.allocated.at(-1)`), 0)
		assert.Equal(t, float64(r.Snapshot.Live.Bytes), evaluate[float64](t, ctx, `flameData.bytes`))
		assert.Equal(t, len(r.Snapshot.Segments), evaluate[int](t, ctx, `document.querySelectorAll("#segments tbody tr").length`))
	})
	t.Run("prints sizes as Go does", func(t *testing.T) {
		for _, n := range []alloc.Bytes{0, 1, 1023, 1024, 33_024, 1536, 1_048_524, 1_048_525, 5 << 20, 5505024, -33_024, 1<<40 - 1, 3 << 50} {
			assert.Equal(t, n.String(), evaluate[string](t, ctx, fmt.Sprintf(`size(%d)`, int64(n))))
		}
	})
	seq := `+document.getElementById("mark").dataset.seq`
	t.Run("shows a mark that is clicked", func(t *testing.T) {
		assert.Equal(t, 4, evaluate[int](t, ctx, seq))
		click(t, ctx, `[data-mark="2"]`)
		assert.Equal(t, 2, evaluate[int](t, ctx, seq))
		text := evaluate[string](t, ctx, `document.getElementById("mark").innerText`)
		assert.Contains(t, text, "(64, 3, 3, 3)")
		assert.Contains(t, text, "13.5 KiB")
		assert.Contains(t, text, "grew by 13.5 KiB")
	})
	at := func(moment string) (x, y float64) {
		place := evaluate[[]float64](t, ctx, `(() => {
			const over = document.querySelector(".u-over");
			over.scrollIntoView({block: "center"}); // which also ends a scroll that is under way
			const box = over.getBoundingClientRect(), moment = `+moment+`;
			return [box.left + box.width * moment.seconds / chartData.seconds.at(-1), box.top + 20];
		})()`)
		return place[0], place[1]
	}
	t.Run("shows a mark whose line is clicked", func(t *testing.T) {
		x, y := at(`chartData.marks.find(m => m.mark === 3)`)
		mouse(t, ctx, x, y, "mousedown", "mouseup", "click")
		assert.Equal(t, 3, evaluate[int](t, ctx, seq))
	})
	moment := func() string { return evaluate[string](t, ctx, `document.getElementById("moment-name").textContent`) }
	table := func() string {
		return evaluate[string](t, ctx, `document.querySelector("#live-table tbody").innerText`)
	}
	t.Run("shows the peak when it is clicked", func(t *testing.T) {
		x, y := at(`chartData.peak`)
		mouse(t, ctx, x, y, "mousedown", "mouseup", "click")
		assert.Equal(t, "the peak", moment())
		assert.Contains(t, table(), "Activation")
		assert.Equal(t, float64(r.Snapshot.Peak.Bytes), evaluate[float64](t, ctx, `flameData.bytes`))
		assert.Contains(t, evaluate[string](t, ctx, `document.querySelector("#chart .legend").innerText`), "Activation "+r.Snapshot.Peak.Bytes.String()[:2], "the legend is of the moment")
		assert.Contains(t, evaluate[string](t, ctx, `document.getElementById("kinds-legend").innerText`), "Activation")
	})
	t.Run("shows another moment when the mark is moved", func(t *testing.T) {
		x, y := at(`chartData.marks.find(m => m.mark === 2)`)
		evaluate[bool](t, ctx, fmt.Sprintf(`(() => {
			const mark = document.querySelector(".mark");
			mark.setPointerCapture = mark.hasPointerCapture = () => true; // a pointer of the browser's own would be needed
			for (const [type, x] of [["pointerdown", mark.getBoundingClientRect().left + 7], ["pointermove", %g], ["pointerup", %g]])
				mark.dispatchEvent(new PointerEvent(type, {clientX: x, clientY: %g, bubbles: true}));
			return true;
		})()`, x, x, y))
		assert.Contains(t, moment(), "event ")
		assert.NotContains(t, table(), "Activation")
		assert.Contains(t, table(), "Parameter")
		assert.Equal(t, "13.5 KiB", evaluate[string](t, ctx, `document.getElementById("live").textContent`))
		assert.True(t, evaluate[bool](t, ctx, `Math.abs(document.querySelector(".mark").getBoundingClientRect().left + 7 - `+fmt.Sprint(x)+`) < 30`))
	})
	t.Run("steps through the moments with the keyboard", func(t *testing.T) {
		evaluate[bool](t, ctx, `(document.getElementById("moment").focus(), true)`)
		before := evaluate[int](t, ctx, `+document.getElementById("moment").value`)
		require.NoError(t, chromedp.Do(ctx, chromedp.KeyEvent(kb.ArrowRight)))
		waitFor(t, ctx, fmt.Sprintf(`+document.getElementById("moment").value === %d && document.querySelector("[data-moment][aria-pressed=true]") === null`, before+1))
		require.NoError(t, chromedp.Do(ctx, chromedp.KeyEvent(kb.End)))
		waitFor(t, ctx, `document.getElementById("moment-name").textContent === "the end"`)
		assert.NotContains(t, table(), "Activation")
	})
	t.Run("shows of every moment what there was", func(t *testing.T) {
		for i := range evaluate[int](t, ctx, `page.moments.length`) {
			sums := evaluate[[]float64](t, ctx, fmt.Sprintf(`(() => {
				const range = document.getElementById("moment"), m = page.moments[%d];
				range.value = %d;
				range.dispatchEvent(new Event("input"));
				return new Promise(done => requestAnimationFrame(() => done([m.live, flameData.bytes,
					page.groups.reduce((sum, g) => sum + g.bytes, 0), page.moments[%d].kinds.reduce((sum, b) => sum + b, 0),
					chartData.kinds.reduce((sum, l) => sum + l.bytes[m.at], 0)])));
			})()`, i, i, i))
			for _, sum := range sums {
				assert.Equal(t, sums[0], sum, "moment %d: %v", i, sums)
			}
		}
	})
	t.Run("stacks by kind or by line of code", func(t *testing.T) {
		legend := func() string { return evaluate[string](t, ctx, `document.querySelector("#chart .legend").innerText`) }
		assert.Contains(t, legend(), "Parameter")
		click(t, ctx, `[data-layers="lines"]`)
		assert.NotContains(t, legend(), "Parameter")
		assert.Regexp(t, `:\d+ `, legend())
		click(t, ctx, `[data-layers="kinds"]`)
		click(t, ctx, `#chart .legend li:last-child button`)
		assert.Equal(t, "false", evaluate[string](t, ctx, `document.querySelector("#chart .legend li:last-child button").getAttribute("aria-pressed")`))
	})
	t.Run("filters and sorts the table", func(t *testing.T) {
		evaluate[bool](t, ctx, `(() => { const f = document.getElementById("filter"); f.value = "parameter"; f.dispatchEvent(new Event("input")); return true; })()`)
		assert.Equal(t, 1, evaluate[int](t, ctx, `[...document.querySelectorAll("#live-table tbody tr")].filter(r => !r.hidden).length`))
		evaluate[bool](t, ctx, `(() => { const f = document.getElementById("filter"); f.value = ""; f.dispatchEvent(new Event("input")); return true; })()`)
		click(t, ctx, `[data-key="count"]`)
		assert.Contains(t, evaluate[string](t, ctx, `document.querySelector("#live-table tbody tr").innerText`), "Parameter")
		assert.Equal(t, "descending", evaluate[string](t, ctx, `document.querySelector("[data-key=count]").parentNode.ariaSort`))
	})
	t.Run("looks closer at a frame", func(t *testing.T) {
		click(t, ctx, `#flame [data-name='exporttest.loadWeights']`)
		width := `document.querySelector("#flame [data-name='exporttest.loadWeights']").clientWidth / document.getElementById("flame").clientWidth`
		waitFor(t, ctx, width+` > 0.97`)
	})
	t.Run("works with the keyboard", func(t *testing.T) {
		key := func(name string) {
			evaluate[bool](t, ctx, fmt.Sprintf(`(() => { document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: %q, bubbles: true})); return true; })()`, name))
		}
		focused := func() string { return evaluate[string](t, ctx, `document.activeElement.dataset.name`) }
		assert.Equal(t, 1, evaluate[int](t, ctx, `document.querySelectorAll("#flame [tabindex='0']").length`), "one stop for the Tab key")
		evaluate[bool](t, ctx, `(document.querySelector("#flame [tabindex='0']").focus(), true)`)
		assert.Equal(t, "exporttest.loadWeights", focused())
		key("ArrowUp")
		above := focused()
		assert.NotEqual(t, "exporttest.loadWeights", above)
		key("ArrowDown")
		assert.Equal(t, "exporttest.loadWeights", focused())
		key("Escape")
		assert.Equal(t, above, focused())
		for _, what := range []string{"#live-table th button", "#chart .legend button", "#chips button", "[data-layers]", "[data-measure]", "[data-moment]", "#moment"} {
			assert.True(t, evaluate[bool](t, ctx, fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.focus(); return document.activeElement === e; })()`, what)), what)
		}
	})
	t.Run("fits a narrow window", func(t *testing.T) {
		require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(360, 700)))
		waitFor(t, ctx, `document.documentElement.scrollWidth <= 360`)
		for _, cell := range []string{"Shape", "Type", "Allocated at"} {
			assert.LessOrEqual(t, evaluate[float64](t, ctx, fmt.Sprintf(`document.querySelector("#live-table td[data-name='%s']").getBoundingClientRect().right`, cell)), 360.0, cell)
		}
	})
}

// contrast returns the lowest contrast of a text with what is behind it: WCAG 2.2, 1.4.3 asks
// for 4.5.
const contrast = `(() => {
	const numbers = c => c.match(/[\d.]+/g).map(Number);
	const light = ([r, g, b]) => [r, g, b].map(v => (v /= 255) <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4)
		.reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
	const behind = e => {
		for (; e; e = e.parentElement) {
			const c = numbers(getComputedStyle(e).backgroundColor);
			if (c.length < 4 || c[3] > 0) return c;
		}
		return [255, 255, 255];
	};
	let worst = {ratio: 99, text: ""};
	const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
	while (walker.nextNode()) {
		const e = walker.currentNode.parentElement, text = walker.currentNode.textContent.trim();
		if (!text || !e.checkVisibility() || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(e.tagName)) continue;
		const [a, b] = [light(numbers(getComputedStyle(e).color)), light(behind(e))].sort((x, y) => y - x);
		const ratio = (a + 0.05) / (b + 0.05);
		if (ratio < worst.ratio) worst = {ratio, text};
	}
	return worst;
})()`

// TestContrast of all texts of both pages, light and dark.
func TestContrast(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{Clock: time.Now, OOMDir: t.TempDir()})
	exporttest.Train(t, tr)
	server := httptest.NewServer(live.Handler(tr))
	t.Cleanup(server.Close)
	ctx := open(t, "about:blank")
	for _, page := range []string{"/", "/report"} {
		for _, scheme := range []string{"light", "dark"} {
			require.NoError(t, chromedp.Do(ctx, prefer(scheme), chromedp.Navigate(server.URL+page)))
			if page == "/" {
				waitFor(t, ctx, `document.querySelectorAll("#marks tr[data-mark]").length === 4`)
			}
			worst := evaluate[struct {
				Ratio float64 `json:"ratio"`
				Text  string  `json:"text"`
			}](t, ctx, contrast)
			assert.GreaterOrEqual(t, worst.Ratio, 4.5, "%s %s: %s", scheme, page, worst.Text)
		}
	}
}

// prefer has the browser prefer light or dark pages.
func prefer(scheme string) chromedp.Action[chromedp.Void] {
	return chromedp.Func(func(ctx context.Context, target *chromedp.Target) error {
		_, err := cdp.Call(ctx, target, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
			Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
		})
		return err
	})
}

// TestLargeReport: of a program with many buffers, stacks and marks the page stays small.
func TestLargeReport(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{})
	for i := range 20_000 {
		_, err := tr.Alloc(alloc.Shape{1 + i%5000}, alloc.Float32, mem.Kinds()[i%7])
		require.NoError(t, err)
		if i%100 == 0 {
			tr.Track()
		}
	}
	var b bytes.Buffer
	require.NoError(t, html.Write(&b, tr.Dump()))
	assert.LessOrEqual(t, b.Len(), 2<<20)
	path := filepath.Join(t.TempDir(), "report.html")
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
	ctx := open(t, "file://"+path)
	nodes := evaluate[int](t, ctx, `(() => { const w = document.createTreeWalker(document, NodeFilter.SHOW_ALL); let n = 0; while (w.nextNode()) n++; return n; })()`)
	assert.LessOrEqual(t, nodes, 20_000)
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

// TestReportOfSeveralDevices chooses the second device, and the first again.
func TestReportOfSeveralDevices(t *testing.T) {
	r, _ := report(t)
	second := exporttest.New(t, tracker.Config{})
	_, err := second.AllocBytes(3*alloc.MiB, tracker.Gradient)
	require.NoError(t, err)
	r.Others = []*snapshot.Dump{second.Dump()}
	r.Others[0].Snapshot.Ordinal = 1
	path := filepath.Join(t.TempDir(), "report.html")
	var b bytes.Buffer
	require.NoError(t, html.Write(&b, r))
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o644))
	ctx := open(t, "file://"+path)
	choose := func(i int) {
		evaluate[bool](t, ctx, fmt.Sprintf(`(() => { const s = document.getElementById("device"); s.selectedIndex = %d; s.dispatchEvent(new Event("change")); return true; })()`, i))
	}
	for _, i := range []int{0, 1, 0} {
		choose(i)
		of := append([]*snapshot.Dump{r}, r.Others...)[i].Snapshot
		assert.Equal(t, of.Live.Bytes.String(), evaluate[string](t, ctx, `document.getElementById("live").textContent`))
		assert.Equal(t, float64(of.Live.Bytes), evaluate[float64](t, ctx, `flameData.bytes`))
		assert.Equal(t, i == 1, evaluate[bool](t, ctx, `document.querySelector("#live-table tbody").innerText.includes("Gradient")`))
		assert.Equal(t, 1, evaluate[int](t, ctx, `document.querySelectorAll("main #flame").length`))
		assert.Positive(t, evaluate[int](t, ctx, `document.querySelectorAll("#chart canvas, #flame button").length`))
		require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(800, int64(700+i))))
		assert.Positive(t, evaluate[int](t, ctx, `document.querySelectorAll("#flame button").length`))
	}
}
