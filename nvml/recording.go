package nvml

import (
	"cmp"
	"fmt"
	"iter"
	"math"
	"slices"
	"strconv"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Recording is what a Recorder has recorded so far, or the content of a file.
type Recording struct {
	Start    time.Time     `json:"start"`             // zero if the file does not tell
	Numbered bool          `json:"numbered,omitzero"` // the file has no times: those of the series are the samples' numbers, as seconds
	Interval time.Duration `json:"interval_ns"`       // asked for; zero if the file does not tell
	Source   string        `json:"source"`            // what answered
	Target   Target        `json:"target"`            // the process recorded; zero for devices alone
	Devices  []Device      `json:"devices"`
	Series   []Series      `json:"series"`   // by device, then by quantity
	Failures int           `json:"failures"` // queries that a device did not answer; of a file see the gaps of Series
}

// of returns the series of one quantity, one for each device.
func (r Recording) of(q Quantity) []Series {
	return slices.DeleteFunc(slices.Clone(r.Series), func(s Series) bool { return s.Quantity != q })
}

// Duration returns the time from the recording's first sample to its last.
func (r Recording) Duration() time.Duration {
	var first, last time.Duration
	seen := false
	for _, s := range r.Series {
		if s.Len() == 0 {
			continue
		}
		if !seen || s.total.first < first {
			first = s.total.first
		}
		seen = true
		last = max(last, s.total.last)
	}
	return last - first
}

// header is what is known before the first sample.
type header struct {
	Schema     string       `json:"schema"`
	Start      time.Time    `json:"start"`
	Interval   float64      `json:"interval_seconds"`
	Source     string       `json:"source"`
	PID        int          `json:"pid,omitempty"`
	Children   bool         `json:"children,omitempty"`
	Quantities quantityKeys `json:"quantities"`
	Devices    []Device     `json:"devices"`
}

func (h *header) target() Target { return Target{PID: h.PID, Children: h.Children} }

// row is what one device answered at one time. A quantity that was asked for and is not known
// is a gap.
type row struct {
	time    time.Duration
	device  int // index in the header's list
	asked   quantitySet
	reading *Reading
}

// seriesNote is a note on a device's series, from a time on.
type seriesNote struct {
	time     time.Duration
	device   int
	quantity Quantity
	text     string
	ended    bool    // the device was lost: of all its quantities
	capacity float64 // if not 0, the size of the device's memory, from a note in the file
}

// store turns rows into series, while recording and while reading a file.
type store struct {
	header   header
	size     int
	tracks   []track
	failures int
	latest   time.Duration // of the last line, while a file is read
}

// advance refuses a time before one that was read already.
func (s *store) advance(t time.Duration) error {
	if t < s.latest {
		return fmt.Errorf("the time goes back from %v to %v: are these two recordings in one file?", s.latest, t)
	}
	s.latest = t
	return nil
}

// track is a device's part of a store.
type track struct {
	buffers  [numQuantities]*buffer
	notes    [numQuantities]string
	scope    Scope
	ended    bool
	capacity float64
}

func newStore(h header, size int) *store {
	return &store{header: h, size: size, tracks: make([]track, len(h.Devices))}
}

// prepare makes the buffers for a set of quantities, so that add makes none.
func (s *store) prepare(qs quantitySet) {
	for i := range s.tracks {
		for _, q := range qs.list() {
			s.buffer(i, q)
		}
	}
}

func (s *store) buffer(device int, q Quantity) *buffer {
	b := &s.tracks[device].buffers[q]
	if *b == nil {
		*b = newBuffer(s.size)
	}
	return *b
}

func (s *store) add(r row) {
	t := &s.tracks[r.device]
	if r.reading.known&memoryQuants != 0 {
		t.scope = r.reading.Scope
	}
	for q := range numQuantities {
		if r.asked.has(q) {
			v, ok := r.reading.Value(q)
			s.buffer(r.device, q).add(r.time, v, ok)
		}
	}
}

func (s *store) note(m seriesNote) {
	t := &s.tracks[m.device]
	switch {
	case m.capacity > 0:
		t.capacity = m.capacity
		return
	case !m.ended:
		t.notes[m.quantity] = m.text
		return
	}
	t.ended = true
	for q := range t.notes {
		t.notes[q] = m.text
	}
}

// recording copies the store's series.
func (s *store) recording() Recording {
	rec := Recording{
		Start: s.header.Start, Source: s.header.Source, Target: s.header.target(),
		Interval: time.Duration(s.header.Interval * float64(time.Second)),
		Devices:  slices.Clone(s.header.Devices), Failures: s.failures,
	}
	for i := range s.tracks {
		for q := range numQuantities {
			if s.tracks[i].buffers[q] != nil {
				rec.Series = append(rec.Series, s.series(i, q))
			}
		}
	}
	return rec
}

func (s *store) series(device int, q Quantity) Series {
	t := &s.tracks[device]
	b := t.buffers[q]
	out := Series{
		Device: s.header.Devices[device], Quantity: q, Scope: ofDevice, Note: t.notes[q], Ended: t.ended,
		total: b.total, points: slices.Clone(b.points),
	}
	switch {
	case q == ProcessMemory:
		out.Capacity = alloc.Bytes(t.capacity)
		out.Target = s.header.target()
		if out.Note == "" && out.total.samples+out.total.gaps == 0 {
			out.Note = out.Target.String() + ": not asked for in so short a time, since it is once a second at most"
		}
	case q.isMemory():
		out.Scope, out.Capacity = cmp.Or(t.scope, ofDevice), alloc.Bytes(t.capacity)
		out.Note = s.stoodFor(t, out.Note)
	}
	return out
}

// stoodFor notes that a device's memory is shown in place of a process's, where the
// driver gives no value of the process at all.
func (s *store) stoodFor(t *track, note string) string {
	process := t.buffers[ProcessMemory]
	if note != "" || process == nil || process.total.max > 0 || t.notes[ProcessMemory] == "" {
		return note
	}
	return "all processes together, since " + t.notes[ProcessMemory]
}

// Series is one quantity of one device over time. It is a copy, which a running recorder does
// not change. The zero Series is empty.
type Series struct {
	Device   Device      `json:"device"`
	Quantity Quantity    `json:"quantity"`
	Target   Target      `json:"target"`                  // of ProcessMemory, else zero
	Scope    Scope       `json:"scope"`                   // what the values count, if they are memory
	Note     string      `json:"note,omitempty"`          // why values are missing, or what they are instead
	Ended    bool        `json:"ended,omitempty"`         // the device was lost before the recording's end
	Capacity alloc.Bytes `json:"capacity_bytes,omitzero"` // the device's memory, of a series of memory; 0 if it is not known
	total    summary
	points   []point
}

// point is a sample, or several in a row that were merged to bound memory. A
// point without samples is a gap: the device was asked and gave no value.
type point struct {
	time     time.Duration // of its first query, since the recording's start
	min, max float64
	samples  int
	gaps     int // queries without an answer
	sum      float64
	end      time.Duration
}

// merge adds a later point to p.
func (p *point) merge(q point) {
	switch {
	case q.samples == 0:
	case p.samples == 0:
		p.min, p.max = q.min, q.max
	default:
		p.min, p.max = min(p.min, q.min), max(p.max, q.max)
	}
	p.samples += q.samples
	p.gaps += q.gaps
	p.sum += q.sum
	p.end = q.end
}

// summary is a point with the times of the first and the last sample.
type summary struct {
	point
	first, last time.Duration
}

func (s *summary) add(p point) {
	if p.samples > 0 {
		if s.samples == 0 {
			s.first = p.time
		}
		s.last = p.end
	}
	s.merge(p)
}

// Len returns the number of samples, merged ones included.
func (s Series) Len() int { return s.total.samples }

// Known reports whether the series has values. The series of a process that has only zeros,
// from before its memory turned out to be hidden, has none.
func (s Series) Known() bool {
	hidden := s.Quantity == ProcessMemory && s.Note != "" && !s.Ended && s.Max() == 0
	return s.Len() > 0 && !hidden
}

// Gaps returns the number of queries without a value.
func (s Series) Gaps() int { return s.total.gaps }

// Duration returns the time from the first sample to the last.
func (s Series) Duration() time.Duration { return s.total.last - s.total.first }

// Min returns the smallest sample, in bytes, percent, watts, degrees Celsius or
// megahertz as the quantity's key says; NaN if there is none. It is exact
// however much was thinned, and so are Max and Mean.
func (s Series) Min() float64 { return s.orNaN(s.total.min) }

// Max returns the largest sample, or NaN.
func (s Series) Max() float64 { return s.orNaN(s.total.max) }

// Mean returns the mean of the samples, or NaN.
func (s Series) Mean() float64 { return s.orNaN(s.total.sum / float64(s.total.samples)) }

func (s Series) orNaN(v float64) float64 {
	if s.Len() == 0 {
		return math.NaN()
	}
	return v
}

// Points iterates over the times since the recording's start and the samples, in the unit of the
// quantity's key; NaN is a gap: the device was asked and gave no value. Samples that were merged to
// bound memory are two points of one time: their minimum and, if it differs, their maximum.
func (s Series) Points() iter.Seq2[time.Duration, float64] {
	return func(yield func(time.Duration, float64) bool) {
		for _, p := range s.points {
			low, high := p.min, p.max
			if p.samples == 0 {
				low, high = math.NaN(), math.NaN()
			}
			if !yield(p.time, low) || high > low && !yield(p.time, high) {
				return
			}
		}
	}
}

// Span returns the times of the first and the last sample, since the recording's start; both are 0 if there is none.
func (s Series) Span() (first, last time.Duration) { return s.total.first, s.total.last }

// Last returns the last n samples, or a few more where samples were merged into points. The statistics of the result
// count these samples only.
func (s Series) Last(n int) Series {
	from, have := len(s.points), 0
	for from > 0 && have < n {
		from--
		have += s.points[from].samples
	}
	return s.cut(from)
}

// Since returns the series from the point that contains a time since the recording's start. The statistics of the result
// count these samples only.
func (s Series) Since(t time.Duration) Series {
	from := 0
	for from+1 < len(s.points) && s.points[from+1].time <= t {
		from++
	}
	return s.cut(from)
}

func (s Series) cut(from int) Series {
	s.points = s.points[from:]
	s.total = summary{}
	for _, p := range s.points {
		s.total.add(p)
	}
	return s
}

// Label says what the series is, for a chart or a table: "GPU 0 memory used",
// "GPU 0 pid 42 and children".
func (s Series) Label() string {
	label := s.Device.Label() + " " + s.Quantity.String()
	if s.Quantity == ProcessMemory {
		label = s.Device.Label() + " " + s.Target.String()
	}
	if note := s.Scope.String(); note != "" && s.Quantity.isMemory() {
		label += " (" + note + ")"
	}
	return label
}

// String prints the series as gpulink does, memory in megabytes of 1e6 bytes:
//
//	NVIDIA TITAN RTX[0] -> memory used: min=1729.236992[MB] / max=2315.79648[MB]
func (s Series) String() string {
	head := fmt.Sprintf("%v -> %v: ", s.Device, s.Quantity)
	if s.Quantity == ProcessMemory {
		head = fmt.Sprintf("%v -> memory of %v: ", s.Device, s.Target)
	}
	switch {
	case s.Known():
	case s.Note != "":
		return head + "unknown: " + s.Note
	default:
		return head + "no sample"
	}
	return head + "min=" + s.number(s.Min()) + " / max=" + s.number(s.Max())
}

// number prints a value without an exponent, and with no more digits than it really has.
func (s Series) number(v float64) string {
	if s.Quantity.isMemory() {
		v /= 1e6
	}
	return strconv.FormatFloat(v, 'f', -1, 64) + "[" + s.Quantity.Unit() + "]"
}

// Format prints a value of the quantity for people: memory in a suitable binary unit, others
// in their unit with at most one decimal: "1.5 GiB", "41 %".
func (q Quantity) Format(v float64) string {
	switch {
	case math.IsNaN(v):
		return "-"
	case q.isMemory():
		return alloc.Bytes(v).String()
	}
	return strconv.FormatFloat(math.Round(v*10)/10, 'f', -1, 64) + " " + q.Unit()
}

// buffer keeps a series in bounded memory. Each point takes width queries; when
// the buffer is full, neighbours are merged two by two and width doubles, so
// that what is left covers the whole time evenly and keeps every minimum and
// maximum. A gap that is shorter than a point is counted and no longer seen.
type buffer struct {
	points []point
	limit  int // points, an even number
	width  int // queries a point, a power of two
	total  summary
}

// defaultPoints is a chart's width several times over, in 224 KiB a series.
const defaultPoints = 4096

// newBuffer returns a buffer that allocates nothing later.
func newBuffer(size int) *buffer {
	b := growingBuffer(size)
	b.points = make([]point, 0, b.limit)
	return b
}

// growingBuffer returns a buffer that takes the memory of the points it has.
func growingBuffer(size int) *buffer { return &buffer{limit: max(size&^1, 2), width: 1} }

// add appends a sample, or a gap if ok is false.
func (b *buffer) add(t time.Duration, v float64, ok bool) {
	p := point{time: t, end: t, gaps: 1}
	if ok {
		p = point{time: t, end: t, min: v, max: v, sum: v, samples: 1}
	}
	b.total.add(p)
	if n := len(b.points); n > 0 {
		if last := &b.points[n-1]; last.samples+last.gaps < b.width {
			last.merge(p)
			return
		}
	}
	if len(b.points) == b.limit {
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
