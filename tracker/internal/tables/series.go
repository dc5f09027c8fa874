package tables

import (
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// windows is how many windows a series has at most; it has half as many at least,
// once there were that many marks.
const windows = 32

// Series is the level of one line of code over all marks: the lowest level in each of up to 32
// windows of equally many marks. When all windows are used, neighbours are merged, and a
// window covers twice as many marks.
type Series struct {
	Level mem.Tally // now, in contrast to the beginning of the series
	marks int       // entered
	width int       // marks a window
	low   [windows]mem.Tally
}

// NewSeries returns the series of a line whose level is 0.
func NewSeries() *Series { return &Series{width: 1} }

// Hold adds the current level for every mark up to that number.
func (s *Series) Hold(mark int) {
	for s.marks < mark {
		if s.marks == windows*s.width {
			s.join()
		}
		i := s.marks / s.width
		if s.marks == i*s.width || s.Level.Bytes < s.low[i].Bytes {
			s.low[i] = s.Level
		}
		s.marks = min(mark, (i+1)*s.width)
	}
}

func (s *Series) join() {
	for i := range windows / 2 {
		s.low[i] = lower(s.low[2*i], s.low[2*i+1])
	}
	s.width *= 2
}

func lower(x, y mem.Tally) mem.Tally {
	if y.Bytes < x.Bytes {
		return y
	}
	return x
}

// windows returns how many windows have begun.
func (s *Series) windows() int { return (s.marks + s.width - 1) / s.width }

// full returns the windows that are complete.
func (s *Series) full() []mem.Tally { return s.low[:s.marks/s.width] }

// Span returns how many marks the first and the last low-water mark are apart.
func (s *Series) Span() int { return (len(s.full()) - 1) * s.width }

// Gain returns the difference between these two.
func (s *Series) Gain() mem.Tally {
	low := s.full()
	return low[len(low)-1].Sub(low[0])
}

// What makes a series a growing one; see leaks.Growing.
const (
	minMarks    = 32
	minRises    = 8
	fallsInRise = 8
	stillRising = 6
)

// Grows reports whether the lowest levels rise over all the windows and have not levelled off.
func (s *Series) Grows() bool {
	if s.marks < minMarks {
		return false
	}
	low := s.full()
	var rises int
	var up, down int64
	for i, x := range low[1:] {
		switch change := int64(x.Bytes - low[i].Bytes); {
		case change > 0:
			rises++
			up += change
		case change < 0:
			down -= change
		}
	}
	last := len(low) - 1
	lately := int64(low[last].Bytes - low[last-last/4].Bytes)
	return rises >= minRises && down <= up/fallsInRise && lately >= (up-down)/stillRising
}
