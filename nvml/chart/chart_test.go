package chart

import (
	"bytes"
	"cmp"
	"encoding/json"
	"encoding/xml"
	"fmt"
	"image/color"
	"image/png"
	"math"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/internal/uplot"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

const gib = float64(1 << 30)

// entry is a line of a recording's file, by the keys of its quantities; a nil is
// a gap.
type entry map[string]any

// recording reads what a file with such lines holds.
func recording(t testing.TB, entries ...entry) []nvml.Series {
	t.Helper()
	name := filepath.Join(t.TempDir(), "samples.jsonl")
	f, err := os.Create(name)
	require.NoError(t, err)
	defer f.Close()
	out := json.NewEncoder(f)
	devices := make([]nvml.Device, 16)
	for i := range devices {
		devices[i] = nvml.Device{Index: i, UUID: fmt.Sprintf("GPU-%c", 'a'+i), Name: "NVIDIA H200"}
	}
	require.NoError(t, out.Encode(entry{"schema": "gpumemtrack.recording/1", "pid": 12345, "children": true, "devices": devices}))
	require.NoError(t, out.Encode(entry{"time_seconds": 0, "device": 0, "capacity_bytes": 24 * gib}))
	for _, l := range entries {
		require.NoError(t, out.Encode(l))
	}
	rec, err := nvml.ReadFile(name)
	require.NoError(t, err)
	return rec.Series
}

// seriesOf is a series of one sample a second; a nil is a gap.
func seriesOf(t testing.TB, q nvml.Quantity, values ...any) []nvml.Series {
	entries := make([]entry, len(values))
	for i, v := range values {
		entries[i] = entry{"time_seconds": i, "device": 0, q.Key(): v}
	}
	return recording(t, entries...)
}

// waves is a minute of the first devices, with a gap of four seconds, by the
// heights of each device's quantities.
func waves(t testing.TB, tops ...map[nvml.Quantity]float64) []nvml.Series {
	var entries []entry
	for i := range 301 {
		for device, quantities := range tops {
			l := entry{"time_seconds": float64(i) / 5, "device": device}
			for q, top := range quantities {
				l[q.Key()] = nil
				if i < 100 || i >= 120 {
					l[q.Key()] = top * math.Abs(math.Sin(float64(i)/40+float64(device)))
				}
			}
			entries = append(entries, l)
		}
	}
	return recording(t, entries...)
}

// twoGPUs is a recording of a process on two devices.
func twoGPUs(t testing.TB) []nvml.Series {
	return waves(t,
		map[nvml.Quantity]float64{nvml.MemoryUsed: 23 * gib, nvml.ProcessMemory: 20 * gib},
		map[nvml.Quantity]float64{nvml.MemoryUsed: 105 * gib, nvml.ProcessMemory: 91 * gib})
}

func TestPNG(t *testing.T) {
	fig, err := newFigure(twoGPUs(t), Config{Title: "a title"})
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, fig.write(&b, ".png"))
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

// drawing is what the tests look at in a drawing.
type drawing struct {
	Width  string    `xml:"width,attr"`
	Height string    `xml:"height,attr"`
	Paths  []element `xml:"path"`
	Texts  []element `xml:"text"`
}

type element struct {
	Stroke string `xml:"stroke,attr"`
	Dashes string `xml:"stroke-dasharray,attr"`
	D      string `xml:"d,attr"`
	Text   string `xml:",chardata"`
}

func drawn(t *testing.T, series []nvml.Series, cfg Config) (d drawing, texts []string, curves map[string]int) {
	t.Helper()
	fig, err := newFigure(series, cfg)
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, fig.write(&b, ".svg"))
	require.NoError(t, xml.Unmarshal(b.Bytes(), &d))
	curves = make(map[string]int)
	for _, text := range d.Texts {
		texts = append(texts, text.Text)
	}
	for _, p := range d.Paths {
		if strings.Count(p.D, "L") > 10 { // no axis, no grid
			curves[p.Stroke+map[bool]string{true: " dashed"}[p.Dashes != ""]]++
		}
	}
	return d, texts, curves
}

func TestSVG(t *testing.T) {
	drawing, texts, curves := drawn(t, twoGPUs(t), Config{Title: "a title"})
	assert.Equal(t, "800", drawing.Width)
	assert.Equal(t, "500", drawing.Height)
	for _, want := range []string{
		"a title, 2 x NVIDIA H200", "time [s]", "memory [GiB]", "0", "60", "100",
		"GPU 0 memory used, peak 23.0 GiB of 24.0 GiB", "GPU 0 pid 12345 and children, peak 20.0 GiB",
		"GPU 1 memory used, peak 105.0 GiB", "GPU 1 pid 12345 and children, peak 91.0 GiB",
	} {
		assert.Contains(t, texts, want)
	}
	assert.NotContains(t, texts, "-0")
	assert.Equal(t, map[string]int{"#0072b2": 2, "#003959": 2, "#d55e00": 2, "#6a2f00": 2}, curves, "four lines, each in two parts")
}

func TestADeviceAloneIsSolid(t *testing.T) {
	_, texts, curves := drawn(t, waves(t, map[nvml.Quantity]float64{nvml.MemoryUsed: 300 << 20}), Config{})
	assert.Equal(t, map[string]int{"#0072b2": 2}, curves)
	assert.Contains(t, texts, "memory [MiB]")
	assert.Contains(t, texts, "300")
}

func TestOnePanelAUnit(t *testing.T) {
	series := waves(t, map[nvml.Quantity]float64{
		nvml.MemoryUsed: gib, nvml.Power: 700, nvml.Utilization: 100,
		nvml.FanSpeed: 40, nvml.ClockSM: 1980, nvml.ClockMemory: 2619,
	})
	drawing, texts, curves := drawn(t, series, Config{})
	for _, want := range []string{"memory [MiB]", "power [W]", "share [%]", "clock [MHz]", "time [s]"} {
		assert.Contains(t, texts, want)
	}
	assert.Equal(t, "1250", drawing.Height, "a panel more is half a chart more")
	assert.Equal(t, map[string]int{"#0072b2": 8, "#d55e00": 4}, curves)
}

func TestLastSamples(t *testing.T) {
	fig, err := newFigure(twoGPUs(t), Config{Last: 50})
	require.NoError(t, err)
	assert.InDelta(t, 50.2, fig.from, 1e-9)
	assert.InDelta(t, 60, fig.to, 1e-9)
	assert.Equal(t, 50, fig.series[0].Len())
}

// A process is asked for less often than its device: the last samples of both
// are of the same time.
func TestLastSamplesOfOneTime(t *testing.T) {
	var entries []entry
	for i := range 101 {
		e := entry{"time_seconds": float64(i) / 10, "device": 0, nvml.MemoryUsed.Key(): gib}
		if i%10 == 5 {
			e[nvml.ProcessMemory.Key()] = float64(i)
		}
		entries = append(entries, e)
	}
	series := recording(t, entries...)
	fig, err := newFigure(series, Config{Last: 8})
	require.NoError(t, err)
	assert.InDelta(t, 9.3, fig.from, 1e-9)
	assert.InDelta(t, 10, fig.to, 1e-9)
	assert.Equal(t, [2]int{8, 2}, [2]int{fig.series[0].Len(), fig.series[1].Len()}, "what held at the start, too")
	lines := fig.panels[0].Lines
	assert.Equal(t, []sample{{9.3, 85 / gib}, {9.5, 95 / gib}, {10, 95 / gib}}, lines[1].parts[0], "and at the end")
	_, texts, _ := drawn(t, series, Config{Last: 8})
	assert.Contains(t, texts, "9.3")
	assert.NotContains(t, texts, "8.5", "where the process's first sample is")
}

// What holds at the end is drawn there, but not for longer than it is known.
func TestTheLastFigureHolds(t *testing.T) {
	held := func(q nvml.Quantity, end int) []sample {
		fig, err := newFigure(recording(t,
			entry{"time_seconds": 0, "device": 0, q.Key(): 1}, entry{"time_seconds": 2, "device": 0, q.Key(): 1},
			entry{"time_seconds": end, "device": 1, q.Key(): 1}), Config{})
		require.NoError(t, err)
		return fig.panels[0].Lines[0].parts[0]
	}
	assert.Len(t, held(nvml.MemoryUsed, 5), 3)
	assert.Len(t, held(nvml.MemoryUsed, 6), 2, "two samples are missing")
	assert.Len(t, held(nvml.Power, 5), 2, "that would not be a level")
}

func TestASampleAloneIsADot(t *testing.T) {
	fig, err := newFigure(seriesOf(t, nvml.MemoryUsed, gib, nil, 2*gib, nil, gib), Config{})
	require.NoError(t, err)
	assert.Len(t, fig.panels[0].Lines[0].parts, 3)
	var b bytes.Buffer
	assert.NoError(t, fig.write(&b, ".png"))
	fig, err = newFigure(seriesOf(t, nvml.MemoryUsed, 0), Config{})
	require.NoError(t, err)
	assert.NoError(t, fig.write(&b, ".svg"), "one sample, of nothing")
}

func TestThinnedPeaksAreDrawn(t *testing.T) {
	values := make([]any, 10000)
	for i := range values {
		values[i] = map[bool]float64{true: 9, false: 1}[i == 7777]
	}
	fig, err := newFigure(seriesOf(t, nvml.Power, values...), Config{})
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
	_, err := newFigure(nil, Config{})
	assert.ErrorContains(t, err, "nothing to draw")
	_, err = newFigure([]nvml.Series{{Note: "the GPU is lost"}}, Config{})
	assert.ErrorContains(t, err, "the GPU is lost")
}

func TestSizes(t *testing.T) {
	_, err := newFigure(twoGPUs(t), Config{Width: 1 << 20})
	assert.ErrorContains(t, err, "a chart of 1048576 by 500 pixels: each side takes 200 to 10000")
	_, err = newFigure(twoGPUs(t), Config{Height: 50})
	assert.ErrorContains(t, err, "800 by 50 pixels")
	panels := waves(t, map[nvml.Quantity]float64{nvml.MemoryUsed: gib, nvml.Power: 700, nvml.Utilization: 100})
	_, err = newFigure(panels, Config{Height: 6000})
	assert.ErrorContains(t, err, "800 by 12000 pixels", "all panels together")
}

// What does not fit is cut, and says so.
func TestLongTexts(t *testing.T) {
	_, texts, _ := drawn(t, twoGPUs(t), Config{Title: strings.Repeat("long ", 50), Width: 200, Height: 300})
	for _, text := range texts {
		assert.Less(t, len(text), 40, text)
	}
	assert.Regexp(t, "^long long .*…$", texts[0])
	assert.Regexp(t, `(?m)^GPU 1 pid 12345.*…$`, strings.Join(texts, "\n"))
}

func TestTicks(t *testing.T) {
	labels := func(n int, from, to float64) (list []string) {
		for _, tick := range (ticks{n, 1}).between(from, to) {
			list = append(list, tick.label)
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
	series := twoGPUs(t)
	series[1].Note = `a <b>note</b> & "more"`
	fig, err := newFigure(series, Config{Title: "</script><script>alert(1)"})
	require.NoError(t, err)
	var b bytes.Buffer
	require.NoError(t, fig.write(&b, ".html"))
	text := b.String()
	assert.Contains(t, text, uplot.JS)
	assert.Contains(t, text, "Copyright (c) 2022 Leon Sorokin")
	assert.NotContains(t, text, "<script>alert")
	assert.Contains(t, text, "a &lt;b&gt;note")
	assert.NotRegexp(t, `(src|href)=`, strings.ReplaceAll(text, uplot.JS, ""), "it needs no network")

	data := regexp.MustCompile(`<script type="application/json" id="data">(.*)</script>\n`).FindStringSubmatch(text)
	require.NotNil(t, data)
	var content struct{ Panels []pagePanel }
	require.NoError(t, json.Unmarshal([]byte(data[1]), &content))
	panels := content.Panels
	require.Len(t, panels, 1)
	assert.Equal(t, [2]string{"memory", "GiB"}, [2]string{panels[0].Name, panels[0].Unit})
	require.Len(t, panels[0].Lines, 4)
	for i, l := range panels[0].Lines {
		assert.Empty(t, l.Dashes)
		assert.Equal(t, i%2 == 1, l.Width < 1, "a process")
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

func TestWriteFile(t *testing.T) {
	dir := t.TempDir()
	for _, ext := range formats {
		path := filepath.Join(dir, "chart"+ext)
		require.NoError(t, WriteFile(path, false, twoGPUs(t), Config{}))
		before, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.ErrorIs(t, WriteFile(path, false, twoGPUs(t), Config{}), os.ErrExist)
		require.NoError(t, WriteFile(path, true, twoGPUs(t), Config{}))
		after, err := os.ReadFile(path)
		require.NoError(t, err)
		assert.Equal(t, len(before), len(after))
	}
	assert.ErrorContains(t, WriteFile(filepath.Join(dir, "chart.gif"), false, twoGPUs(t), Config{}), "charts are written as .png, .svg, .html")
	assert.ErrorContains(t, WriteFile(filepath.Join(dir, "no", "chart.png"), false, twoGPUs(t), Config{}), "writing a chart: ")
}

// TestRecordingAloneIsLight holds the promise of the package comment.
func TestRecordingAloneIsLight(t *testing.T) {
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("go list needs the go command in PATH")
	}
	out, err := exec.Command(tool, "list", "-deps", "github.com/gpumemtrack/gpumemtrack/nvml").Output()
	require.NoError(t, err)
	for path := range strings.FieldsSeq(string(out)) {
		for _, heavy := range []string{"gonum", "font", "/template", "image", "nvml/chart", "uplot"} {
			assert.NotContains(t, path, heavy)
		}
	}
}
