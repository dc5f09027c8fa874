package page_test

import (
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/nvml"
	"github.com/gpumemtrack/gpumemtrack/nvml/chart"
)

// wave is a minute of a GPU whose memory rises and falls.
func wave(t *testing.T, top float64) []nvml.Series {
	var text strings.Builder
	fmt.Fprintln(&text, `{"schema": "gpumemtrack.recording/1", "devices": [{"index": 0, "uuid": "GPU-a", "name": "NVIDIA H200"}]}`)
	fmt.Fprintln(&text, `{"time_seconds": 0, "device": 0, "capacity_bytes": 25769803776}`)
	for i := range 301 {
		seconds := float64(i) / 5
		fmt.Fprintf(&text, `{"time_seconds": %g, "device": 0, "memory_used_bytes": %g}`+"\n", seconds, top*math.Abs(math.Sin(seconds/8)))
	}
	name := filepath.Join(t.TempDir(), "samples.jsonl")
	require.NoError(t, os.WriteFile(name, []byte(text.String()), 0o644))
	rec, err := nvml.ReadFile(name)
	require.NoError(t, err)
	return rec.Series
}

// The page draws itself, tells the values under the pointer, and zooms.
func TestChart(t *testing.T) {
	page := filepath.Join(t.TempDir(), "chart.html")
	require.NoError(t, chart.WriteFile(page, false, wave(t, 23<<30), chart.Config{}))
	ctx := open(t, "file://"+page)
	assert.Equal(t, 1, evaluate[int](t, ctx, `document.querySelectorAll("canvas").length`))
	assert.Equal(t, 2, evaluate[int](t, ctx, `document.querySelectorAll("tr.u-series").length`), "time and one line")

	// place is where a time lies on the screen.
	place := func(seconds float64) (x, y float64) {
		at := evaluate[[]float64](t, ctx, fmt.Sprintf(`(() => {
			const box = charts[0].over.getBoundingClientRect();
			return [box.left + charts[0].valToPos(%g, "x"), box.top + box.height / 2];
		})()`, seconds))
		return at[0], at[1]
	}
	point := func(event string, seconds float64) {
		x, y := place(seconds)
		mouse(t, ctx, x, y, event)
	}
	const shown = `[charts[0].scales.x.min, charts[0].scales.x.max]`
	whole := evaluate[[]float64](t, ctx, shown)
	assert.InDelta(t, 60, whole[1], 1)

	point("mousemove", 10)
	legend := `[...document.querySelectorAll(".u-value")].map(v => v.textContent)`
	waitFor(t, ctx, legend+`[0] !== "--"`)
	values := evaluate[[]string](t, ctx, legend)
	at, err := strconv.ParseFloat(strings.TrimSuffix(values[0], " s"), 64)
	require.NoError(t, err)
	assert.InDelta(t, 10, at, 0.2)
	used, err := strconv.ParseFloat(strings.TrimSuffix(values[1], " GiB"), 64)
	require.NoError(t, err)
	assert.InDelta(t, 23*math.Abs(math.Sin(at/8)), used, 0.01)

	point("mousedown", 5)
	point("mousemove", 15)
	point("mouseup", 15)
	waitFor(t, ctx, `charts[0].scales.x.max < 20`)
	zoomed := evaluate[[]float64](t, ctx, shown)
	assert.InDelta(t, 5, zoomed[0], 0.5)
	assert.InDelta(t, 15, zoomed[1], 0.5)

	evaluate[bool](t, ctx, `charts[0].over.dispatchEvent(new MouseEvent("dblclick", {bubbles: true}))`)
	waitFor(t, ctx, `charts[0].scales.x.max > 50`)
	assert.Equal(t, whole, evaluate[[]float64](t, ctx, shown))
}
