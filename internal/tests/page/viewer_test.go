package page_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	neturl "net/url"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/files"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/viewer"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// timeline returns the history of a program with a thousand allocations, most of them small.
func timeline(t *testing.T) *snapshot.Dump {
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	for i := range 1000 {
		b, err := tr.Alloc(alloc.Shape{1 + i%7*40}, alloc.Float32, mem.Kinds()[i%3])
		require.NoError(t, err)
		if i%2 == 0 {
			require.NoError(t, b.Free())
		}
	}
	return tr.Dump()
}

// ready is a source that is read at once.
func ready(name string, d *snapshot.Dump) viewer.Source {
	return viewer.Source{Name: name, Size: 1 << 20, Read: func(context.Context, *viewer.Progress) (*files.File, error) {
		return &files.File{Format: "dump", Dump: d}, nil
	}}
}

// serveFiles serves sources, and returns the address of the page.
func serveFiles(t *testing.T, sources ...viewer.Source) string {
	v := viewer.New(viewer.Config{})
	for _, s := range sources {
		v.Add(s)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- v.Run(ctx) }()
	server := httptest.NewServer(v)
	t.Cleanup(func() {
		cancel()
		<-done
		server.CloseClientConnections() // the page waits for changes of the state
		server.Close()
	})
	return server.URL + "/?token=" + v.Token()
}

// drawn waits until all of the timeline's view is on the screen.
func drawn(t *testing.T, ctx context.Context) {
	t.Helper()
	waitFor(t, ctx, `document.documentElement.dataset.state === "ready" && document.querySelector("#timeline canvas").dataset.whole === "true"`)
}

// inAddress waits until the state in the address has a value.
func inAddress(t *testing.T, ctx context.Context, name, value string) {
	t.Helper()
	waitFor(t, ctx, fmt.Sprintf(`new URLSearchParams(location.hash.slice(1)).get(%q) === %s`, name, value))
}

// stateOf returns what the address has.
func stateOf(t *testing.T, ctx context.Context, name string) string {
	t.Helper()
	return evaluate[string](t, ctx, fmt.Sprintf(`new URLSearchParams(location.hash.slice(1)).get(%q) ?? ""`, name))
}

// press gives a key to an element.
func press(t *testing.T, ctx context.Context, selector, key string, shift bool) {
	t.Helper()
	evaluate[bool](t, ctx, fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.focus(); e.dispatchEvent(new KeyboardEvent("keydown", {key: %q, shiftKey: %t, bubbles: true, cancelable: true})); return true; })()`, selector, key, shift))
}

// pointer gives pointer events to the timeline, at parts of its width and height.
func pointer(t *testing.T, ctx context.Context, x, y float64, events ...string) {
	t.Helper()
	list, err := json.Marshal(events)
	require.NoError(t, err)
	evaluate[bool](t, ctx, fmt.Sprintf(`(() => {
		const canvas = document.querySelector("#timeline canvas"), box = canvas.getBoundingClientRect();
		for (const type of %s) canvas.dispatchEvent(new PointerEvent(type, {clientX: box.left + 70 + (box.width - 70) * %g, clientY: box.top + (box.height - 24) * %g, bubbles: true, pointerId: 1, pointerType: "mouse"}));
		return true;
	})()`, list, x, y))
}

// selectedEverywhere waits until all views have a selection: the details, the segments, the flame graph and the table.
func selectedEverywhere(t *testing.T, ctx context.Context, id string) {
	t.Helper()
	inAddress(t, ctx, "sel", fmt.Sprintf("%q", id))
	waitFor(t, ctx, `document.querySelectorAll("#details .stack li").length > 0`)
	waitFor(t, ctx, fmt.Sprintf(`document.getElementById("segments-card").dataset.selected === %q`, id))
	waitFor(t, ctx, `+document.getElementById("flame-card").dataset.path > 1`)
	waitFor(t, ctx, fmt.Sprintf(`document.querySelector("#table-card tr.chosen")?.dataset.key === %q`, id))
	waitFor(t, ctx, `document.querySelectorAll("#chosen .chosen-chip").length === 1`)
}

func TestTimeline(t *testing.T) {
	d := timeline(t)
	url := serveFiles(t, ready("run.json", d))
	ctx := open(t, url)
	drawn(t, ctx)

	t.Run("draws", func(t *testing.T) {
		assert.Equal(t, d.Snapshot.Peak.Bytes.String(), evaluate[string](t, ctx, `document.querySelector("#facts .value").textContent`))
		colours := evaluate[int](t, ctx, `(() => {
			const c = document.querySelector("#timeline canvas"), data = new Uint32Array(c.getContext("2d").getImageData(0, 0, c.width, c.height).data.buffer);
			return new Set(data).size;
		})()`)
		assert.Greater(t, colours, 8, "areas in the colours of their lines")
		waitFor(t, ctx, `document.querySelectorAll("#timeline canvas table tr").length > 1`)
		waitFor(t, ctx, `document.querySelectorAll("#flame .box").length > 3 && document.querySelectorAll("#table-card tbody tr").length > 2`)
		assert.Empty(t, evaluate[string](t, ctx, `document.getElementById("problem").textContent`))
	})
	t.Run("needs no other server", func(t *testing.T) {
		assert.Empty(t, evaluate[[]string](t, ctx, `performance.getEntriesByType("resource").map(e => e.name).filter(n => !n.startsWith(location.origin))`))
	})
	t.Run("has one selection in all views", func(t *testing.T) {
		click(t, ctx, `[data-set="rows=allocations"]`)
		waitFor(t, ctx, `document.getElementById("table-card").dataset.key.startsWith("allocations ")`)
		pointer(t, ctx, 0.97, 0.995, "pointerdown", "pointerup") // the oldest allocation lies at the bottom
		waitFor(t, ctx, `location.hash.includes("sel=")`)
		first := stateOf(t, ctx, "sel")
		selectedEverywhere(t, ctx, first)
		press(t, ctx, "#timeline canvas", "ArrowDown", false)
		waitFor(t, ctx, fmt.Sprintf(`location.hash.includes("sel=") && !location.hash.endsWith("sel=%s")`, first))
		selectedEverywhere(t, ctx, stateOf(t, ctx, "sel"))
		fromTable := evaluate[string](t, ctx, `(() => { const tr = document.querySelector("#table-card tbody tr:not(.chosen)"); tr.querySelector("button").click(); return tr.dataset.key; })()`)
		selectedEverywhere(t, ctx, fromTable)
		press(t, ctx, "#segments-card canvas", "ArrowRight", false)
		waitFor(t, ctx, fmt.Sprintf(`!location.hash.endsWith("sel=%s")`, fromTable))
		selectedEverywhere(t, ctx, stateOf(t, ctx, "sel"))
	})
	t.Run("has its state in the address", func(t *testing.T) {
		click(t, ctx, `[data-set="weight=lifetime"]`)
		click(t, ctx, "#zoom-in")
		waitFor(t, ctx, `location.hash.includes("from=") && location.hash.includes("weight=lifetime")`)
		press(t, ctx, "#timeline canvas", "*", false)
		waitFor(t, ctx, `location.hash.includes("low=")`)
		hash := evaluate[string](t, ctx, `location.hash`)
		shown := `[document.getElementById("moment-name").textContent, document.getElementById("chosen").textContent, document.querySelector("#details .facts")?.textContent, document.getElementById("flame-card").dataset.key].join("\n")`
		waitFor(t, ctx, `document.getElementById("flame-card").dataset.key.includes(" ")`)
		before := evaluate[string](t, ctx, shown)
		require.NoError(t, chromedp.Do(ctx, chromedp.Navigate("about:blank")))
		require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(url+hash)))
		drawn(t, ctx)
		text, err := json.Marshal(before)
		require.NoError(t, err)
		waitFor(t, ctx, shown+" === "+string(text))
		assert.Equal(t, hash, evaluate[string](t, ctx, `location.hash`))
	})
	t.Run("goes back with Escape", func(t *testing.T) {
		press(t, ctx, "#timeline canvas", "Escape", false)
		waitFor(t, ctx, `!location.hash.includes("sel=") && document.querySelectorAll("#chosen .chosen-chip").length === 0 && document.getElementById("segments-card").dataset.selected === ""`)
		press(t, ctx, "#timeline canvas", "0", false)
		waitFor(t, ctx, `!location.hash.includes("from=") && !location.hash.includes("low=")`)
	})
	t.Run("selects what a frame allocated", func(t *testing.T) {
		click(t, ctx, `[data-set="weight=live"]`)
		waitFor(t, ctx, `!document.getElementById("flame-card").dataset.key.includes(" ")`)
		evaluate[bool](t, ctx, `([...document.querySelectorAll("#flame .box")].find(b => b.title.includes("loadBatch")).click(), true)`)
		waitFor(t, ctx, `location.hash.includes("frame=") && document.querySelectorAll("#flame .chosen").length === 1`)
		waitFor(t, ctx, `document.querySelectorAll("#table-card tbody tr").length === 1 && document.querySelector("#table-card tbody").innerText.includes("1.5 MiB")`)
		press(t, ctx, "#timeline canvas", "Escape", false)
		waitFor(t, ctx, `document.querySelectorAll("#table-card tbody tr").length > 5`)
	})
	t.Run("selects a line of code", func(t *testing.T) {
		click(t, ctx, `[data-set="rows=line"]`)
		waitFor(t, ctx, `document.getElementById("table-card").dataset.key.startsWith("line ")`)
		click(t, ctx, `#table-card tbody tr button`)
		waitFor(t, ctx, `location.hash.includes("line=") && location.hash.includes("line_name=")`)
		waitFor(t, ctx, `document.querySelectorAll("#table-card tbody tr").length > 1 && document.querySelector("#table-card tr.chosen") !== null && document.getElementById("chosen").innerText.startsWith("line ")`)
		// Another run of the program may give the line another number: the name finds it.
		name := stateOf(t, ctx, "line_name")
		require.NoError(t, chromedp.Do(ctx, chromedp.Navigate("about:blank")))
		text, err := json.Marshal(name)
		require.NoError(t, err)
		require.NoError(t, chromedp.Do(ctx, chromedp.Navigate(url+"#line=100000&line_name="+neturl.QueryEscape(name))))
		drawn(t, ctx)
		waitFor(t, ctx, fmt.Sprintf(`document.getElementById("chosen").textContent.startsWith("line " + %s)`, text))
		click(t, ctx, "#filter-clear")
		click(t, ctx, `[data-set="rows=allocations"]`)
		waitFor(t, ctx, `!location.hash.includes("line=") && document.querySelectorAll("#table-card tbody tr").length > 5`)
	})
	t.Run("filters", func(t *testing.T) {
		evaluate[bool](t, ctx, `(() => { const f = document.getElementById("filter-text"); f.value = "LOADWEIGHTS"; f.form.requestSubmit(); return true; })()`)
		inAddress(t, ctx, "text", `"LOADWEIGHTS"`)
		waitFor(t, ctx, `document.querySelectorAll("#table-card tbody tr").length === 2`)
		evaluate[bool](t, ctx, `(() => { const f = document.getElementById("filter-min-bytes"); f.value = "1 MiB"; f.dispatchEvent(new Event("change")); return true; })()`)
		inAddress(t, ctx, "min_bytes", `"1048576"`)
		waitFor(t, ctx, `document.querySelector("#table-card tbody").innerText.includes("Nothing passes")`)
		evaluate[bool](t, ctx, `(() => { const f = document.getElementById("filter-min-bytes"); f.value = "much"; f.dispatchEvent(new Event("change")); return true; })()`)
		assert.Equal(t, "true", evaluate[string](t, ctx, `document.getElementById("filter-min-bytes").getAttribute("aria-invalid")`))
		click(t, ctx, "#filter-clear")
		waitFor(t, ctx, `!location.hash.includes("text=") && !location.hash.includes("min_bytes") && document.querySelectorAll("#table-card tbody tr").length > 5`)
	})
	t.Run("works with the keyboard", func(t *testing.T) {
		press(t, ctx, "#timeline canvas", "p", false)
		waitFor(t, ctx, `document.getElementById("moment-name").textContent.includes("the peak")`)
		at := evaluate[int](t, ctx, `+document.querySelector("#timeline canvas").dataset.moment`)
		press(t, ctx, "#timeline canvas", "ArrowRight", true)
		waitFor(t, ctx, fmt.Sprintf(`+document.querySelector("#timeline canvas").dataset.moment === %d && +document.getElementById("segments-card").dataset.moment === %d`, at+1, at+1))
		press(t, ctx, "#timeline canvas", "+", false)
		waitFor(t, ctx, `location.hash.includes("from=")`)
		from := stateOf(t, ctx, "from")
		press(t, ctx, "#timeline canvas", "ArrowLeft", false)
		waitFor(t, ctx, fmt.Sprintf(`new URLSearchParams(location.hash.slice(1)).get("from") !== %q`, from))
		press(t, ctx, "#timeline canvas", "Enter", false)
		waitFor(t, ctx, `location.hash.includes("sel=")`)
		press(t, ctx, "#timeline canvas", "s", false)
		waitFor(t, ctx, `document.querySelectorAll("#details .stack li").length > 0`)
		for _, what := range []string{"#timeline canvas", "#segments-card canvas", "#flame [tabindex='0']", "#table-card tbody button", "#filter-text", "#zoom-in", "[data-set='axis=time']"} {
			assert.True(t, evaluate[bool](t, ctx, fmt.Sprintf(`(() => { const e = document.querySelector(%q); e.focus(); return document.activeElement === e; })()`, what)), what)
		}
		evaluate[bool](t, ctx, `(document.querySelector("#flame [tabindex='0']").focus(), true)`)
		evaluate[bool](t, ctx, `(document.activeElement.dispatchEvent(new KeyboardEvent("keydown", {key: "ArrowDown", bubbles: true})), true)`)
		assert.Equal(t, 1, evaluate[int](t, ctx, `document.querySelectorAll("#flame [tabindex='0']").length`), "one stop for the Tab key")
	})
	t.Run("fits a narrow window", func(t *testing.T) {
		require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(375, 700)))
		waitFor(t, ctx, `document.documentElement.clientWidth <= 375 && document.documentElement.scrollWidth <= 375`)
		drawn(t, ctx)
		assert.LessOrEqual(t, evaluate[float64](t, ctx, `Math.max(...[...document.querySelectorAll("main .card, main .tile, #timeline canvas, #flame, header")].map(e => e.getBoundingClientRect().right))`), 375.0)
	})
}

// TestTimelineTimes: the same window and moment by time.
func TestTimelineByTime(t *testing.T) {
	ctx := open(t, serveFiles(t, ready("run.json", timeline(t))))
	drawn(t, ctx)
	click(t, ctx, `[data-set="axis=time"]`)
	inAddress(t, ctx, "axis", `"time"`)
	drawn(t, ctx)
	pointer(t, ctx, 0.5, 0.9, "pointerdown", "pointerup")
	waitFor(t, ctx, `location.hash.includes("at=")`)
	moment := stateOf(t, ctx, "at")
	waitFor(t, ctx, fmt.Sprintf(`document.querySelector("#timeline canvas").dataset.moment === %q`, moment))
	click(t, ctx, `[data-set="axis=event"]`)
	waitFor(t, ctx, `!location.hash.includes("axis=")`)
	assert.Equal(t, moment, stateOf(t, ctx, "at"))
}

// TestTimelineOfSeveralRanks: a rank is painted as soon as it is read, the others follow, and one that cannot be read stops none.
func TestTimelineOfSeveralRanks(t *testing.T) {
	d := timeline(t)
	other := exporttest.New(t, tracker.Config{})
	_, err := other.AllocBytes(3*alloc.MiB, tracker.Gradient)
	require.NoError(t, err)
	last := other.Dump()
	early, release := make(chan struct{}), make(chan struct{})
	slow := viewer.Source{Name: "rank1.json", Size: 1000, Read: func(ctx context.Context, p *viewer.Progress) (*files.File, error) {
		p.Bytes(420)
		p.Early(last.Snapshot)
		close(early)
		select {
		case <-release:
			return &files.File{Format: "dump", Dump: last}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}
	broken := viewer.Source{Name: "rank2.json", Size: 10, Read: func(context.Context, *viewer.Progress) (*files.File, error) {
		return nil, errors.New("rank2.json: it is damaged at byte 7")
	}}
	ctx := open(t, serveFiles(t, broken, slow, ready("rank0.json", d)))
	<-early
	waitFor(t, ctx, `document.querySelector(".rank[data-painted=yes]") !== null && document.getElementById("progress").innerText.includes("Reading")`)
	drawn(t, ctx)
	waitFor(t, ctx, `document.getElementById("progress").innerText.includes("it is damaged at byte 7")`)
	close(release)
	waitFor(t, ctx, `document.querySelectorAll(".rank[data-painted=yes]").length === 2 && !document.getElementById("progress").innerText.includes("Reading")`)
	peaks := evaluate[string](t, ctx, `[...document.querySelectorAll(".rank-value")].map(e => e.textContent).join("; ")`)
	assert.Contains(t, peaks, "peak 3.0 MiB")
	assert.Contains(t, peaks, "peak "+d.Snapshot.Peak.Bytes.String())
	evaluate[bool](t, ctx, `([...document.querySelectorAll(".rank")].find(r => r.innerText.includes("3.0 MiB")).click(), true)`)
	waitFor(t, ctx, `document.querySelector("#facts .value").textContent === "3.0 MiB"`)
	drawn(t, ctx)
	waitFor(t, ctx, `document.querySelector("#table-card tbody").innerText.includes("3.0 MiB")`)
}

// TestTimelineShowsTheEndFirst: before the events are read, what is live at the end.
func TestTimelineShowsTheEndFirst(t *testing.T) {
	d := timeline(t)
	release := make(chan struct{})
	ctx := open(t, serveFiles(t, viewer.Source{Name: "run.pickle", Size: 1000, Read: func(ctx context.Context, p *viewer.Progress) (*files.File, error) {
		p.Bytes(10)
		p.Early(d.Snapshot)
		select {
		case <-release:
			return &files.File{Format: "dump", Dump: d}, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}}))
	waitFor(t, ctx, `document.documentElement.dataset.painted === "yes" && document.querySelectorAll("#early-rows tr").length > 1`)
	assert.True(t, evaluate[bool](t, ctx, `document.getElementById("timeline-card").hidden`))
	close(release)
	drawn(t, ctx)
	waitFor(t, ctx, `document.getElementById("early").hidden && document.getElementById("progress").hidden`)
}

// TestTimelineOfHostileNames: names of files, functions and labels are text, wherever they are shown.
func TestTimelineOfHostileNames(t *testing.T) {
	const evil = `<img src=x onerror="window.hurt=1">` // without a slash, after which names are shortened
	tr := exporttest.New(t, tracker.Config{})
	exporttest.Train(t, tr)
	d := tr.Dump()
	var b strings.Builder
	require.NoError(t, d.WriteJSON(&b))
	// The names of the dump's own functions become hostile ones.
	text, err := json.Marshal(evil)
	require.NoError(t, err)
	hostile, err := snapshot.ReadDump(strings.NewReader(strings.ReplaceAll(b.String(), "exporttest.take", string(text[1:len(text)-1]))))
	require.NoError(t, err)
	ctx := open(t, serveFiles(t, ready(evil, hostile), ready("b"+evil, hostile)))
	drawn(t, ctx)
	waitFor(t, ctx, `document.querySelector("#table-card tbody").innerText.includes("onerror")`)
	waitFor(t, ctx, `document.getElementById("flame").innerText.includes("img") || document.querySelector("#flame [title*=onerror]") !== null`)
	press(t, ctx, "#timeline canvas", "Enter", false)
	waitFor(t, ctx, `document.querySelectorAll("#details .stack li").length > 0`)
	assert.Equal(t, 0, evaluate[int](t, ctx, `document.querySelectorAll("img, body script:not([src])").length - 2`), "only the page's own two scripts")
	assert.Nil(t, evaluate[any](t, ctx, `window.hurt ?? null`))
	assert.Contains(t, evaluate[string](t, ctx, `document.title + document.getElementById("track").innerText`), "onerror")
}

// TestTimelineContrast of all texts, light and dark.
func TestTimelineContrast(t *testing.T) {
	url := serveFiles(t, ready("rank0.json", timeline(t)), ready("rank1.json", timeline(t)))
	ctx := open(t, "about:blank")
	for _, scheme := range []string{"light", "dark"} {
		require.NoError(t, chromedp.Do(ctx, prefer(scheme), chromedp.Navigate(url)))
		drawn(t, ctx)
		press(t, ctx, "#timeline canvas", "Enter", false)
		waitFor(t, ctx, `document.querySelectorAll("#details .stack li").length > 0 && document.querySelectorAll("#table-card tbody tr").length > 0 && document.querySelectorAll("#flame .box").length > 1`)
		worst := evaluate[struct {
			Ratio float64 `json:"ratio"`
			Text  string  `json:"text"`
		}](t, ctx, contrast)
		assert.GreaterOrEqual(t, worst.Ratio, 4.5, "%s: %s", scheme, worst.Text)
	}
}
