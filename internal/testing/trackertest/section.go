package trackertest

import (
	"errors"
	"fmt"
	"slices"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
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
	gpu    sections.MemoryUse

	// The subject's mutex guards these.
	allocated, freed mem.Tally
	selfPeak         alloc.Bytes
}

func (s *section) pathName() string {
	if s == nil {
		return ""
	}
	return s.path
}

// open returns the section, or the innermost around it that has not ended.
func (s *section) open() *section {
	for s != nil && s.ended {
		s = s.parent
	}
	return s
}

// place is a section that a goroutine is in: it opened it, or it is in a function that is
// bound to it.
type place struct {
	*section
	bound bool
}

// around returns the section of a tracker that the worker is in, which may have ended; nil
// if it is in none.
func (w *worker) around(of *subject) *section {
	for _, p := range slices.Backward(w.in) {
		if p.of == of {
			return p.section
		}
	}
	return nil
}

// innermost returns the section that the worker's work counts for, or nil.
func (w *worker) innermost(of *subject) *section { return w.around(of).open() }

// leave has the worker leave a place, and if it does so itself what it opened inside,
// up to a bound function, which is still running.
func (w *worker) leave(left *place, itself bool) {
	inside := false
	w.in = slices.DeleteFunc(w.in, func(p *place) bool {
		switch {
		case p == left:
			inside = itself
			return true
		case p.of == left.of && p.bound:
			inside = false
		}
		return inside && p.of == left.of
	})
}

var sectionNames = []string{"forward", "a/b", "new\nline"}

// begin opens a section of the goroutine's own.
func (w *worker) begin() {
	of := w.subject()
	w.begins(of, w.around(of), of.tr.Section)
}

// part opens a part of any open section, in whichever goroutine.
func (w *worker) part() {
	if parent := w.anySection(); parent != nil {
		w.begins(parent.of, parent, parent.Section.Section)
	}
}

// anySection returns an open section: where all run at once, one of its own or the whole.
func (w *worker) anySection() *section {
	open := slices.Clone(w.open)
	if w.world.turns {
		open = nil
		for _, k := range w.world.workers {
			open = append(open, k.open...)
		}
	}
	for _, s := range w.world.subjects {
		if s.whole != nil {
			open = append(open, s.whole)
		}
	}
	if len(open) == 0 {
		return nil
	}
	return open[w.rand.IntN(len(open))]
}

// bind does some work as a part of a section.
func (w *worker) bind() {
	s := w.anySection()
	if s == nil {
		return
	}
	failure := errors.New("passed on")
	err := s.Bind(func() error {
		in := &place{s, true}
		w.in = append(w.in, in)
		for range 3 {
			[]func(*worker){(*worker).alloc, (*worker).free, (*worker).begin, (*worker).end}[w.rand.IntN(4)](w)
		}
		w.leave(in, true)
		return failure
	})()
	assert.ErrorIs(w.world.t, err, failure)
}

const deepest = 300 // bytes of a path: a section that is far too deep measures nothing

// begins opens a section by a name that no other worker uses.
func (w *worker) begins(of *subject, parent *section, open func(string) *tracker.Section) {
	if len(parent.pathName()) > deepest {
		return
	}
	name := fmt.Sprintf("%d.%s", w.id, sectionNames[w.rand.IntN(len(sectionNames))])
	s := of.newSection(parent, name)
	s.Section = open(name)
	w.open = append(w.open, s)
	w.in = append(w.in, &place{s, false})
}

func (s *subject) newSection(parent *section, name string) *section {
	opened := &section{of: s, parent: parent.open(), path: name}
	if parent != nil {
		opened.path = parent.path + "/" + name
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.begun[opened.path] = append(s.begun[opened.path], opened)
	return opened
}

// began returns what is measured of the section that an event tells of: those of one path begin in order.
func (s *subject) began(e snapshot.Event) *sections.MemoryUse {
	require.NotEmpty(s.world.t, s.begun[e.Section], "a section that no worker began: %q", e.Section)
	first := s.begun[e.Section][0]
	s.begun[e.Section] = s.begun[e.Section][1:]
	s.open[e.Span] = first
	return &first.gpu
}

func (s *subject) ended(e snapshot.Event) { delete(s.open, e.Span) }

// end closes an open section; where all run at once, one of its own.
func (w *worker) end() {
	if s := w.anySection(); s != nil && s != s.of.whole {
		w.close(s)
	}
}

func (w *worker) close(s *section) {
	s.ended = true
	s.End()
	s.End() // does nothing
	for _, k := range w.world.workers {
		if k != w && !w.world.turns {
			continue
		}
		k.open = slices.DeleteFunc(k.open, func(o *section) bool { return o == s })
		if i := slices.IndexFunc(k.in, func(p *place) bool { return p.section == s && !p.bound }); i >= 0 {
			k.leave(k.in[i], k == w)
		}
	}
	s.of.mu.Lock()
	defer s.of.mu.Unlock()
	s.of.finished = append(s.of.finished, s)
}

// deed is what a section counts.
type deed int

const (
	allocated deed = iota
	freed
)

// count tells the worker's section, and all that it is part of. A free that failed is
// counted back: n is then -1.
func (w *worker) count(of *subject, did deed, n int64, what snapshot.Allocation) {
	if what.Memory.OnHost() { // sections measure the device's memory
		return
	}
	of.mu.Lock()
	defer of.mu.Unlock()
	change := mem.Tally{Count: n, Bytes: alloc.Bytes(n) * what.Requested}
	for s := w.innermost(of); s != nil; s = s.parent.open() {
		if did == allocated {
			s.allocated = s.allocated.Add(change)
		} else {
			s.freed = s.freed.Add(change)
		}
		s.selfPeak = max(s.selfPeak, s.allocated.Bytes-s.freed.Bytes)
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
		assert.LessOrEqual(t, s.allocated.Bytes-s.freed.Bytes, d.SelfPeak, s.path)
		assert.LessOrEqual(t, d.SelfPeak, s.allocated.Bytes, s.path)
	} else {
		assert.Equal(t, s.selfPeak, d.SelfPeak, s.path)
	}
}
