package chart

import (
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

// partsOf splits a series at its gaps. A point of several samples is drawn as
// its minimum and its maximum, so that no peak is lost. One from before the chart's
// beginning holds there.
func (f *figure) partsOf(s nvml.Series, scale float64) [][]sample {
	var parts [][]sample
	var part []sample
	for t, v := range s.Points() {
		if !math.IsNaN(v) {
			part = append(part, sample{max(t.Seconds(), f.from), v / scale})
		} else if part != nil {
			parts, part = append(parts, part), nil
		}
	}
	if part == nil {
		return parts
	}
	if n := len(part); s.Quantity.Unit() == "MB" && holdsUntil(s, f.to) {
		part = append(part, sample{f.to, part[n-1].y})
	}
	return append(parts, part)
}

// holdsUntil reports whether the last sample of a series is drawn to the chart's end:
// if no two are missing there.
func holdsUntil(s nvml.Series, end float64) bool {
	_, last := s.Span()
	interval := 1.0
	if rate := samplingRate(s); rate > 0 {
		interval = 1 / rate
	}
	rest := end - last.Seconds()
	return !s.Ended && rest > 0 && rest < 2*interval
}

// moment is what a series has at one time, in seconds: samples from low to high, or NaN for a gap.
type moment struct{ at, low, high float64 }

func pointsOf(s nvml.Series) (points []moment) {
	for t, v := range s.Points() {
		at, last := t.Seconds(), len(points)-1
		if last >= 0 && points[last].at == at && v > points[last].low {
			points[last].high = max(points[last].high, v)
			continue
		}
		points = append(points, moment{at, v, v})
	}
	return points
}

// samplingRate returns the samples per second, or 0 if there are fewer than two.
func samplingRate(s nvml.Series) float64 {
	if s.Duration() <= 0 {
		return 0
	}
	return float64(s.Len()-1) / s.Duration().Seconds()
}

// heldParts draws a process, which is asked for less often than its device. Its value is assumed to
// stay until the device's memory changes; from then on it is unknown, so the line ends there unless
// the process's next sample comes first.
func (f *figure) heldParts(s, device nvml.Series, scale float64) (parts [][]sample, dots []sample) {
	changes := changesOf(device)
	points := pointsOf(s)
	var part []sample
	end := func() {
		if part != nil {
			parts, part = append(parts, part), nil
		}
	}
	for i, p := range points {
		if math.IsNaN(p.low) {
			end()
			continue
		}
		at := p.at
		here := sample{max(at, f.from), p.high / scale}
		part, dots = append(part, here), append(dots, here)
		next := f.to
		if i+1 < len(points) {
			next = points[i+1].at
		} else if !holdsUntil(s, f.to) {
			break
		}
		k, _ := slices.BinarySearchFunc(changes, at, func(change, at float64) int {
			if change <= at {
				return -1
			}
			return 1
		})
		if k < len(changes) && changes[k] < next {
			part = append(part, sample{max(changes[k], f.from), here.y})
			end()
		} else if i+1 == len(points) {
			part = append(part, sample{f.to, here.y})
		}
	}
	end()
	return parts, dots
}

// changesOf returns the times at which a device's memory was seen to have changed.
func changesOf(device nvml.Series) []float64 {
	var times []float64
	var before *moment
	for _, p := range pointsOf(device) {
		if math.IsNaN(p.low) {
			continue
		}
		if before != nil && (p.low != before.low || p.high != before.high) {
			times = append(times, p.at)
		}
		before = &p
	}
	return times
}

// peakOf returns the highest sample of a series.
func (f *figure) peakOf(s nvml.Series, scale float64) *sample {
	for t, v := range s.Points() {
		if v == s.Max() && v > 0 {
			return &sample{max(t.Seconds(), f.from), v / scale}
		}
	}
	return nil
}
