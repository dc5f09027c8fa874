package bands

import "math"

// Axis says what a place on the horizontal axis means.
type Axis uint8

// The axes. On the axis of events, the state of moment m fills the places from m to m+1. On the axis of time, a place is in
// seconds from the first event.
const (
	ByEvent Axis = iota
	ByTime
)

// Range returns the ends of an axis.
func (x *Index) Range(a Axis) (from, to float64) {
	if a == ByTime {
		return 0, x.Seconds()
	}
	return 0, float64(x.Moments())
}

// Columns returns the first and the last moment of each of n columns of equal width between two places.
func (x *Index) Columns(a Axis, x0, x1 float64, n int) []Column {
	out := make([]Column, n)
	width := (x1 - x0) / float64(n)
	for i := range out {
		out[i] = x.Span(a, x0+float64(i)*width, x0+float64(i+1)*width)
		if i > 0 { // rounding must not turn them around
			out[i].From, out[i].To = max(out[i].From, out[i-1].From), max(out[i].To, out[i-1].To)
		}
	}
	return out
}

// Column is a range of moments, both included.
type Column struct{ From, To uint32 }

// Span returns the moments between two places, at least one.
func (x *Index) Span(a Axis, x0, x1 float64) Column {
	last := x.Moments() - 1
	if a == ByTime {
		from := x.clock.until(x0, true)
		return Column{from, max(from, x.clock.until(x1, false))}
	}
	from := min(float64(last), max(0, math.Floor(x0)))
	to := min(float64(last), max(from, math.Ceil(x1)-1))
	return Column{uint32(from), uint32(to)}
}
