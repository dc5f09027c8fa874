package viewer

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/tracker/internal/bands"
	"github.com/gpumemtrack/gpumemtrack/tracker/live/internal/request"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// track is the memory of one device of a file, or that of the host.
type track struct {
	*bands.Index
	about trackJSON

	mu      sync.Mutex
	layers  []keptLayer // the latest last
	details *trackDetails
}

// trackJSON is what the state says of a track.
type trackJSON struct {
	ID           string    `json:"track"`
	Device       string    `json:"device"`
	Ordinal      int       `json:"ordinal"`
	HostMemory   bool      `json:"host_memory"`
	Allocations  int       `json:"allocations"`
	Moments      uint32    `json:"moments"`
	Untimed      bool      `json:"untimed"`
	Seconds      float64   `json:"seconds"`
	First        uint64    `json:"first"`
	Peak         peakJSON  `json:"peak"`
	End          tallyJSON `json:"end"`
	ReservedPeak *int64    `json:"reserved_peak_bytes"`
	LeftOut      []string  `json:"left_out"`
	Failed       *string   `json:"failed"`
}

type tallyJSON struct {
	Bytes int64 `json:"bytes"`
	Count int   `json:"count"`
}

type peakJSON struct {
	Moment  uint32  `json:"moment"`
	Seconds float64 `json:"seconds"`
	tallyJSON
}

func newTrack(f *file, number int, x *bands.Index, host bool) *track {
	s := x.Dump.Snapshot
	peak, end := x.All.Peak(), x.Moments()-1
	t := &track{Index: x, about: trackJSON{
		ID: fmt.Sprintf("%d.%d", f.number, number), Device: printable(deviceName(s)), Ordinal: s.Ordinal, HostMemory: host,
		Allocations: x.Len(), Moments: x.Moments(), Untimed: x.Untimed(), Seconds: x.Seconds(), First: x.First(),
		Peak:    peakJSON{peak, x.At(peak), tallyJSON{x.All.Level(peak), x.All.Count(peak)}},
		End:     tallyJSON{x.All.Level(end), x.All.Count(end)},
		LeftOut: append([]string{}, x.Dump.LeftOut()...),
	}}
	if most, ok := x.MostReserved(); ok {
		t.about.ReservedPeak = &most
	}
	if oom := x.Dump.OOM; oom != nil && !host {
		t.about.Failed = known(cmp.Or(oom.Advice, "out of memory"))
	}
	return t
}

func deviceName(s *snapshot.Snapshot) string {
	return fmt.Sprintf("%s:%d", cmp.Or(s.Device, "device"), s.Ordinal)
}

// momentOf reads a moment of a track.
func (t *track) momentOf(q *request.Query, name string) uint32 {
	if t == nil {
		q.Number(name, 1<<31-1)
		return 0
	}
	return uint32(q.Number(name, int(t.Moments())-1))
}

// axisOf reads an axis and a range of it. The whole is the default.
func (t *track) axisOf(q *request.Query) (a bands.Axis, x0, x1 float64) {
	if q.Word("axis", "event", "time") == "time" {
		a = bands.ByTime
		if t != nil && t.Untimed() {
			q.Fail("axis=time: the events of this track have no times")
		}
	}
	if t == nil {
		q.Text("x0")
		q.Text("x1")
		return a, 0, 1
	}
	from, to := t.Range(a)
	const far = 1e18
	x0, x1 = q.Float("x0", -far, far, from), q.Float("x1", -far, far, to)
	if x1 <= x0 && (q.Has("x0") || q.Has("x1")) {
		q.Fail("x0=%g, x1=%g: want x1 above x0", x0, x1)
	}
	return a, x0, x1
}

// maxLayers is how many filters a track remembers, and maxLayerBytes what they may take together.
const (
	maxLayers     = 8
	maxLayerBytes = 256 << 20
)

type keptLayer struct {
	key   string
	layer *bands.Layer
}

// layer returns the allocations that pass a filter.
func (t *track) layer(ctx context.Context, f bands.Filter) (*bands.Layer, error) {
	if f.IsZero() {
		return t.All, nil
	}
	key := f.Key()
	if l := t.kept(key); l != nil {
		return l, nil
	}
	l, err := bands.NewLayer(ctx, t.Index, f)
	if err != nil {
		return nil, err
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.layers = append(t.layers, keptLayer{key, l})
	size := 0
	for i := range slices.Backward(t.layers) {
		if size += t.layers[i].layer.Size(); i < len(t.layers)-1 && (size > maxLayerBytes || len(t.layers)-i > maxLayers) {
			t.layers = slices.Delete(t.layers, 0, i+1)
			break
		}
	}
	return l, nil
}

// kept returns a layer that was asked for before.
func (t *track) kept(key string) *bands.Layer {
	t.mu.Lock()
	defer t.mu.Unlock()
	i := slices.IndexFunc(t.layers, func(k keptLayer) bool { return k.key == key })
	if i < 0 {
		return nil
	}
	k := t.layers[i]
	t.layers = append(slices.Delete(t.layers, i, i+1), k)
	return k.layer
}

// maxAlternatives is how many lines, kinds or allocations a filter may name.
const maxAlternatives = 64

// filterOf reads the parameters of a filter.
func filterOf(q *request.Query) bands.Filter {
	const far, longest = 1 << 62, 1e18
	f := bands.Filter{
		Text: q.Text("text"), MinBytes: int64(q.Float("min_bytes", 0, far, 0)), MaxBytes: int64(q.Float("max_bytes", 0, far, 0)),
		MinLife: q.Float("min_life", 0, longest, 0), MaxLife: q.Float("max_life", 0, longest, 0),
		Lines: numbers[uint32](q, "line", 1<<32-1), Kinds: numbers[uint16](q, "kind", 1<<16-1), Allocations: numbers[uint32](q, "allocation", 1<<32-1),
		Stack: uint32(q.Number("stack", 1<<31-1)), Depth: q.Number("depth", 1<<20),
	}
	if len(f.Text) > maxText {
		q.Fail("text has %d bytes: want at most %d", len(f.Text), maxText)
	}
	if q.Has("stack") != q.Has("depth") {
		q.Fail("want stack and depth together")
	}
	return f
}

func numbers[T uint16 | uint32](q *request.Query, name string, most uint64) (out []T) {
	for _, word := range q.List(name, maxAlternatives) {
		n, err := strconv.ParseUint(word, 10, 64)
		if err != nil || n > most {
			q.Fail("%s=%q: want a number from 0 to %d", name, word, most)
			return nil
		}
		out = append(out, T(n))
	}
	return out
}

// trackDetails is what the answer track says besides the track.
type trackDetails struct {
	Start       *float64      `json:"start_unix"`
	Opens       uint32        `json:"opens"`
	Kinds       []namedBytes  `json:"kinds"`
	Lines       []namedBytes  `json:"lines"`
	LineCount   int           `json:"line_count"`
	Stacks      int           `json:"stacks"`
	Marks       []markJSON    `json:"marks"`
	OOMs        []markJSON    `json:"ooms"`
	Sections    []sectionJSON `json:"sections"`
	MaxLifetime float64       `json:"max_lifetime"`
	MaxBytes    int64         `json:"max_bytes"`
}

type namedBytes struct {
	Line  *uint64 `json:"line,omitempty"`
	Kind  *uint64 `json:"kind,omitempty"`
	Name  string  `json:"name"`
	Bytes int64   `json:"bytes"`
}

type markJSON struct {
	Moment  uint32   `json:"moment"`
	Seconds *float64 `json:"seconds"`
	Mark    *int     `json:"mark,omitempty"`
	Name    *string  `json:"name,omitempty"`
	Bytes   *int64   `json:"bytes,omitempty"`
}

type sectionJSON struct {
	Name  string `json:"name"`
	Begin uint32 `json:"begin"`
	End   uint32 `json:"end"`
}

func trackOfFile(s *session, r *http.Request, q *request.Query) (answer, error) {
	t, err := s.trackOf(q)
	if err != nil {
		return answer{}, err
	}
	return s.respond(r, q, asked{t, bands.Filter{}}, func(*bands.Layer) (any, error) {
		t.mu.Lock()
		d := t.details
		t.mu.Unlock()
		if d == nil {
			if d, err = t.describe(r.Context()); err != nil {
				return nil, err
			}
			t.mu.Lock()
			t.details = d
			t.mu.Unlock()
		}
		return struct {
			trackJSON
			*trackDetails
		}{t.about, d}, nil
	})
}

const (
	maxLines    = 64
	maxMoments  = 500
	maxSections = 2000
)

// describe goes through the track once.
func (t *track) describe(ctx context.Context) (*trackDetails, error) {
	d := &trackDetails{Opens: t.about.Peak.Moment, Stacks: t.Stacks(), Kinds: []namedBytes{}, Lines: []namedBytes{}, Marks: []markJSON{}, OOMs: []markJSON{}, Sections: []sectionJSON{}}
	if !t.Untimed() {
		start := float64(t.Start().UnixMicro()) / 1e6
		d.Start = &start
	}
	from, to := t.Range(bands.ByEvent)
	s := bands.Select(t.Index, t.about.Peak.Moment, bands.ByEvent, from, to)
	for _, by := range []bands.Key{bands.ByKind, bands.ByLine} {
		rows, _, err := bands.Table(ctx, t.Index, t.All, by, s)
		if err != nil {
			return nil, err
		}
		slices.SortFunc(rows, func(a, b bands.Row) int {
			return cmp.Or(cmp.Compare(b.PeakBytes, a.PeakBytes), cmp.Compare(b.BornBytes, a.BornBytes), cmp.Compare(a.Key, b.Key))
		})
		if by == bands.ByKind {
			for _, r := range rows {
				d.Kinds = append(d.Kinds, namedBytes{Kind: &r.Key, Name: t.Names.Kind(uint16(r.Key)), Bytes: r.PeakBytes})
			}
			continue
		}
		d.LineCount = len(rows)
		for _, r := range rows[:min(len(rows), maxLines)] {
			d.Lines = append(d.Lines, namedBytes{Line: &r.Key, Name: t.lineName(uint32(r.Key)), Bytes: r.PeakBytes})
		}
	}
	for id := range uint32(t.Len()) {
		d.MaxLifetime, d.MaxBytes = max(d.MaxLifetime, t.Lifetime(id)), max(d.MaxBytes, t.Bytes(id))
	}
	t.moments(d)
	if n := len(d.OOMs); n > 0 && t.Dump.OOM != nil {
		d.Opens = d.OOMs[n-1].Moment
	}
	return d, ctx.Err()
}

// moments lists the marks, failures and sections.
func (t *track) moments(d *trackDetails) {
	names := make(map[int]string)
	for _, m := range t.Dump.Marks {
		names[m.Seq] = printable(m.CallSite.String())
	}
	for e := range bands.Notes(t.Index) {
		at := markJSON{Moment: e.Moment, Seconds: t.secondsAt(e.Moment)}
		switch e.Action {
		case mem.OutOfMemory:
			asked := e.Bytes
			at.Bytes = &asked
			d.OOMs = append(d.OOMs, at)
		case mem.Marked:
			number := int(e.Number)
			at.Mark, at.Name = &number, known(names[number])
			d.Marks = append(d.Marks, at)
		}
	}
	d.OOMs, d.Marks = d.OOMs[max(0, len(d.OOMs)-maxMoments):], d.Marks[max(0, len(d.Marks)-maxMoments):]
	for _, s := range bands.Sections(t.Index, maxSections) {
		d.Sections = append(d.Sections, sectionJSON{printable(s.Name), s.Begin, s.End})
	}
}

// secondsAt returns the time of a moment, or nil if the track is untimed.
func (t *track) secondsAt(moment uint32) *float64 {
	if t.Untimed() {
		return nil
	}
	s := t.At(moment)
	return &s
}

func (t *track) lineName(line uint32) string { return printable(t.Names.Line(line)) }
