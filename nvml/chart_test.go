package nvml

import (
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"image/color"
	"image/png"
	"math"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/uplot"
)

const gib = float64(1 << 30)

func wave(q Quantity, device int, top float64, target Target) Series {
	b := newBuffer(1024)
	for i := range 301 { // a minute, with a gap of four seconds
		v := top * math.Abs(math.Sin(float64(i)/40+float64(device)))
		b.add(time.Duration(i)*200*time.Millisecond, v, i < 100 || i >= 120)
	}
	return Series{
		Device:   Device{Index: device, UUID: string(rune('a' + device)), Name: "NVIDIA H200"},
		Quantity: q, Target: target, total: b.total, points: b.points,
	}
}

// twoGPUs is a recording of a process on two devices.
func twoGPUs() []Series {
	target := Target{PID: 12345, Children: true}
	return []Series{
		wave(MemoryUsed, 0, 23*gib, Target{}), wave(ProcessMemory, 0, 20*gib, target),
		wave(MemoryUsed, 1, 105*gib, Target{}), wave(ProcessMemory, 1, 91*gib, target),
	}
}

func TestPNG(t *testing.T) {
	fig, err := Chart(twoGPUs(), ChartConfig{Title: "a title"})
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, fig.PNG(&b))
	picture, err := png.Decode(&b)
	require.NoError(t, err)
	assert.Equal(t, [2]int{800, 500}, [2]int{picture.Bounds().Dx(), picture.Bounds().Dy()})
	seen := make(map[color.Color]int)
	for y := range 500 {
		for x := range 800 {
			seen[color.RGBAModel.Convert(picture.At(x, y))]++
		}
	}
	for i, c := range palette {
		assert.Equal(t, i < 2, seen[c] > 200, "a color for each of two devices: %d", i)
	}
}

// svg is what the tests look at in a drawing.
type svg struct {
	Width  string  `xml:"width,attr"`
	Height string  `xml:"height,attr"`
	Groups []group `xml:"g"`
}

type group struct {
	Paths  []element `xml:"path"`
	Texts  []element `xml:"text"`
	Groups []group   `xml:"g"`
}

type element struct {
	Style string `xml:"style,attr"`
	D     string `xml:"d,attr"`
	Text  string `xml:",chardata"`
}

func (g group) walk(visit func(group)) {
	visit(g)
	for _, in := range g.Groups {
		in.walk(visit)
	}
}

func drawn(t *testing.T, series []Series, cfg ChartConfig) (drawing svg, texts []string, curves map[string]int) {
	t.Helper()
	fig, err := Chart(series, cfg)
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, fig.SVG(&b))
	require.NoError(t, xml.Unmarshal(b.Bytes(), &drawing))
	curves = make(map[string]int)
	group{Groups: drawing.Groups}.walk(func(g group) {
		for _, text := range g.Texts {
			texts = append(texts, strings.TrimSpace(text.Text))
		}
		for _, p := range g.Paths {
			if strings.Count(p.D, "L") > 10 { // no axis, no grid
				stroke := regexp.MustCompile(`stroke:#?(\w+)`).FindStringSubmatch(p.Style)
				dashed := map[bool]string{true: " dashed"}[strings.Contains(p.Style, "dasharray")]
				curves[stroke[1]+dashed]++
			}
		}
	})
	return drawing, texts, curves
}

func TestSVG(t *testing.T) {
	drawing, texts, curves := drawn(t, twoGPUs(), ChartConfig{Title: "a title"})
	assert.Equal(t, "600pt", drawing.Width, "800 pixels of 1/96 inch")
	assert.Equal(t, "375pt", drawing.Height)
	for _, want := range []string{
		"a title", "time [s]", "memory [GiB]", "0", "60", "100",
		"GPU 0 memory used", "GPU 0 pid 12345 and children", "GPU 1 memory used", "GPU 1 pid 12345 and children",
	} {
		assert.Contains(t, texts, want)
	}
	assert.NotContains(t, texts, "-0")
	assert.Equal(t, map[string]int{"0072B2": 2, "0072B2 dashed": 2, "D55E00": 2, "D55E00 dashed": 2}, curves,
		"four lines, each in two parts")
}

func TestADeviceAloneIsSolid(t *testing.T) {
	_, texts, curves := drawn(t, []Series{wave(MemoryUsed, 0, 300<<20, Target{})}, ChartConfig{})
	assert.Equal(t, map[string]int{"0072B2": 2}, curves)
	assert.Contains(t, texts, "memory [MiB]")
	assert.Contains(t, texts, "300")
}

func TestOnePanelAUnit(t *testing.T) {
	series := []Series{
		wave(MemoryUsed, 0, gib, Target{}), wave(Power, 0, 700, Target{}), wave(Utilization, 0, 100, Target{}),
		wave(FanSpeed, 0, 40, Target{}), wave(ClockSM, 0, 1980, Target{}), wave(ClockMemory, 0, 2619, Target{}),
	}
	drawing, texts, curves := drawn(t, series, ChartConfig{})
	for _, want := range []string{"memory [MiB]", "power [W]", "share [%]", "clock [MHz]", "time [s]"} {
		assert.Contains(t, texts, want)
	}
	assert.Equal(t, "937.5pt", drawing.Height, "a panel more is half a chart more")
	assert.Equal(t, map[string]int{"0072B2": 8, "D55E00": 4}, curves)
}

func TestLastSamples(t *testing.T) {
	fig, err := Chart(twoGPUs(), ChartConfig{Last: 50})
	require.NoError(t, err)
	from, to := fig.span()
	assert.InDelta(t, 50.2, from, 1e-9)
	assert.InDelta(t, 60, to, 1e-9)
	assert.Equal(t, 50, fig.series[0].Len())
}

func TestASampleAloneIsADot(t *testing.T) {
	nan := math.NaN()
	fig, err := Chart([]Series{seriesOf(MemoryUsed, gib, nan, 2*gib, nan, gib)}, ChartConfig{})
	require.NoError(t, err)
	assert.Len(t, fig.panels[0].Lines[0].parts, 3)
	var b bytes.Buffer
	assert.NoError(t, fig.PNG(&b))
	fig, err = Chart([]Series{seriesOf(MemoryUsed, 0)}, ChartConfig{})
	require.NoError(t, err)
	assert.NoError(t, fig.SVG(&b), "one sample, of nothing")
}

func TestThinnedPeaksAreDrawn(t *testing.T) {
	b := newBuffer(8)
	for i := range 100 {
		b.add(time.Duration(i)*time.Second, map[bool]float64{true: 9, false: 1}[i == 77], true)
	}
	fig, err := Chart([]Series{{Quantity: Power, total: b.total, points: b.points}}, ChartConfig{})
	require.NoError(t, err)
	top := 0.0
	for _, s := range fig.panels[0].Lines[0].parts[0] {
		top = max(top, s.y)
	}
	assert.Equal(t, 9.0, top)
}

// A picture shows a column's extremes, and no more points than it needs.
func TestPointsAColumn(t *testing.T) {
	var part []sample
	for i := range 10000 {
		part = append(part, sample{float64(i) / 10000, float64(i*7919%1000) / 1000})
	}
	part[1234].y, part[5678].y = 9, -9
	kept := perColumn(part, 0, 1, 100)
	assert.LessOrEqual(t, len(kept), 4*100)
	assert.Contains(t, kept, part[1234])
	assert.Contains(t, kept, part[5678])
	assert.Equal(t, part[0], kept[0])
	assert.Equal(t, part[9999], kept[len(kept)-1])
	assert.True(t, slices.IsSortedFunc(kept, func(a, b sample) int { return cmp.Compare(a.x, b.x) }))
	few := []sample{{0, 1}, {0, 2}, {0.5, 2}, {1, 1}}
	assert.Equal(t, few, perColumn(few, 0, 1, 100))
}

func TestNothingToDraw(t *testing.T) {
	_, err := Chart(nil, ChartConfig{})
	assert.ErrorContains(t, err, "nothing to draw")
	_, err = Chart([]Series{{Note: "the GPU is lost"}}, ChartConfig{})
	assert.ErrorContains(t, err, "the GPU is lost")
}

func TestTooLargeAPicture(t *testing.T) {
	_, err := Chart(twoGPUs(), ChartConfig{Width: 1 << 20})
	assert.ErrorContains(t, err, "10000 is the most")
}

func TestTicks(t *testing.T) {
	labels := func(n ticks, from, to float64) (list []string) {
		for _, tick := range n.Ticks(from, to) {
			list = append(list, tick.Label)
		}
		return list
	}
	assert.Equal(t, []string{"0", "5", "10", "15", "20"}, labels(6, 0, 23))
	assert.Equal(t, []string{"0.0", "0.2", "0.4", "0.6", "0.8", "1.0"}, labels(6, 0, 1))
	assert.Equal(t, []string{"10000", "20000", "30000", "40000", "50000", "60000", "70000", "80000"}, labels(9, 3600, 86400))
	for _, span := range []float64{1e-3, 0.07, 1, 9.99, 1234, 1e7} {
		assert.LessOrEqual(t, len(labels(9, 0, span)), 10)
		assert.GreaterOrEqual(t, len(labels(9, 0, span)), 4)
	}
}

func TestBinaryUnits(t *testing.T) {
	for maximum, want := range map[float64]string{0: "B", 1023: "B", 1024: "KiB", gib - 1: "MiB", gib: "GiB", 2048 * gib: "TiB", 1e30: "PiB"} {
		_, unit := binaryUnit(maximum)
		assert.Equal(t, want, unit, maximum)
	}
}

func TestHTML(t *testing.T) {
	series := twoGPUs()
	series[1].Note = `a <b>note</b> & "more"`
	fig, err := Chart(series, ChartConfig{Title: "</script><script>alert(1)"})
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, fig.HTML(&b))
	text := b.String()
	assert.Contains(t, text, uplot.JS)
	assert.Contains(t, text, "Copyright (c) 2022 Leon Sorokin")
	assert.NotContains(t, text, "<script>alert")
	assert.Contains(t, text, "a &lt;b&gt;note")
	assert.NotRegexp(t, `(src|href)=`, strings.ReplaceAll(text, uplot.JS, ""), "it needs no network")

	data := regexp.MustCompile(`const panels = (.*);\n`).FindStringSubmatch(text)
	require.NotNil(t, data)
	var panels []pagePanel
	require.NoError(t, json.Unmarshal([]byte(data[1]), &panels))
	require.Len(t, panels, 1)
	assert.Equal(t, "memory [GiB]", panels[0].Label)
	require.Len(t, panels[0].Lines, 4)
	for i, l := range panels[0].Lines {
		assert.Equal(t, i%2 == 0, l.Dashed)
		assert.Equal(t, i/2, l.Color)
		gaps := 0
		for k := range l.X {
			if l.Y[k] == nil {
				gaps++
			}
			assert.False(t, k > 0 && l.X[k] <= l.X[k-1], "times rise")
		}
		assert.Equal(t, 1, gaps)
	}
}

func TestSave(t *testing.T) {
	fig, err := Chart(twoGPUs(), ChartConfig{})
	require.NoError(t, err)
	dir := t.TempDir()
	for _, ext := range ChartFormats {
		path := filepath.Join(dir, "chart"+ext)
		require.NoError(t, fig.Save(path, false))
		before, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.ErrorIs(t, fig.Save(path, false), os.ErrExist)
		require.NoError(t, fig.Save(path, true))
		after, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, len(before), len(after))
	}
	assert.ErrorContains(t, fig.Save(filepath.Join(dir, "chart.gif"), false), "charts are written as .png, .svg, .html")
	assert.ErrorContains(t, fig.Save(filepath.Join(dir, "no", "chart.png"), false), "writing a chart: ")
}
