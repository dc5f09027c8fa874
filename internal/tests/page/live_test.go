package page_test

import (
	"net/http/httptest"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/exporttest"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/live"
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
	_, err := tr.AllocBytes(3*alloc.MiB, tracker.Gradient)
	require.NoError(t, err)
	tr.Track()
	waitFor(t, ctx, `document.querySelector("#marks tr[data-mark]").dataset.mark === "5"`)
	waitFor(t, ctx, `document.getElementById("live-note").textContent === "5 buffers"`)
	_, err = tr.Alloc(nil, alloc.Float32, tracker.Gradient) // a scalar, whose shape is null in JSON
	require.NoError(t, err)
	tr.Track()
	waitFor(t, ctx, `document.querySelector("#marks tr[data-mark='6']")?.innerText.includes("+ 1 × Gradient () float32")`)
	row := evaluate[string](t, ctx, `document.querySelector("#marks tr[data-mark='5']").innerText`)
	assert.Contains(t, row, "+ 3.00 MiB")
	assert.Contains(t, row, "+ 1 × Gradient (3145728) uint8")
}

func TestLeaksOnTheLivePage(t *testing.T) {
	server := httptest.NewServer(live.Handler(exporttest.Leaky(t)))
	t.Cleanup(server.Close)
	ctx := open(t, server.URL+"/")
	waitFor(t, ctx, `document.getElementById("leaks").textContent.includes("exporttest.forget: 29 buffers")`)
}
