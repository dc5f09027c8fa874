package page_test

import (
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"sync/atomic"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/testing/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

func TestLivePage(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{Clock: time.Now})
	exporttest.Train(t, tr)
	server := httptest.NewServer(live.Handler(tr))
	t.Cleanup(server.Close) // after the browser's, which holds a connection
	ctx := open(t, server.URL+"/")

	waitFor(t, ctx, `document.getElementById("live-note").textContent === "4 buffers"`)
	waitFor(t, ctx, `document.querySelectorAll("#marks tr[data-mark]").length === 4`)
	waitFor(t, ctx, `document.querySelectorAll("#chart canvas").length === 1`)
	gradient, err := tr.AllocBytes(3*alloc.MiB, tracker.Gradient)
	require.NoError(t, err)
	tr.Track()
	waitFor(t, ctx, `document.querySelector("#marks tr[data-mark]").dataset.mark === "5"`)
	waitFor(t, ctx, `document.getElementById("live-note").textContent === "5 buffers"`)
	_, err = tr.Alloc(nil, alloc.Float32, tracker.Gradient) // a scalar, whose shape is null in JSON
	require.NoError(t, err)
	tr.Track()
	waitFor(t, ctx, `document.querySelector("#marks tr[data-mark='6']")?.innerText.includes("+ 1 × Gradient () float32, 4 B")`)
	row := evaluate[string](t, ctx, `document.querySelector("#marks tr[data-mark='5']").innerText`)
	assert.Contains(t, row, "grew by 3.0 MiB")
	assert.Contains(t, row, "+ 1 × Gradient (3145728) uint8")
	assert.Contains(t, row, "page_test.TestLivePage", "the line that allocated")

	// The largest change is a loss here, not the growth that the delta has first.
	require.NoError(t, gradient.Free())
	_, err = tr.AllocBytes(alloc.MiB, tracker.Input)
	require.NoError(t, err)
	tr.Track()
	waitFor(t, ctx, `document.querySelector("#marks tr[data-mark='7']")?.innerText.includes("− 1 × Gradient (3145728) uint8, 3.0 MiB")`)
	assert.Equal(t, "fell", evaluate[string](t, ctx, `document.querySelector("#marks tr[data-mark='7']").className`))
	assert.Equal(t, "grew", evaluate[string](t, ctx, `document.querySelector("#marks tr[data-mark='5']").className`))
	legend := evaluate[string](t, ctx, `document.querySelector("#chart .legend").innerText`)
	for _, kind := range []string{"Parameter", "Input", "Tensor"} {
		assert.Contains(t, legend, kind)
	}

	// The areas follow the levels, up to the last.
	waitFor(t, ctx, `(() => {
		const {plot, data} = document.getElementById("chart").chart;
		return plot.data.length === 1 + data.layers.length + data.lines.length && plot.data.every(column => column.length === plot.data[0].length)
			&& plot.data[1].at(-1) === data.layers.reduce((sum, layer) => sum + layer.bytes.at(-1), 0) && plot.data[1].at(-1) > 3000000;
	})()`)
	require.NoError(t, chromedp.Do(ctx, chromedp.EmulateViewport(375, 700)))
	waitFor(t, ctx, `document.documentElement.scrollWidth <= 375`)

	require.NoError(t, tr.Close())
	waitFor(t, ctx, `document.getElementById("notice").textContent.includes("closed its tracker")`)
}

// TestLivePageBeginsWithTheLines that hold memory now: with what changed since the page was opened, and their call stacks
// when one is clicked. Kinds keep their order, and marks without a change are one row.
func TestLivePageBeginsWithTheLines(t *testing.T) {
	tr := exporttest.New(t, tracker.Config{Clock: time.Now})
	exporttest.Train(t, tr)
	server := httptest.NewServer(live.Handler(tr))
	t.Cleanup(server.Close)
	ctx := open(t, server.URL+"/")
	assert.True(t, evaluate[bool](t, ctx, `document.querySelector("main .card:not([hidden])").contains(document.getElementById("lines"))`))
	waitFor(t, ctx, `document.querySelectorAll("#lines button").length === 2`)
	rows := `[...document.querySelectorAll("#lines tbody tr")].filter(tr => !tr.hidden).map(tr => tr.innerText)`
	first := evaluate[[]string](t, ctx, rows)
	require.Len(t, first, 2)
	assert.Contains(t, first[0], "exporttest.take")
	assert.Contains(t, first[0], "1.5 MiB")
	assert.Contains(t, first[1], "exporttest.register")
	click(t, ctx, "#lines button")
	assert.Contains(t, evaluate[[]string](t, ctx, rows)[1], "exporttest.loadBatch")
	evaluate[bool](t, ctx, `(document.querySelector("#lines button").focus(), true)`)

	legend := func() []string {
		return evaluate[[]string](t, ctx, `[...document.querySelectorAll("#chart .legend button")].map(b => b.innerText.split(" ")[0])`)
	}
	waitFor(t, ctx, `document.querySelectorAll("#chart .legend button").length >= 6`)
	before := legend()
	_, err := tr.AllocBytes(7*alloc.MiB, tracker.Gradient)
	require.NoError(t, err)
	for range 14 {
		tr.Track()
	}
	waitFor(t, ctx, `document.querySelector("#lines tbody tr").innerText.includes("+7.0 MiB")`)
	assert.Equal(t, "true", evaluate[string](t, ctx, `document.querySelectorAll("#lines button")[1].getAttribute("aria-expanded")`), "it stays open")
	assert.Contains(t, evaluate[string](t, ctx, `document.activeElement.dataset.line`), "exporttest.take", "and keeps the keyboard")
	waitFor(t, ctx, `document.querySelectorAll("#chart .legend button").length === `+strconv.Itoa(len(before)+1))
	after := legend()
	assert.Equal(t, before, slices.DeleteFunc(slices.Clone(after), func(name string) bool { return name == "Gradient" }))

	waitFor(t, ctx, `document.querySelector("#marks tbody tr").innerText.includes("13 marks without a change")`)
	assert.Equal(t, "5", evaluate[string](t, ctx, `[...document.querySelectorAll("#marks tr[data-mark]")].find(tr => !tr.hidden).dataset.mark`))
	click(t, ctx, "#marks button")
	assert.Equal(t, "18", evaluate[string](t, ctx, `[...document.querySelectorAll("#marks tr[data-mark]")].find(tr => !tr.hidden).dataset.mark`))
}

// TestLivePageShowsThePast: what was before the page was opened, as far as the history
// reaches, and by marks before that.
func TestLivePageShowsThePast(t *testing.T) {
	begun := time.Now().Add(-time.Hour)
	var looks atomic.Int64 // the clock passes a second at each
	tr := exporttest.New(t, tracker.Config{MaxEvents: 100, Clock: func() time.Time {
		return begun.Add(time.Duration(looks.Add(1)) * time.Second)
	}})
	for range 300 {
		b, err := tr.AllocBytes(alloc.MiB, tracker.Input)
		require.NoError(t, err)
		tr.Track()
		require.NoError(t, b.Free())
	}
	server := httptest.NewServer(live.Handler(tr))
	t.Cleanup(server.Close)
	ctx := open(t, server.URL+"/")
	click(t, ctx, `[data-seconds="0"]`)
	waitFor(t, ctx, `document.querySelector("#chart .legend")?.innerText.includes("all kinds")`)
	assert.Contains(t, evaluate[string](t, ctx, `document.querySelector("#chart .legend").innerText`), "Input")
}

// TestLivePageOfAServerThatGoes tells in words that it is gone, and draws its
// level no further; another program at its address gets the page for itself.
func TestLivePageOfAServerThatGoes(t *testing.T) {
	start := func(addr string, origin snapshot.Origin) (*http.Server, *tracker.MemTracker, string) {
		tr := exporttest.New(t, tracker.Config{Clock: time.Now, Origin: origin})
		exporttest.Train(t, tr)
		listener, err := net.Listen("tcp", addr)
		require.NoError(t, err)
		server := &http.Server{Handler: live.Handler(tr)}
		go server.Serve(listener)
		t.Cleanup(func() { server.Close() })
		return server, tr, listener.Addr().String()
	}
	first, _, addr := start("localhost:0", snapshot.Origin{Program: "first"})
	ctx := open(t, "http://"+addr+"/")
	waitFor(t, ctx, `document.querySelectorAll("#marks tr[data-mark]").length === 4`)
	require.NoError(t, first.Close())
	waitFor(t, ctx, `!document.getElementById("notice").hidden && document.getElementById("notice").textContent.includes("No answer from the program since")`)

	_, _, _ = start(addr, snapshot.Origin{Program: "second"})
	waitFor(t, ctx, `document.getElementById("origin").textContent.includes("second")`)
	waitFor(t, ctx, `document.getElementById("notice").hidden`)
	waitFor(t, ctx, `document.querySelectorAll("#marks tr[data-mark]").length === 4`)
	waitFor(t, ctx, `document.querySelector("#chart .legend b").textContent !== "–"`)
}

func TestLeaksOnTheLivePage(t *testing.T) {
	server := httptest.NewServer(live.Handler(exporttest.Leaky(t)))
	t.Cleanup(server.Close)
	ctx := open(t, server.URL+"/")
	waitFor(t, ctx, `document.getElementById("leaks").textContent.includes("exporttest.forget looks forgotten: 44 buffers")`)
}
