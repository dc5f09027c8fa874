package trackertest

import (
	"errors"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/tracker"
)

// Sections runs random sections, nested, overlapping and in several goroutines,
// and compares each with a naive account of it.
func Sections(t *testing.T, open func(t *testing.T) Rig) {
	rapid.Check(t, func(rt *rapid.T) {
		m := &sectionModel{tr: newTracker(rt, open(t), false, 1000)}
		for range 3 {
			m.threads = append(m.threads, newThread())
		}
		rt.Repeat(map[string]func(*rapid.T){
			"begin":     m.begin,
			"beginPart": m.beginPart,
			"end":       m.end,
			"alloc":     m.alloc,
			"allocMore": m.alloc,
			"free":      m.free,
			"resetPeak": func(*rapid.T) { m.tr.ResetPeak() }, // a section's peak is its own
			"":          m.check,
		})
		for len(m.open) > 0 {
			m.finish(rt, len(m.open)-1)
		}
		for _, b := range m.live {
			require.NoError(rt, b.Free())
		}
		require.NoError(rt, m.tr.Close())
		for _, th := range m.threads {
			close(th.work)
		}
	})
}

// sectionModel keeps each section's numbers by looking at all of them at each step.
type sectionModel struct {
	tr      *tracker.MemTracker
	threads []*thread
	open    []*openSection // in the order of their beginnings
	live    []*tracker.Buffer
	level   alloc.Bytes
}

type openSection struct {
	section          *tracker.Section
	parent           *openSection
	thread           *thread
	path             string
	start, peak      alloc.Bytes
	allocated, freed tracker.Tally
	ownPeak          alloc.Bytes
	ended            bool
}

// thread is a goroutine that does what it is told.
type thread struct {
	work chan func()
	done chan struct{}
}

func newThread() *thread {
	th := &thread{make(chan func()), make(chan struct{})}
	go func() {
		for f := range th.work {
			f()
			th.done <- struct{}{}
		}
	}()
	return th
}

func (th *thread) do(f func()) {
	th.work <- f
	<-th.done
}

func (m *sectionModel) thread(t *rapid.T) *thread {
	return rapid.SampledFrom(m.threads).Draw(t, "thread")
}

// innermost returns the section that was opened last in the thread.
func (m *sectionModel) innermost(th *thread) *openSection {
	for _, s := range slices.Backward(m.open) {
		if s.thread == th {
			return s
		}
	}
	return nil
}

func (m *sectionModel) add(s *openSection, name string) {
	s.path = name
	if s.parent != nil {
		s.path = s.parent.path + "/" + name
	}
	s.start, s.peak = m.level, m.level
	m.open = append(m.open, s)
}

var names = rapid.SampledFrom([]string{"forward", "backward", "a/b"})

func (m *sectionModel) begin(t *rapid.T) {
	th, name := m.thread(t), names.Draw(t, "name")
	s := &openSection{thread: th, parent: m.innermost(th)}
	th.do(func() { s.section = m.tr.Section(name) })
	m.add(s, name)
}

func (m *sectionModel) beginPart(t *rapid.T) {
	if len(m.open) == 0 {
		t.Skip("no section is open")
	}
	th, name := m.thread(t), names.Draw(t, "name")
	s := &openSection{thread: th, parent: rapid.SampledFrom(m.open).Draw(t, "whole")}
	th.do(func() { s.section = s.parent.section.Section(name) })
	m.add(s, name)
}

func (m *sectionModel) end(t *rapid.T) {
	if len(m.open) == 0 {
		t.Skip("no section is open")
	}
	m.finish(t, rapid.IntRange(0, len(m.open)-1).Draw(t, "section"))
}

// finish ends the i-th open section, from whichever goroutine.
func (m *sectionModel) finish(t *rapid.T, i int) {
	s := m.open[i]
	m.open = slices.Delete(m.open, i, i+1)
	s.ended = true
	m.thread(t).do(s.section.End)
	m.compare(t, s)
}

func (m *sectionModel) alloc(t *rapid.T) {
	th := m.thread(t)
	shape := alloc.Shape{rapid.SampledFrom([]int{0, 1, 1000, 1 << 20, 3 << 20}).Draw(t, "elements")}
	var buf *tracker.Buffer
	var err error
	th.do(func() { buf, err = m.tr.Alloc(shape, alloc.Float32, tracker.Activation) })
	if errors.Is(err, alloc.ErrOutOfMemory) {
		t.Skip("the device is full")
	}
	require.NoError(t, err)
	path := ""
	if in := m.innermost(th); in != nil {
		path = in.path
	}
	buf.SetLabel(path)
	m.live = append(m.live, buf)
	m.count(th, buf.Bytes(), true)
}

func (m *sectionModel) free(t *rapid.T) {
	if len(m.live) == 0 {
		t.Skip("nothing is live")
	}
	th, i := m.thread(t), rapid.IntRange(0, len(m.live)-1).Draw(t, "buffer")
	buf := m.live[i]
	m.live = slices.Delete(m.live, i, i+1)
	var err error
	th.do(func() { err = buf.Free() })
	require.NoError(t, err)
	m.count(th, buf.Bytes(), false)
}

// count tells every section that it concerns.
func (m *sectionModel) count(th *thread, bytes alloc.Bytes, allocated bool) {
	for s := m.innermost(th); s != nil; s = s.parent {
		switch {
		case s.ended:
		case allocated:
			s.allocated = s.allocated.Add(tracker.Tally{Count: 1, Bytes: bytes})
			s.ownPeak = max(s.ownPeak, s.allocated.Bytes-s.freed.Bytes)
		default:
			s.freed = s.freed.Add(tracker.Tally{Count: 1, Bytes: bytes})
		}
	}
	if !allocated {
		bytes = -bytes
	}
	m.level += bytes
	for _, s := range m.open {
		s.peak = max(s.peak, m.level)
	}
}

func (m *sectionModel) check(t *rapid.T) {
	for _, s := range m.open {
		m.compare(t, s)
	}
	for a := range m.tr.Snapshot().Allocations() {
		require.Equal(t, a.Label, a.Section)
	}
}

func (m *sectionModel) compare(t *rapid.T, s *openSection) {
	d := s.section.Data()
	require.Equal(t, s.path, d.Path)
	require.Equal(t, tracker.MemoryUse{Before: s.start, Used: m.level, Peak: s.peak}, d.GPU, s.path)
	require.Equal(t, s.allocated, d.Allocated, s.path)
	require.Equal(t, s.freed, d.Freed, s.path)
	require.Equal(t, s.ownPeak, d.OwnPeak, s.path)
}

// ConcurrentSections runs sections in many goroutines at once. What each did
// must be told exactly, and its peak be between its own and the sum of all.
func ConcurrentSections(t *testing.T, open func(t *testing.T) Rig) {
	tr := newTracker(t, open(t), false, 1000)
	const rounds, bytes = 50, 4000
	whole := tr.Section("whole")
	var group sync.WaitGroup
	for range goroutines {
		group.Go(func() {
			for range rounds {
				part := whole.Do("part", func() {
					buf, err := tr.Alloc(alloc.Shape{bytes / 4}, alloc.Float32, tracker.Temporary)
					if assert.NoError(t, err) {
						assert.NoError(t, buf.Free())
					}
				})
				d := part.Data()
				assert.Equal(t, tracker.Tally{Count: 1, Bytes: bytes}, d.Allocated)
				assert.Equal(t, d.Allocated, d.Freed)
				assert.Equal(t, alloc.Bytes(bytes), d.OwnPeak)
				assert.GreaterOrEqual(t, d.GPU.Peak, alloc.Bytes(bytes))
				assert.LessOrEqual(t, d.GPU.Peak, alloc.Bytes(goroutines*bytes))
			}
		})
	}
	group.Wait()
	whole.End()
	d := whole.Data()
	assert.Equal(t, tracker.Tally{Count: goroutines * rounds, Bytes: goroutines * rounds * bytes}, d.Allocated)
	assert.Equal(t, tr.Snapshot().Peak.Bytes, d.GPU.Peak)
	for e := range tr.History().Events() {
		if e.Action == tracker.Allocated {
			assert.True(t, strings.HasPrefix(e.Section, "whole/part"))
		}
	}
	require.NoError(t, tr.Close())
}
