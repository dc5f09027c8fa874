package torch

import (
	"errors"
	"fmt"
	"io"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
)

// Write writes the record as a memory snapshot of PyTorch, in memory that
// follows the live buffers and distinct call stacks, not the history.
//
// It needs the single buffers: a light snapshot that has live memory is an error.
func Write(w io.Writer, r export.Record) error {
	if err := check(r.Snapshot); err != nil {
		return fmt.Errorf("write PyTorch snapshot: %w", err)
	}
	out := &writer{
		pickler: newPickler(w),
		record:  r,
		live:    liveBlocks(r.Snapshot),
		stacks:  make(map[export.StackID]memo),
		frames:  make(map[tracker.Frame]memo),
		groups:  make(map[group]memo),
		about:   make(map[group]memo),
	}
	out.beginDict()
	out.settings()
	out.traces()
	out.segments()
	out.endDict()
	if err := out.close(); err != nil {
		return fmt.Errorf("write PyTorch snapshot: %w", err)
	}
	return nil
}

var errLight = errors.New("the snapshot has no single buffers, which the format consists of: " +
	"it is light, or from a dump that was cut to Config.MaxDumpBytes")

func check(s *tracker.Snapshot) error {
	if s == nil {
		return export.ErrNoSnapshot
	}
	for range s.Allocations() {
		return nil
	}
	for site := range s.Sites() {
		if site.Live.Count > 0 {
			return errLight
		}
	}
	return nil
}

// writer writes the parts of one snapshot, which share what they have named.
type writer struct {
	*pickler
	record export.Record
	live   blocks

	open   spans // the segments at the place in the history that is being written
	stacks map[export.StackID]memo
	frames map[tracker.Frame]memo
	groups map[group]memo // the dicts that describe blocks
	about  map[group]memo // the texts that describe events
}

// group is what buffers share; the shape is known by its place, which those of
// one tracker share.
type group struct {
	kind    tracker.Kind
	dtype   alloc.DType
	rank    int
	dims    *int
	section string
}

func groupOf(kind tracker.Kind, dtype alloc.DType, shape alloc.Shape, section string) group {
	g := group{kind: kind, dtype: dtype, rank: len(shape), section: section}
	if len(shape) > 0 {
		g.dims = &shape[0]
	}
	return g
}

// maxGroups bounds what is remembered of a history whose shapes never repeat.
const maxGroups = 1 << 16

// eventKeys stand early in the file: the first 256 strings have a short code.
var eventKeys = []string{"action", "addr", "device_free", "size", "stream", "time_us", "frames", "category", "user_metadata"}

// settings writes what the page shows as the allocator's settings: where the
// snapshot comes from.
func (w *writer) settings() {
	s := w.record.Snapshot
	w.name("allocator_settings")
	w.beginDict()
	w.nameItem("made_by", "gpumemtrack")
	w.nameItem("device", export.Device(s))
	for name, text := range export.OriginLabels(s.Origin) {
		w.nameItem(name, text)
	}
	w.intItem("live_bytes", int64(s.Live.Bytes))
	w.intItem("reserved_bytes", int64(s.Reserved))
	w.name("event_keys")
	l := w.beginList()
	for _, key := range eventKeys {
		l.next()
		w.name(key)
	}
	l.end()
	w.endDict()
}

// address keeps addresses below 2^53, above which JavaScript has no exact
// integers. Those of GPUs are.
func address(p alloc.Ptr) int64 { return int64(p & (1<<53 - 1)) }

// stack writes the frames of a stack, once.
func (w *writer) stack(s tracker.Stack) {
	id := export.IdentifyStack(s)
	if m, ok := w.stacks[id]; ok {
		w.get(m)
		return
	}
	l := w.beginList()
	m := w.memoize()
	for _, f := range s {
		l.next()
		w.frame(f)
	}
	l.end()
	w.stacks[id] = m
}

func (w *writer) frame(f tracker.Frame) {
	if m, ok := w.frames[f]; ok {
		w.get(m)
		return
	}
	w.op(opEmptyDict)
	w.frames[f] = w.memoize()
	w.op(opMark)
	w.nameItem("name", f.Function)
	w.nameItem("filename", f.File)
	w.intItem("line", int64(f.Line))
	w.endDict()
}

// categories are the names of PyTorch's memory profiler. The page fails on a
// snapshot with categories but none "unknown": see traces.
var categories = map[tracker.Kind]string{
	tracker.Unspecified:    "unknown",
	tracker.Parameter:      "parameter",
	tracker.Gradient:       "gradient",
	tracker.OptimizerState: "optimizer_state",
	tracker.Activation:     "activation",
	tracker.Input:          "input",
	tracker.Temporary:      "temporary",
}
