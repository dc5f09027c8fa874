package html

import (
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

// chart is memory over time, as uPlot takes it: a column each. Seconds count
// from Start.
type chart struct {
	Start     time.Time      `json:"start"`
	Seconds   []float64      `json:"seconds"`
	Allocated []*alloc.Bytes `json:"allocated"` // nil where nothing new is known
	Reserved  []*alloc.Bytes `json:"reserved"`
	Driver    []*alloc.Bytes `json:"driver"`
	Marks     []moment       `json:"marks"`
	OOMs      []moment       `json:"ooms"`
}

// moment is a line across the chart.
type moment struct {
	Seconds float64 `json:"seconds"`
	Label   string  `json:"label"`
	Mark    int     `json:"mark,omitempty"` // its number, if it has a table
}

// The chart's bounds.
const (
	stretches  = 1000 // of time, each with two points
	maxMoments = 500  // the last ones
)

func newChart(r export.Record) chart {
	begin := r.Begin()
	end := max(0, r.Snapshot.Time.Sub(begin.Time))
	b := chartBuilder{
		chart:    chart{Start: begin.Time, Marks: []moment{}, OOMs: []moment{}},
		segments: begin.Segments,
		stretch:  max(1, end/stretches),
		marks:    make(map[int]*tracker.Mark),
	}
	for _, m := range r.Marks {
		b.marks[m.Seq] = m
	}
	levels := begin.Levels
	b.point(0, levels, b.segments)
	var at time.Duration
	for e := range r.Events() {
		at = min(max(at, e.Time.Sub(begin.Time)), end) // a clock may jump
		levels = levels.After(e)
		b.level(at, levels)
		b.moment(at, e)
	}
	b.flush()
	b.point(end, export.Levels{Allocated: r.Snapshot.Allocated, Reserved: r.Snapshot.Reserved}, true)
	b.driver(r.Snapshot.Levels)
	b.Marks, b.OOMs = last(b.Marks), last(b.OOMs)
	return b.chart
}

// chartBuilder keeps of each stretch of time its highest and its last level.
type chartBuilder struct {
	chart
	segments bool // the events tell of reserved memory
	stretch  time.Duration
	marks    map[int]*tracker.Mark

	in     time.Duration // the stretch
	any    bool
	highAt time.Duration
	high   export.Levels
	lastAt time.Duration
	last   export.Levels
}

func (b *chartBuilder) level(at time.Duration, l export.Levels) {
	if in := at / b.stretch; !b.any || in != b.in {
		b.flush()
		b.in, b.any = in, true
		b.highAt, b.high = at, l
	}
	if l.Allocated >= b.high.Allocated {
		b.highAt, b.high = at, l
	}
	b.lastAt, b.last = at, l
}

// flush writes the stretch's points.
func (b *chartBuilder) flush() {
	if !b.any {
		return
	}
	b.any = false
	if b.highAt != b.lastAt {
		b.point(b.highAt, b.high, b.segments)
	}
	b.point(b.lastAt, b.last, b.segments)
}

func (b *chartBuilder) point(at time.Duration, l export.Levels, reserved bool) {
	b.Seconds = append(b.Seconds, at.Seconds())
	b.Allocated = append(b.Allocated, &l.Allocated)
	if reserved {
		b.Reserved = append(b.Reserved, &l.Reserved)
	} else {
		b.Reserved = append(b.Reserved, nil)
	}
	b.Driver = append(b.Driver, nil)
}

// driver says what the driver had in use at the last point.
func (b *chartBuilder) driver(l tracker.Levels) {
	if l.DriverUsed >= 0 {
		b.Driver[len(b.Driver)-1] = &l.DriverUsed
	}
}

// moment adds a mark or a refusal.
func (b *chartBuilder) moment(at time.Duration, e tracker.Event) {
	switch e.Action {
	case tracker.OutOfMemory:
		b.OOMs = keepLast(append(b.OOMs, moment{Seconds: at.Seconds(), Label: "out of memory: " + e.Requested.String()}))
	case tracker.Marked:
		line := moment{Seconds: at.Seconds(), Label: "mark"}
		if m := b.marks[e.Mark]; m != nil {
			line.Mark = m.Seq
			b.flush()
			b.point(at, export.Levels{Allocated: m.Allocated, Reserved: m.Reserved}, true)
			b.driver(m.Levels)
		}
		b.Marks = keepLast(append(b.Marks, line))
	}
}

// keepLast bounds a list that grows.
func keepLast(moments []moment) []moment {
	if len(moments) > 2*maxMoments {
		moments = append(moments[:0], last(moments)...)
	}
	return moments
}

func last(moments []moment) []moment { return moments[max(0, len(moments)-maxMoments):] }
