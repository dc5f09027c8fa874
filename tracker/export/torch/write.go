package torch

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/export/internal/labels"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/lines"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/walk"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Write writes the dump, and those of the process's other devices, as a PyTorch memory snapshot.
// The memory it needs grows with the live buffers and distinct call stacks, not with the history.
// Host memory is left out, because the format is about a device's memory.
//
// It needs a list of single buffers: for a light snapshot with live memory it returns an error.
func Write(w io.Writer, r *snapshot.Dump) error {
	parts, err := partsOf(r)
	if err != nil {
		return fmt.Errorf("write PyTorch snapshot: %w", err)
	}
	out := &writer{
		pickler: newPickler(w),
		stacks:  make(map[lines.StackID]memo),
		frames:  make(map[mem.Frame]memo),
		groups:  make(map[group]memo),
		about:   make(map[group]memo),
	}
	out.beginDict()
	for _, p := range parts {
		if !p.dump.Snapshot.Memory[alloc.DeviceMemory].IsZero() {
			out.memory = alloc.DeviceMemory
		}
	}
	out.settings(r.Snapshot)
	out.traces(parts)
	out.annotations(parts)
	out.segments(parts)
	out.endDict()
	if err := out.close(); err != nil {
		return fmt.Errorf("write PyTorch snapshot: %w", err)
	}
	return nil
}

var errLight = errors.New("the snapshot has no single buffers, which the format consists of: " +
	"it is light, or from a dump that was cut to Config.MaxDumpBytes")

func check(s *snapshot.Snapshot) error {
	if s == nil {
		return walk.ErrNoSnapshot
	}
	for range s.Allocations() {
		return nil
	}
	for site := range s.CallSites() {
		if site.Live.Count > 0 {
			return errLight
		}
	}
	return nil
}

// part is what is written about one device.
type part struct {
	dump    *snapshot.Dump
	live    blocks
	open    walk.Spans                   // the segments at the place in the history that is being written
	pending map[alloc.Ptr]bool           // buffers whose free was requested at this point, and not completed
	freed   map[alloc.Ptr]snapshot.Event // frees that left memory pending there
	labels  map[uint64]string            // of the buffers that are live at the end, by the number of their event
	before

	expandable bool // segments grow and shrink
}

// partsOf returns the devices of a dump, sorted by their numbers.
func partsOf(r *snapshot.Dump) ([]*part, error) {
	var parts []*part
	for _, r := range append([]*snapshot.Dump{r}, r.Others...) {
		if err := check(r.Snapshot); err != nil {
			return nil, err
		}
		p := &part{
			dump: r, pending: make(map[alloc.Ptr]bool), freed: make(map[alloc.Ptr]snapshot.Event), labels: make(map[uint64]string),
			expandable: slices.ContainsFunc(r.Snapshot.Segments, func(s alloc.Segment) bool { return s.Expandable }),
		}
		for a := range r.Snapshot.Allocations() {
			if a.Label != "" {
				p.labels[a.Seq] = a.Label
			}
		}
		p.goBack()
		p.live = liveBlocks(r.Snapshot, p.left)
		parts = append(parts, p)
	}
	slices.SortStableFunc(parts, func(x, y *part) int { return cmp.Compare(x.ordinal(), y.ordinal()) })
	for i, p := range parts[1:] {
		if p.ordinal() == parts[i].ordinal() {
			return nil, fmt.Errorf("there are two devices of number %d", p.ordinal())
		}
	}
	return parts, nil
}

func (p *part) ordinal() int { return p.dump.Snapshot.Ordinal }

// writer writes the parts of one snapshot. The parts share strings that were written once.
type writer struct {
	*pickler
	*part               // that is being written
	memory alloc.Memory // memory type of buffers that name none

	stacks map[lines.StackID]memo
	frames map[mem.Frame]memo
	groups map[group]memo // the dicts that describe blocks
	about  map[group]memo // the texts that describe events
}

// group is what several buffers have in common. A shape is compared by its address, since buffers
// of one tracker share theirs.
type group struct {
	kind    mem.Kind
	dtype   alloc.DType
	memory  alloc.Memory
	rank    int
	dims    *int
	section string
}

func groupOf(kind mem.Kind, dtype alloc.DType, memory alloc.Memory, shape alloc.Shape, section string) group {
	g := group{kind: kind, dtype: dtype, memory: memory, rank: len(shape), section: section}
	if len(shape) > 0 {
		g.dims = &shape[0]
	}
	return g
}

// maxGroups bounds what is remembered of a history whose shapes never repeat.
const maxGroups = 1 << 16

// pendingLabel is the label of a pending block.
const pendingLabel = "freed, used by another stream"

// eventKeys are written early in the file: the first 256 strings have a short code.
var eventKeys = []string{"action", "addr", "device_free", "size", "stream", "time_us", "frames", "category", "user_metadata"}

// settings writes what the page shows as the allocator's settings: where the
// snapshot comes from.
func (w *writer) settings(s *snapshot.Snapshot) {
	w.name("allocator_settings")
	w.beginDict()
	w.nameItem("made_by", "gpumemtrack")
	w.nameItem("device", export.Device(s))
	w.nameItem("memory", w.memory.String())
	for name, text := range labels.OfOrigin(s.Origin) {
		w.nameItem(name, text)
	}
	w.intItem("live_bytes", int64(s.Live.Bytes))
	w.intItem("reserved_bytes", int64(s.Reserved))
	for _, name := range slices.Sorted(maps.Keys(s.Settings)) {
		w.name(name)
		w.text(s.Settings[name])
	}
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
func address(p alloc.Ptr) alloc.Ptr { return p & (1<<53 - 1) }

// stack writes the frames of a stack, once.
func (w *writer) stack(s mem.Stack) {
	id := lines.Identify(s)
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

func (w *writer) frame(f mem.Frame) {
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
var categories = map[mem.Kind]string{
	"":               "unknown",
	"Parameter":      "parameter",
	"Gradient":       "gradient",
	"OptimizerState": "optimizer_state",
	"Activation":     "activation",
	"Input":          "input",
	"Temporary":      "temporary",
}

// category names a kind; one of the program's own is unknown to the page.
func category(kind mem.Kind) string { return cmp.Or(categories[kind], "unknown") }

// annotations writes the sections of all histories in the form of PyTorch's profiler annotations.
func (w *writer) annotations(parts []*part) {
	w.name("external_annotations")
	l := w.beginList()
	for _, p := range parts {
		for e := range p.dump.Events() {
			switch e.Action {
			case mem.SectionBegan:
				w.annotation(l, p.ordinal(), "START", e)
			case mem.SectionEnded:
				w.annotation(l, p.ordinal(), "END", e)
			}
		}
	}
	l.end()
}

func (w *writer) annotation(l *list, device int, stage string, e snapshot.Event) {
	l.next()
	w.beginDict()
	w.nameItem("stage", stage)
	w.nameItem("name", e.Section)
	w.intItem("device", int64(device))
	w.intItem("time_us", e.Time.UnixMicro())
	w.endDict()
}
