package nvml

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Recording is what a Recorder has recorded so far, or the content of a file.
type Recording struct {
	Start    time.Time     `json:"start"`       // zero if the file does not tell
	Interval time.Duration `json:"interval_ns"` // asked for; zero if the file does not tell
	Source   string        `json:"source"`      // what answered
	Target   Target        `json:"target"`      // the process recorded; zero for devices alone
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

// remark is a note on a device's series, from a time on.
type remark struct {
	time     time.Duration
	device   int
	quantity Quantity
	text     string
	ended    bool    // the device was lost: of all its quantities
	capacity float64 // if not 0, the size of the device's memory, from a remark in the file
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

func (s *store) remark(m remark) {
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
// driver gives no figure of the process at all.
func (s *store) stoodFor(t *track, note string) string {
	process := t.buffers[ProcessMemory]
	if note != "" || process == nil || process.total.max > 0 || t.notes[ProcessMemory] == "" {
		return note
	}
	return "all processes together, since " + t.notes[ProcessMemory]
}
