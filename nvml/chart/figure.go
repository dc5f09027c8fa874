package chart

import (
	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// What a chart's side can be, all panels together. Less cannot be read, more
// takes over 400 MB.
const (
	MinPixels = 200
	MaxPixels = 10000
)

// Figure is a chart that can be written any number of times.
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
