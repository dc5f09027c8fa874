package trace

import (
	"iter"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

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

// newLayout finds the strays, so that begin can tell them.
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
