package chart

import (
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

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
	Stepped bool   // a figure holds until the next: memory does not rise on a slope
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
	Seconds float64 `json:"seconds"`
}

func timeUnitOf(span float64) timeUnit {
	for _, u := range []timeUnit{{"d", 24 * 3600}, {"h", 3600}, {"min", 60}} {
		if span > 2*u.Seconds {
			return u
		}
	}
	return timeUnit{"s", 1}
}
