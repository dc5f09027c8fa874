package nvml

import (
	"slices"
	"time"
)

// Join puts recordings beside each other, with one axis of time. Devices get the name of their
// recording as Device.File; names has one for each.
//
// If all recordings have a Start and were taken at the same time, or one after the other without
// a pause, the axis is that of the clock. Otherwise each recording begins at zero, so that runs
// of different days can be compared.
func Join(names []string, recordings []Recording) Recording {
	if len(recordings) == 1 {
		return recordings[0]
	}
	joined := Recording{Numbered: len(recordings) > 0}
	start, simultaneous := commonStart(recordings)
	for i, rec := range recordings {
		shift := time.Duration(0)
		if simultaneous {
			joined.Start = start
			shift = rec.Start.Sub(start)
		}
		for _, d := range rec.Devices {
			d.File = names[i]
			joined.Devices = append(joined.Devices, d)
		}
		for _, s := range rec.Series {
			s.Device.File = names[i]
			joined.Series = append(joined.Series, s.shifted(shift))
		}
		joined.Failures += rec.Failures
		joined.Numbered = joined.Numbered && rec.Numbered
	}
	return joined
}

// commonStart returns the earliest start, and whether the recordings cover one span of time without a pause.
func commonStart(recordings []Recording) (start time.Time, simultaneous bool) {
	inOrder := slices.Clone(recordings)
	slices.SortStableFunc(inOrder, func(x, y Recording) int { return x.Start.Compare(y.Start) })
	end := time.Time{}
	for i, rec := range inOrder {
		if rec.Start.IsZero() || rec.Numbered || i > 0 && rec.Start.After(end) {
			return time.Time{}, false
		}
		if last := rec.Start.Add(rec.lastSample()); i == 0 || last.After(end) {
			end = last
		}
	}
	return inOrder[0].Start, true
}

func (r Recording) lastSample() (last time.Duration) {
	for _, s := range r.Series {
		last = max(last, s.total.last)
	}
	return last
}

// shifted returns the series with all times later by a duration.
func (s Series) shifted(by time.Duration) Series {
	s.points = slices.Clone(s.points)
	for i := range s.points {
		s.points[i].time += by
		s.points[i].end += by
	}
	s.total.time += by
	s.total.end += by
	s.total.first += by
	s.total.last += by
	return s
}
