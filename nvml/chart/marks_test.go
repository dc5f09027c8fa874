package chart

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// A process is not drawn above its device: a sample holds until the device changes.
func TestAProcessHoldsUntilItsDeviceChanges(t *testing.T) {
	used, process := nvml.MemoryUsed.Key(), nvml.ProcessMemory.Key()
	series := recording(t,
		entry{"time_seconds": 0, "device": 0, used: 10, process: 8},
		entry{"time_seconds": 0.2, "device": 0, used: 10},
		entry{"time_seconds": 0.4, "device": 0, used: 6},
		entry{"time_seconds": 1, "device": 0, used: 6, process: 5},
		entry{"time_seconds": 2, "device": 0, used: 6, process: 5},
		entry{"time_seconds": 2.2, "device": 0, used: 7},
		entry{"time_seconds": 2.4, "device": 0, used: 7})
	fig, err := newFigure(series, Config{})
	require.NoError(t, err)
	l := fig.panels[0].Lines[1]
	require.True(t, l.Process)
	assert.Equal(t, [][]sample{{{0, 8}, {0.4, 8}}, {{1, 5}, {2, 5}, {2.2, 5}}}, inBytes(l.parts, fig))
	assert.Len(t, l.dots, 3)
	assert.Greater(t, fig.panels[0].Lines[0].width(), l.width(), "the device's line is the main one")
}

// inBytes undoes a panel's unit.
func inBytes(parts [][]sample, fig *figure) [][]sample {
	scale := map[string]float64{"B": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[fig.panels[0].Unit]
	for _, part := range parts {
		for i := range part {
			part[i].y *= scale
		}
	}
	return parts
}

func TestThirtyTwoLinesDiffer(t *testing.T) {
	seen := make(map[string]bool)
	for i := range 32 {
		s := line{Color: i}.stroke()
		seen[fmt.Sprint(s.color, s.dashes)] = true
	}
	assert.Len(t, seen, 32)
}

// Lines that lie on each other are both seen: the one below is wider.
func TestEqualLines(t *testing.T) {
	used := nvml.MemoryUsed.Key()
	var entries []entry
	for i := range 20 {
		for device := range 2 {
			entries = append(entries, entry{"time_seconds": i, "device": device, used: gib * float64(i+1)})
		}
	}
	fig, err := newFigure(recording(t, entries...), Config{})
	require.NoError(t, err)
	lines := fig.panels[0].Lines
	assert.Equal(t, []int{1, 0}, []int{lines[0].Under, lines[1].Under})
	assert.Greater(t, lines[0].width(), lines[1].width())
}

func TestCapacityAndPeak(t *testing.T) {
	used := nvml.MemoryUsed.Key()
	high := recording(t, entry{"time_seconds": 0, "device": 0, used: gib}, entry{"time_seconds": 1, "device": 0, used: 20 * gib}, entry{"time_seconds": 2, "device": 0, used: 2 * gib})
	fig, err := newFigure(high, Config{})
	require.NoError(t, err)
	assert.Equal(t, []rule{{"capacity 24.0 GiB", 24}}, fig.panels[0].Rules)
	assert.Equal(t, &sample{1, 20}, fig.panels[0].Lines[0].peak)
	_, texts, _ := drawn(t, high, Config{})
	assert.Contains(t, texts, "capacity 24.0 GiB")
	var b bytes.Buffer
	require.NoError(t, fig.write(&b, ".html"))
	assert.Contains(t, b.String(), `"rules":[{"label":"capacity 24.0 GiB","y":24}]`)

	low := recording(t, entry{"time_seconds": 0, "device": 0, used: gib}, entry{"time_seconds": 1, "device": 0, used: 2 * gib})
	fig, err = newFigure(low, Config{})
	require.NoError(t, err)
	assert.Empty(t, fig.panels[0].Rules, "far above: the line would be squeezed")
	assert.Equal(t, 2.0, fig.panels[0].Max)
}

// A line that does not move does not look like a full device.
func TestAFlatLine(t *testing.T) {
	for _, level := range []float64{0, gib} {
		fig, err := newFigure(seriesOf(t, nvml.MemoryUsed, level, level, level), Config{})
		require.NoError(t, err)
		assert.Equal(t, [2]any{24.0, "GiB"}, [2]any{fig.panels[0].Max, fig.panels[0].Unit})
	}
}

func TestTimeUnits(t *testing.T) {
	for span, want := range map[float64]string{1: "s", 120: "s", 121: "min", 7200: "min", 7201: "h", 200000: "d"} {
		assert.Equal(t, want, timeUnitOf(span).Name, span)
	}
	_, texts, _ := drawn(t, recording(t, entry{"time_seconds": 0, "device": 0, "memory_used_bytes": gib},
		entry{"time_seconds": 4 * 3600, "device": 0, "memory_used_bytes": 2 * gib}), Config{})
	assert.Contains(t, texts, "time [h]")
	assert.Contains(t, texts, "3.5")
	assert.NotContains(t, texts, "14400")
}

// TestALongKeyLeavesRoom: sixteen devices and their processes have 32 entries.
func TestALongKeyLeavesRoom(t *testing.T) {
	var entries []entry
	for i := range 3 {
		for device := range 16 {
			entries = append(entries, entry{"time_seconds": i, "device": device, nvml.MemoryUsed.Key(): gib, nvml.ProcessMemory.Key(): gib})
		}
	}
	fig, err := newFigure(recording(t, entries...), Config{})
	require.NoError(t, err)
	key := newKey(fig.panels[0].Lines, float64(fig.width)-2*margin)
	assert.Len(t, key.lines, 32)
	assert.Greater(t, float64(fig.height)-key.height(), 320.0)
}

// A device has one color in all panels; its quantities in one panel differ in their dashes.
func TestColorsOfDevices(t *testing.T) {
	used, busy, fan := nvml.MemoryUsed.Key(), nvml.Utilization.Key(), nvml.FanSpeed.Key()
	var entries []entry
	for i := range 3 {
		for device := range 2 {
			entries = append(entries, entry{"time_seconds": i, "device": device, used: gib * float64(i+1), busy: 10 * device, fan: 20 + i})
		}
	}
	fig, err := newFigure(recording(t, entries...), Config{})
	require.NoError(t, err)
	require.Len(t, fig.panels, 2)
	for _, p := range fig.panels {
		styles := make(map[string]bool)
		for _, l := range p.Lines {
			device := 0
			if strings.HasPrefix(l.Name, "GPU 1") {
				device = 1
			}
			assert.Equal(t, palette[device], l.color(), l.Name)
			styles[fmt.Sprint(l.Color)] = true
		}
		assert.Len(t, styles, len(p.Lines), "all differ")
	}
}

// The label of a capacity lies inside its panel, however low that is.
func TestCapacityLabelHasRoom(t *testing.T) {
	p := panel{Max: 80, Rules: []rule{{"capacity 80.0 GiB", 80}}}
	for _, height := range []float64{60, 100, 400} {
		a := axes{panel: p, top: 10, bottom: 10 + height}
		assert.GreaterOrEqual(t, a.y(80)-a.top, 1.2*fontSize, "%v pixels", height)
		assert.GreaterOrEqual(t, len(p.ticks(height)), 2)
	}
}

// TestSamplesOfOneTime: a file's times may be coarser than its samples. Of those of one time the highest is drawn.
func TestSamplesOfOneTime(t *testing.T) {
	var entries []entry
	for _, v := range []float64{3, 5, 4} {
		entries = append(entries, entry{"time_seconds": 1, "device": 0, nvml.MemoryUsed.Key(): v})
	}
	require.Equal(t, []moment{{1, 3, 5}}, pointsOf(recording(t, entries...)[0]))
}
