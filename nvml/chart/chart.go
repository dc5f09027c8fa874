// Package chart draws the recordings of package nvml as a picture (PNG, SVG) or as a page for
// the browser, also while the recording goes on:
//
//	err = chart.WriteFile("memory.png", false, rec.Recording().Series, chart.Config{Last: 50})
//
// It draws what it is given, and never asks a driver. It is a separate package, so that a
// program that only queries or records compiles no plotting library.
package chart

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/internal/userfile"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// Config says what a chart looks like. The zero Config is the whole recording at 800 by 500
// pixels.
type Config struct {
	Title string
	Last  int // only the time of the last n samples of the longest series; 0 means all
	// Numbered says that the times of the series are the numbers of samples: see nvml.Recording.
	Numbered bool

	// Width and Height are in pixels. Each panel after the first adds half of Height. A key that
	// takes more than a third of Height makes the chart higher by the rest, so that the lines of
	// sixteen GPUs have room.
	Width, Height int
}

// Write draws series of one recording over time in a format: ".png", ".svg", or ".html", a page that needs
// no network: drag to zoom, double click to see all, and the values under the pointer. Series of one unit share a panel.
// Each device has a line, with its peak and its capacity marked; a gap in its samples is a gap
// in the line. A process has a thin line, with a dot for each sample where there is room. It is
// sampled less often than its device, so its line ends where the device's memory changes: from
// there until the next sample its memory is unknown. Series without a sample are left out. It
// is an error if none is left, or if a side of the chart is not of 200 to 10000 pixels.
func Write(w io.Writer, format string, series []nvml.Series, cfg Config) error {
	f, err := newFigure(series, cfg)
	if err != nil {
		return err
	}
	return f.write(w, format)
}

func newFigure(series []nvml.Series, cfg Config) (*figure, error) {
	f := &figure{title: cfg.Title, numbered: cfg.Numbered, width: orDefault(cfg.Width, 800), height: orDefault(cfg.Height, 500)}
	series, start := lastOf(series, cfg.Last)
	for _, s := range series {
		if s.Known() {
			f.series = append(f.series, s)
		}
	}
	if len(f.series) == 0 {
		return nil, nothingToDraw(series)
	}
	f.title = f.withModel(f.title)
	f.from, f.to = span(f.series, start)
	if f.time = timeUnitOf(f.to - f.from); cfg.Numbered {
		f.time = timeUnit{Name: "sample", Title: "sample", Seconds: 1}
	}
	for _, unit := range unitsOf(f.series) {
		f.panels = append(f.panels, f.newPanel(unit))
	}
	least := f.height / 3
	f.height += (len(f.panels) - 1) * f.height / 2
	if err := f.checkSize(); err != nil {
		return nil, err
	}
	for _, p := range f.panels {
		f.height += max(0, int(newKey(p.Lines, float64(f.width)-2*margin).height())-least)
	}
	if err := f.checkSize(); err != nil {
		return nil, err
	}
	return f, nil
}

func (f *figure) checkSize() error {
	if min(f.width, f.height) < minPixels || max(f.width, f.height) > maxPixels {
		return fmt.Errorf("a chart of %d by %d pixels: each side takes %d to %d", f.width, f.height, minPixels, maxPixels)
	}
	return nil
}

// lastOf cuts all series to the time in which the longest took its last n samples: a process has
// fewer samples than its device. The value at the start of that time is kept.
func lastOf(series []nvml.Series, n int) (cut []nvml.Series, start time.Duration) {
	if n <= 0 {
		return series, 0
	}
	for _, s := range series {
		first, _ := s.Last(n).Span()
		start = max(start, first)
	}
	for _, s := range series {
		cut = append(cut, s.Since(start))
	}
	return cut, start
}

// span returns the times of the first sample from start on and of the last sample. The two always
// differ.
func span(series []nvml.Series, start time.Duration) (from, to float64) {
	from = math.Inf(1)
	for _, s := range series {
		first, last := s.Span()
		from, to = min(from, first.Seconds()), max(to, last.Seconds())
	}
	from = max(from, start.Seconds())
	if from < (to-from)/100 {
		from = 0 // the first sample comes some microseconds after the start
	}
	return from, max(to, from+0.1)
}

func nothingToDraw(series []nvml.Series) error {
	for _, s := range series {
		if s.Note != "" {
			return fmt.Errorf("nothing to draw, no series has a sample: %s", s.Note)
		}
	}
	return errors.New("nothing to draw, no series has a sample")
}

func orDefault(n, def int) int {
	if n <= 0 {
		return def
	}
	return n
}

func (f *figure) write(w io.Writer, format string) error {
	switch format {
	case ".png":
		return writePNG(w, f)
	case ".svg":
		return writeSVG(w, f)
	case ".html":
		return writeHTML(w, f)
	}
	return fmt.Errorf("a chart in the format %q: want %s", format, strings.Join(formats, ", "))
}

var formats = []string{".png", ".svg", ".html"}

// WriteFile draws series as Write does, to a file, in the format of its name's ending. If the file exists and
// overwrite is false, the error is fs.ErrExist.
func WriteFile(path string, overwrite bool, series []nvml.Series, cfg Config) error {
	f, err := newFigure(series, cfg)
	if err != nil {
		return err
	}
	format := strings.ToLower(filepath.Ext(path))
	if !slices.Contains(formats, format) {
		return fmt.Errorf("%s: charts are written as %s", path, strings.Join(formats, ", "))
	}
	err = userfile.Write(path, overwrite, func(w io.Writer) error { return f.write(w, format) })
	switch {
	case errors.Is(err, fs.ErrExist):
		return fmt.Errorf("%s exists: choose another name, or allow overwriting it: %w", filepath.Clean(path), fs.ErrExist)
	case err != nil:
		return fmt.Errorf("writing a chart: %w", err)
	}
	return nil
}

// The shortest and the longest side of a chart, in pixels, with all panels together. A smaller
// chart cannot be read. Drawing a larger one takes over 400 MB of memory.
const (
	minPixels = 200
	maxPixels = 10000
)

// figure is a chart, laid out.
type figure struct {
	title         string
	oneModel      bool // of all GPUs: the title has it
	width, height int  // pixels, all panels together
	panels        []panel
	series        []nvml.Series
	from, to      float64 // seconds
	time          timeUnit
	numbered      bool // time counts samples
}

// panel is a pair of axes: lines of one unit over time in seconds.
type panel struct {
	Name, Unit string  // of the vertical axis: "memory", "GiB"
	Max        float64 // that the axis shows
	Lines      []line
	Rules      []rule
}

// line is a series in the panel's unit, cut into parts by its gaps.
type line struct {
	Name    string // name of the series
	Label   string // with its peak
	Color   int    // index in the palette, and beyond it another style of line
	Under   int    // lines drawn after this one that are the same: it is wider than they are
	Process bool   // one of a process: thin, with a dot at each sample where there is room
	Stepped bool   // a value holds until the next: memory does not rise on a slope
	parts   [][]sample
	dots    []sample
	peak    *sample // if it is marked
}

// rule is a level that is marked: a device's memory.
type rule struct {
	Label string  `json:"label"`
	Y     float64 `json:"y"`
}

type sample struct{ x, y float64 }

// timeUnit is the unit of a chart's time axis.
type timeUnit struct {
	Name    string  `json:"name"`
	Title   string  `json:"title"` // of the axis
	Seconds float64 `json:"seconds"`
}

func timeUnitOf(span float64) timeUnit {
	name, seconds := "s", 1.0
	for _, u := range []struct {
		name    string
		seconds float64
	}{{"d", 24 * 3600}, {"h", 3600}, {"min", 60}} {
		if span > 2*u.seconds {
			name, seconds = u.name, u.seconds
			break
		}
	}
	return timeUnit{name, "time [" + name + "]", seconds}
}
