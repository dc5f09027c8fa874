package trackertest

import (
	"fmt"
	"slices"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// section is a Section, and what it should measure: the levels by the history, what it
// did by who did it.
type section struct {
	*tracker.Section
	of     *subject
	parent *section
	path   string
	common bool // several goroutines work in it at once
	ended  bool
	gpu    tracker.MemoryUse

	// The subject's mutex guards these.
	allocated, freed tracker.Tally
	ownPeak          alloc.Bytes
}

func (s *section) pathName() string {
	if s == nil {
		return ""
	}
	return s.path
}

// innermost returns the worker's last section of a tracker, or nil.
func (w *worker) innermost(of *subject) *section {
	for _, s := range slices.Backward(w.sections) {
		if s.of == of {
			return s
		}
	}
	return nil
}

var sectionNames = []string{"forward", "a/b", "new\nline"}

// begin opens a section of the goroutine's own.
func (w *worker) begin() {
	of := w.subject()
	w.open(of, w.innermost(of), of.tr.Section)
}

// part opens a part of any open section, or where all run at once, of one of its own or the whole.
func (w *worker) part() {
	open := w.sections
	if w.world.turns {
		open = nil
		for _, k := range w.world.workers {
			open = append(open, k.sections...)
		}
	}
	for _, s := range w.world.subjects {
		if s.whole != nil {
			open = append(open, s.whole)
		}
	}
	if len(open) > 0 {
		parent := open[w.rand.IntN(len(open))]
		w.open(parent.of, parent, parent.Section.Section)
	}
}

// open opens a section by a name that no other worker uses.
func (w *worker) open(of *subject, parent *section, open func(string) *tracker.Section) {
	name := fmt.Sprintf("%d.%s", w.id, sectionNames[w.rand.IntN(len(sectionNames))])
	s := of.newSection(parent, name)
	s.Section = open(name)
	w.sections = append(w.sections, s)
}

func (of *subject) newSection(parent *section, name string) *section {
	s := &section{of: of, parent: parent, path: name}
	if parent != nil {
		s.path = parent.path + "/" + name
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	of.begun[s.path] = append(of.begun[s.path], s)
	return s
}

// begin returns the section that an event tells of: those of one path begin in order.
func (of *subject) begin(path string) *section {
	s := of.begun[path][0]
	of.begun[path] = of.begun[path][1:]
	s.gpu = tracker.MemoryUse{Before: of.replay.level.Bytes, Peak: of.replay.level.Bytes}
	return s
}

// end closes one of the goroutine's sections, not always the innermost; where they
// take turns, anybody's.
func (w *worker) end() {
	of := w
	if w.world.turns {
		of = w.world.workers[w.rand.IntN(len(w.world.workers))]
	}
	if len(of.sections) == 0 {
		return
	}
	i := w.rand.IntN(len(of.sections))
	s := of.sections[i]
	of.sections = slices.Delete(of.sections, i, i+1)
	s.close()
}

func (s *section) close() {
	s.ended = true
	s.End()
	s.End() // does nothing
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.ended = append(s.of.ended, s)
}

// deed is what a section counts.
type deed int

const (
	allocated deed = iota
	freed
)

// count tells the worker's section, and all that it is part of. A free that failed is
// counted back: n is then -1.
func (w *worker) count(of *subject, did deed, n int64, bytes alloc.Bytes) {
	of.mu.Lock()
	defer of.mu.Unlock()
	change := tracker.Tally{Count: n, Bytes: alloc.Bytes(n) * bytes}
	for s := w.innermost(of); s != nil; s = s.parent {
		switch {
		case s.ended:
		case did == allocated:
			s.allocated = s.allocated.Add(change)
		default:
			s.freed = s.freed.Add(change)
		}
		if did == allocated || !known["the own peak after a free that failed"] {
			s.ownPeak = max(s.ownPeak, s.allocated.Bytes-s.freed.Bytes)
		}
	}
}

// compare compares a section with its data, at the level of now if it is still open.
func (s *section) compare(t assert.TestingT, now alloc.Bytes) {
	d := s.Data()
	if !s.ended {
		s.gpu.Used = now
	}
	assert.Equal(t, s.path, d.Path)
	assert.Equal(t, s.gpu, d.GPU, s.path)
	assert.Equal(t, s.allocated, d.Allocated, s.path)
	assert.Equal(t, s.freed, d.Freed, s.path)
	if s.common {
		if !known["the own peak after a free that failed"] {
			assert.LessOrEqual(t, s.allocated.Bytes-s.freed.Bytes, d.OwnPeak, s.path)
		}
		assert.LessOrEqual(t, d.OwnPeak, s.allocated.Bytes, s.path)
	} else {
		assert.Equal(t, s.ownPeak, d.OwnPeak, s.path)
	}
}
