package chart

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/nvml"
)

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

// holdsUntil reports whether the last sample of a series is drawn to the chart's end:
// if no two are missing there.
func holdsUntil(s nvml.Series, end float64) bool {
	_, last := s.Span()
	interval := 1.0
	if rate := s.SamplingRate(); rate > 0 {
		interval = 1 / rate
	}
	rest := end - last.Seconds()
	return !s.Ended && rest > 0 && rest < 2*interval
}

// heldParts draws a process, which is asked for less often than its device. Its value is assumed to
// stay until the device's memory changes; from then on it is unknown, so the line ends there unless
// the process's next sample comes first.
func (f *Figure) heldParts(s, device nvml.Series, scale float64) (parts [][]sample, dots []sample) {
	changes := changesOf(device)
	points := slices.Collect(s.Points())
	var part []sample
	end := func() {
		if part != nil {
			parts, part = append(parts, part), nil
		}
	}
	for i, p := range points {
		if p.IsGap() {
			end()
			continue
		}
		at := p.Time.Seconds()
		here := sample{max(at, f.from), p.Max / scale}
		part, dots = append(part, here), append(dots, here)
		next := f.to
		if i+1 < len(points) {
			next = points[i+1].Time.Seconds()
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
	var before *nvml.Point
	for p := range device.Points() {
		if p.IsGap() {
			continue
		}
		if before != nil && (p.Min != before.Min || p.Max != before.Max) {
			times = append(times, p.Time.Seconds())
		}
		before = &p
	}
	return times
}

// peakOf returns the highest sample of a series.
func (f *Figure) peakOf(s nvml.Series, scale float64) *sample {
	for p := range s.Points() {
		if !p.IsGap() && p.Max == s.Max() && p.Max > 0 {
			return &sample{max(p.Time.Seconds(), f.from), p.Max / scale}
		}
	}
	return nil
}
