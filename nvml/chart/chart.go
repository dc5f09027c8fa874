package chart

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// Config says how a chart looks. The zero Config is the whole recording at 800
// by 500 pixels.
type Config struct {
	Title         string
	Last          int // only the last n samples of the series that has most of them, and what the others have of that time; 0 means all
	Width, Height int // pixels; each panel after the first makes the chart higher by a half
}

// What a chart's side can be, all panels together. Less cannot be read, more
// takes over 400 MB.
const (
	MinPixels = 200
	MaxPixels = 10000
)

// Figure is a chart that is ready to be written, as often as one likes.
type Figure struct {
	title         string
	width, height int // pixels, all panels together
	panels        []panel
	series        []nvml.Series
	from, to      float64 // seconds
}

// panel is a pair of axes: lines of one unit over time in seconds.
type panel struct {
	Name, Unit string // of the vertical axis: "memory", "GiB"
	Max        float64
	Lines      []line
}

// line is a series in the panel's unit. Its parts are what lies between gaps.
type line struct {
	Label   string
	Color   int // index in the palette
	Dashed  bool
	Stepped bool // a figure holds until the next: memory does not rise on a slope
	parts   [][]sample
}

type sample struct{ x, y float64 }

// New makes a chart of series of one recording over time, those of one unit in
// one panel: a line a device or process, the whole device's memory dashed beside
// that of its process, and gaps as gaps. Series that tell nothing are left out;
// that none is left is an error.
func New(series []nvml.Series, cfg Config) (*Figure, error) {
	f := &Figure{title: cfg.Title, width: orDefault(cfg.Width, 800), height: orDefault(cfg.Height, 500)}
	series, start := lastOf(series, cfg.Last)
	for _, s := range series {
		if s.Known() {
			f.series = append(f.series, s)
		}
	}
	if len(f.series) == 0 {
		return nil, nothingToDraw(series)
	}
	f.from, f.to = span(f.series, start)
	for _, unit := range unitsOf(f.series) {
		f.panels = append(f.panels, f.newPanel(unit))
	}
	f.height += (len(f.panels) - 1) * f.height / 2
	if min(f.width, f.height) < MinPixels || max(f.width, f.height) > MaxPixels {
		return nil, fmt.Errorf("a chart of %d by %d pixels: each side takes %d to %d", f.width, f.height, MinPixels, MaxPixels)
	}
	return f, nil
}

// lastOf cuts series to the time that the last n samples of one of them took: a
// process's are fewer than its device's. What held at its start stays.
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

// span returns the times of the first sample from start on and of the last one,
// which are never one.
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

// unitsOf returns the units that series have, in the order of their first use.
func unitsOf(series []nvml.Series) []string {
	var units []string
	for _, s := range series {
		if !slices.Contains(units, s.Quantity.Unit()) {
			units = append(units, s.Quantity.Unit())
		}
	}
	return units
}

func (f *Figure) newPanel(unit string) panel {
	var p panel
	var series []nvml.Series
	for _, s := range f.series {
		if s.Quantity.Unit() == unit {
			series = append(series, s)
			p.Max = max(p.Max, s.Max())
		}
	}
	scale := 1.0
	p.Name, p.Unit = panelName(series), unit
	if series[0].Quantity.IsMemory() {
		p.Name = "memory"
		scale, p.Unit = binaryUnit(p.Max)
	}
	p.Max /= scale
	colors := make(map[string]int)
	for _, s := range series {
		p.Lines = append(p.Lines, line{
			Label: s.Label(), Color: colorOf(colors, s), Dashed: isDashed(s, series),
			Stepped: s.Quantity.IsMemory(), parts: f.partsOf(s, scale),
		})
	}
	return p
}

// panelName is what the series of a panel have in common.
func panelName(series []nvml.Series) string {
	name := series[0].Quantity.String()
	for _, s := range series[1:] {
		if s.Quantity.String() == name {
			continue
		}
		if strings.HasSuffix(name, "clock") {
			return "clock"
		}
		return "share"
	}
	return name
}

// binaryUnit returns the largest unit of which the maximum has at least one.
func binaryUnit(maximum float64) (scale float64, name string) {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB", "PiB"}
	i := 0
	for scale = 1; i < len(units)-1 && maximum >= scale*float64(alloc.KiB); i++ {
		scale *= float64(alloc.KiB)
	}
	return scale, units[i]
}

// colorOf gives a device's memory and its process's one color, and every other
// quantity of a device its own.
func colorOf(colors map[string]int, s nvml.Series) int {
	key := s.Device.UUID
	if !s.Quantity.IsMemory() {
		key += s.Quantity.Key()
	}
	if _, ok := colors[key]; !ok {
		colors[key] = len(colors)
	}
	return colors[key]
}

// isDashed reports whether s is a device's total beside its process's part.
func isDashed(s nvml.Series, series []nvml.Series) bool {
	return s.Quantity == nvml.MemoryUsed && slices.ContainsFunc(series, func(o nvml.Series) bool {
		return o.Quantity == nvml.ProcessMemory && o.Device.UUID == s.Device.UUID
	})
}

// partsOf splits a series at its gaps. A point of several samples is drawn as
// its minimum and its maximum, so that no peak is lost. One from before the chart's
// beginning holds there.
func (f *Figure) partsOf(s nvml.Series, scale float64) [][]sample {
	var parts [][]sample
	var part []sample
	for p := range s.Points() {
		if p.IsGap() {
			if part != nil {
				parts, part = append(parts, part), nil
			}
			continue
		}
		x := max(p.Time.Seconds(), f.from)
		part = append(part, sample{x, p.Min / scale})
		if p.Max > p.Min {
			part = append(part, sample{x, p.Max / scale})
		}
	}
	if part == nil {
		return parts
	}
	if n := len(part); s.Quantity.IsMemory() && holdsUntil(s, f.to) {
		part = append(part, sample{f.to, part[n-1].y})
	}
	return append(parts, part)
}

// holdsUntil reports whether the last sample of a series, a process's that is
// asked for less often, is drawn to the chart's end: if no two are missing there.
func holdsUntil(s nvml.Series, end float64) bool {
	_, last := s.Span()
	interval := 1.0
	if rate := s.SamplingRate(); rate > 0 {
		interval = 1 / rate
	}
	rest := end - last.Seconds()
	return !s.Ended && rest > 0 && rest < 2*interval
}

// Formats are the endings that Save knows.
var Formats = []string{".png", ".svg", ".html"}

// Save writes the chart to a file, in the format that its name ends with. A file
// that exists is an error, fs.ErrExist, unless overwrite is true.
func (f *Figure) Save(path string, overwrite bool) error {
	write, ok := map[string]func(io.Writer) error{".png": f.PNG, ".svg": f.SVG, ".html": f.HTML}[strings.ToLower(filepath.Ext(path))]
	if !ok {
		return fmt.Errorf("%s: charts are written as %s", path, strings.Join(Formats, ", "))
	}
	var b bytes.Buffer
	if err := write(&b); err != nil {
		return fmt.Errorf("drawing the chart %s: %w", path, err)
	}
	flags := os.O_WRONLY | os.O_CREATE | os.O_TRUNC
	if !overwrite {
		flags |= os.O_EXCL
	}
	file, err := os.OpenFile(path, flags, 0o644)
	if errors.Is(err, fs.ErrExist) {
		return fmt.Errorf("%s exists: choose another name, or allow overwriting it: %w", filepath.Clean(path), fs.ErrExist)
	}
	if err != nil {
		return fmt.Errorf("writing a chart: %w", err)
	}
	_, err = b.WriteTo(file)
	if err := errors.Join(err, file.Close()); err != nil {
		return fmt.Errorf("writing a chart: %w", err)
	}
	return nil
}
