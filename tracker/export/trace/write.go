package trace

import (
	"bufio"
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"iter"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Write writes the dump's history, and the levels at its marks and at its end, as one JSON object
// of trace events. Each further device of the process appears as a process of its own. The error is
// that of w, or says that the dump has no snapshot.
func Write(w io.Writer, r *snapshot.Dump) error {
	all := append([]*snapshot.Dump{r}, r.Others...)
	if slices.ContainsFunc(all, func(r *snapshot.Dump) bool { return r.Snapshot == nil }) {
		return fmt.Errorf("write trace events: %w", walk.ErrNoSnapshot)
	}
	out := &file{w: bufio.NewWriterSize(w, 1<<16)}
	out.w.WriteString(`{"displayTimeUnit":"ms","traceEvents":[`)
	begins := make([]walk.Beginning, len(all))
	for i, of := range all {
		begins[i] = walk.BeginningOf(of)
	}
	start := slices.MinFunc(begins, func(a, b walk.Beginning) int { return a.Time.Compare(b.Time) }).Time
	for i, of := range all {
		out.write(of, begins[i], start, 1000*i)
	}
	out.w.WriteString("\n]}\n")
	if err := cmp.Or(out.err, out.w.Flush()); err != nil {
		return fmt.Errorf("write trace events: %w", err)
	}
	return nil
}

// file is the list of events.
type file struct {
	w       *bufio.Writer
	err     error
	scratch []byte
	count   int
}

// write writes the events of one device. Times count from start. The number of the viewer's process
// is 1 + above, plus the rank if there is one.
func (f *file) write(r *snapshot.Dump, begin walk.Beginning, start time.Time, above int) {
	out := &writer{
		file: f, dump: r, before: begin, start: start, pid: 1 + above, marks: make(map[int]*snapshot.Mark),
		levels: begin.Levels, sections: newLayout(begin.Sections, r.Events()),
	}
	if rank := r.Snapshot.Origin.Rank; rank != nil {
		out.pid += *rank
	}
	for _, m := range r.Marks {
		out.marks[m.Seq] = m
	}
	out.begin()
	for e := range r.Events() {
		out.event(e)
	}
	out.end()
}

// The counters.
const (
	allocatedCounter = "allocated"
	reservedCounter  = "reserved"
	driverCounter    = "driver used"
	hostCounter      = "host memory"
)

// Events belong to threads, which viewers show by name.
const (
	sectionsThread = iota
	marksThread
	oomThread
)

var threads = [...]string{"sections", "marks", "out of memory"}

// writer writes the events of one device.
type writer struct {
	*file

	dump   *snapshot.Dump
	before walk.Beginning
	start  time.Time // times count from here
	pid    int
	marks  map[int]*snapshot.Mark

	levels   walk.Levels
	sections *layout
	host     bool // there was host memory
}

func (w *writer) begin() {
	w.metadata("process_name", sectionsThread, "name", w.processName())
	w.metadata("process_sort_index", sectionsThread, "sort_index", w.pid)
	for thread, name := range threads {
		w.metadata("thread_name", thread, "name", name)
	}
	begun := w.before.Time
	w.instant(marksThread, "begin", begun, map[string]any{
		"device": export.Device(w.dump.Snapshot), "process": w.dump.Snapshot.Origin.String(), "time": begun.Format(time.RFC3339Nano),
	})
	w.counter(allocatedCounter, begun, w.levels.Allocated)
	if w.before.Segments {
		w.counter(reservedCounter, begun, w.levels.Reserved)
	}
	for _, s := range w.sections.beginAll(w.before.Sections) {
		w.section("b", begun, s)
	}
}

// processName is short, since Perfetto shows only some 30 letters of it.
func (w *writer) processName() string {
	name := export.Device(w.dump.Snapshot)
	if rank := w.dump.Snapshot.Origin.Rank; rank != nil {
		name = fmt.Sprintf("rank %d, %s", *rank, name)
	}
	return name
}

func (w *writer) event(e snapshot.Event) {
	change := walk.Change(&e)
	w.levels = w.levels.Add(change)
	if change.Allocated != 0 {
		w.counter(allocatedCounter, e.Time, w.levels.Allocated)
	}
	if change.Reserved != 0 {
		w.counter(reservedCounter, e.Time, w.levels.Reserved)
	}
	switch e.Action {
	case mem.SectionBegan:
		w.section("b", e.Time, w.sections.begin(e.Span, e.Section))
	case mem.SectionEnded:
		w.section("e", e.Time, w.sections.end(e.Span))
	case mem.OutOfMemory:
		w.instant(oomThread, threads[oomThread], e.Time, map[string]any{
			"requested_bytes": e.Requested, "call_site": e.Stack.CallSite().String(), "stack": frames(e.Stack),
		})
	case mem.Marked:
		w.mark(e)
	}
}

func (w *writer) mark(e snapshot.Event) {
	args := map[string]any{}
	if len(e.Stack) > 0 {
		args["call_site"] = e.Stack[0].String()
	}
	if m := w.marks[e.Mark]; m != nil {
		args["live_bytes"] = m.Live.Bytes
		args["change_bytes"] = m.Delta.Sum().Bytes
		args["change"] = lines(m.Delta)
		w.known(e.Time, m.Levels)
	}
	w.instant(marksThread, "mark "+strconv.Itoa(e.Mark), e.Time, args)
}

// lines and frames are lists, since Perfetto shows a line break as "\n".
func lines(d snapshot.Delta) []string {
	out := make([]string, 0, len(d))
	for _, change := range d {
		out = append(out, change.String())
	}
	return out
}

func frames(s mem.Stack) []string {
	out := []string{}
	for _, f := range s {
		out = append(out, fmt.Sprintf("%s %s:%d", f.Function, f.File, f.Line))
	}
	return out
}

// known writes what only marks and the end know.
func (w *writer) known(at time.Time, l snapshot.Levels) {
	w.counter(reservedCounter, at, l.Reserved)
	if l.DriverUsed >= 0 {
		w.counter(driverCounter, at, l.DriverUsed)
	}
	if l.HostReserved > 0 || w.host {
		w.host = true
		w.counter(hostCounter, at, l.HostReserved)
	}
}

// end writes every counter once more, since a viewer draws it up to its last
// value, and ends the sections that are open.
func (w *writer) end() {
	s := w.dump.Snapshot
	w.counter(allocatedCounter, s.Time, s.Allocated)
	w.known(s.Time, s.Levels)
	for _, o := range w.sections.endAll() {
		w.section("e", s.Time, o)
	}
}

// object is a trace event.
type object struct {
	Phase    string         `json:"ph"`
	Name     string         `json:"name"`
	Category string         `json:"cat,omitempty"`
	ID       *localID       `json:"id2,omitempty"`
	Scope    string         `json:"s,omitempty"`
	PID      int            `json:"pid"`
	TID      int            `json:"tid"`
	Time     float64        `json:"ts"` // microseconds
	Args     map[string]any `json:"args,omitempty"`
}

// localID is one of the process: the sections of other ranks may have it too.
type localID struct {
	Local string `json:"local"`
}

func (w *writer) micros(at time.Time) float64 {
	return float64(at.Sub(w.start)) / float64(time.Microsecond)
}

func (w *writer) metadata(name string, thread int, key string, value any) {
	w.object(thread, object{Phase: "M", Name: name, Args: map[string]any{key: value}})
}

func (w *writer) section(phase string, at time.Time, s *section) {
	if s != nil {
		id := &localID{strconv.FormatUint(s.row, 10)}
		w.object(sectionsThread, object{Phase: phase, Name: s.name, Category: "section", ID: id, Time: w.micros(at)})
	}
}

func (w *writer) instant(thread int, name string, at time.Time, args map[string]any) {
	w.object(thread, object{Phase: "i", Name: name, Category: "memory", Scope: "t", Time: w.micros(at), Args: args})
}

// object writes an event of one of the threads. Thread numbers begin with the process's own number,
// because Perfetto takes that thread as the main one.
func (w *writer) object(thread int, o object) {
	o.PID, o.TID = w.pid, w.pid+thread
	text, err := json.Marshal(o)
	if err != nil && w.err == nil {
		w.err = err
	}
	w.separate()
	w.w.Write(text)
}

// counter is object for the events that there are most of.
func (w *writer) counter(name string, at time.Time, value alloc.Bytes) {
	w.separate()
	b := append(w.scratch[:0], `{"ph":"C","name":"`...)
	b = append(b, name...)
	b = append(b, `","pid":`...)
	b = strconv.AppendInt(b, int64(w.pid), 10)
	b = append(b, `,"ts":`...)
	b = strconv.AppendFloat(b, w.micros(at), 'f', -1, 64)
	b = append(b, `,"args":{"bytes":`...)
	b = strconv.AppendInt(b, int64(value), 10)
	w.scratch = append(b, "}}"...)
	w.w.Write(w.scratch)
}

func (f *file) separate() {
	if f.count++; f.count > 1 {
		f.w.WriteByte(',')
	}
	f.w.WriteByte('\n')
}

// layout lays sections into rows. Sections in one row must nest, or a viewer cannot draw them, but
// real sections may overlap freely. A section is drawn inside another one if its path names that
// one and no other, if nothing else is drawn there, and if it ends first. Every other section
// begins a new row.
type layout struct {
	strays map[uint64]bool // the sections that end after the one that they began in
	open   map[uint64]*section
	paths  map[string][]*section // the open ones
}

type section struct {
	span   uint64
	path   string
	row    uint64
	name   string   // name in the row: the path without the path of the section around it
	around *section // the section that its path names, even if it is drawn elsewhere
	part   *section // the open one that this is around
}

// newLayout finds the strays, which begin needs to know.
func newLayout(before map[uint64]string, events iter.Seq[snapshot.Event]) *layout {
	trial := emptyLayout()
	trial.beginAll(before)
	for e := range events {
		switch e.Action {
		case mem.SectionBegan:
			trial.begin(e.Span, e.Section)
		case mem.SectionEnded:
			if s := trial.end(e.Span); s != nil && s.part != nil {
				trial.strays[s.part.span] = true
			}
		}
	}
	l := emptyLayout()
	l.strays = trial.strays
	return l
}

func emptyLayout() *layout {
	return &layout{strays: make(map[uint64]bool), open: make(map[uint64]*section), paths: make(map[string][]*section)}
}

// beginAll begins sections in the order of their span numbers, where only their order is known.
func (l *layout) beginAll(paths map[uint64]string) []*section {
	var out []*section
	for _, span := range slices.Sorted(maps.Keys(paths)) {
		out = append(out, l.begin(span, paths[span]))
	}
	return out
}

// begin returns nil if a section with that span is open already, which only a damaged file says.
func (l *layout) begin(span uint64, path string) *section {
	if l.open[span] != nil {
		return nil
	}
	s := &section{span: span, path: path, row: span, name: path, around: l.around(path)}
	if s.around != nil {
		s.around.part = s
		if !l.strays[span] {
			s.row, s.name = s.around.row, path[len(s.around.path)+1:]
		}
	}
	l.open[span] = s
	l.paths[path] = append(l.paths[path], s)
	return s
}

// around returns the open section in which a section with this path would be drawn. It is nil if
// there is none, if several are possible, or if something is already drawn in it.
func (l *layout) around(path string) *section {
	for end := strings.LastIndexByte(path, '/'); end > 0; end = strings.LastIndexByte(path[:end], '/') {
		switch open := l.paths[path[:end]]; {
		case len(open) == 0:
			continue
		case len(open) == 1 && open[0].part == nil:
			return open[0]
		}
		return nil
	}
	return nil
}

// end ends an open section. It returns nil if no open section has that number.
func (l *layout) end(span uint64) *section {
	s := l.open[span]
	if s == nil {
		return nil
	}
	delete(l.open, span)
	if rest := slices.DeleteFunc(l.paths[s.path], func(o *section) bool { return o == s }); len(rest) > 0 {
		l.paths[s.path] = rest
	} else {
		delete(l.paths, s.path)
	}
	if s.around != nil {
		s.around.part = nil
	}
	return s
}

// endAll ends what is open, parts first.
func (l *layout) endAll() []*section {
	var out []*section
	for _, span := range slices.Backward(slices.Sorted(maps.Keys(l.open))) {
		out = append(out, l.end(span))
	}
	return out
}
