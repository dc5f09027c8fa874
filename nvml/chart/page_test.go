package chart

import (
	"fmt"
	"math"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/exporttest"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// The page draws itself, tells the values under the pointer, and zooms.
func TestPageInABrowser(t *testing.T) {
	fig, err := New(waves(t, map[nvml.Quantity]float64{nvml.MemoryUsed: 23 * gib}), Config{})
	require.NoError(t, err)
	page := filepath.Join(t.TempDir(), "chart.html")
	require.NoError(t, fig.Save(page, false))
	ctx := exporttest.Browser(t, "file://"+page)
	assert.Equal(t, 1, exporttest.Evaluate[int](t, ctx, `document.querySelectorAll("canvas").length`))
	assert.Equal(t, 2, exporttest.Evaluate[int](t, ctx, `document.querySelectorAll("tr.u-series").length`), "time and one line")

	// place is where a time lies on the screen.
	place := func(seconds float64) (x, y float64) {
		at := exporttest.Evaluate[[]float64](t, ctx, fmt.Sprintf(`(() => {
			const box = charts[0].over.getBoundingClientRect();
			return [box.left + charts[0].valToPos(%g, "x"), box.top + box.height / 2];
		})()`, seconds))
		return at[0], at[1]
	}
	mouse := func(event string, seconds float64) {
		x, y := place(seconds)
		exporttest.Mouse(t, ctx, x, y, event)
	}
	const shown = `[charts[0].scales.x.min, charts[0].scales.x.max]`
	whole := exporttest.Evaluate[[]float64](t, ctx, shown)
	assert.InDelta(t, 60, whole[1], 1)

	mouse("mousemove", 10)
	legend := `[...document.querySelectorAll(".u-value")].map(v => v.textContent)`
	exporttest.WaitFor(t, ctx, legend+`[0] !== "--"`)
	values := exporttest.Evaluate[[]string](t, ctx, legend)
	at, err := strconv.ParseFloat(strings.TrimSuffix(values[0], " s"), 64)
	require.NoError(t, err)
	assert.InDelta(t, 10, at, 0.2)
	used, err := strconv.ParseFloat(strings.TrimSuffix(values[1], " GiB"), 64)
	require.NoError(t, err)
	assert.InDelta(t, 23*math.Abs(math.Sin(at/8)), used, 0.01)

	mouse("mousedown", 5)
	mouse("mousemove", 15)
	mouse("mouseup", 15)
	exporttest.WaitFor(t, ctx, `charts[0].scales.x.max < 20`)
	zoomed := exporttest.Evaluate[[]float64](t, ctx, shown)
	assert.InDelta(t, 5, zoomed[0], 0.5)
	assert.InDelta(t, 15, zoomed[1], 0.5)

	exporttest.Evaluate[bool](t, ctx, `charts[0].over.dispatchEvent(new MouseEvent("dblclick", {bubbles: true}))`)
	exporttest.WaitFor(t, ctx, `charts[0].scales.x.max > 50`)
	assert.Equal(t, whole, exporttest.Evaluate[[]float64](t, ctx, shown))
}
