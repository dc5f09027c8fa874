package nvml

import "time"

// buffer keeps a series in bounded memory. Each point takes width queries; when
// the buffer is full, neighbours are merged two by two and width doubles, so
// that what is left covers the whole time evenly and keeps every minimum and
// maximum. A gap that is shorter than a point is counted and no longer seen.
type buffer struct {
	points []Point
	width  int // queries a point, a power of two
	total  summary
}

// defaultPoints is a chart's width several times over, in 224 KiB a series.
const defaultPoints = 4096

func newBuffer(size int) *buffer {
	return &buffer{points: make([]Point, 0, max(size&^1, 2)), width: 1}
}

// add appends a sample, or a gap if ok is false.
func (b *buffer) add(t time.Duration, v float64, ok bool) {
	p := Point{Time: t, end: t, Gaps: 1}
	if ok {
		p = Point{Time: t, end: t, Min: v, Max: v, sum: v, Samples: 1}
	}
	b.total.add(p)
	if n := len(b.points); n > 0 {
		if last := &b.points[n-1]; last.Samples+last.Gaps < b.width {
			last.merge(p)
			return
		}
	}
	if len(b.points) == cap(b.points) {
		b.halve()
	}
	b.points = append(b.points, p)
}

func (b *buffer) halve() {
	half := len(b.points) / 2
	for i := range half {
		p := b.points[2*i]
		p.merge(b.points[2*i+1])
		b.points[i] = p
	}
	b.points = b.points[:half]
	b.width *= 2
}
