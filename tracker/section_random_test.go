package tracker_test

import (
	"context"
	"io"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/alloc/sim"
	"github.com/gpumemtrack/gpumemtrack/tracker"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot/sections"
)

// TestRandomSections runs programs of several goroutines that take turns: they open
// sections in every way, hand them on, end them in any order and anywhere, and allocate
// and free meanwhile. Each section is compared with a naive account of it.
func TestRandomSections(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		dev, err := sim.New(sim.Config{Memory: alloc.GiB})
		require.NoError(rt, err)
		tr, err := tracker.New(tracker.Config{
			Device: dev, Report: io.Discard, MaxEvents: 10, Sections: tracker.SectionConfig{Host: "none"},
		})
		require.NoError(rt, err)
		p := &sectionProgram{T: rt, tr: tr}
		for range 3 {
			p.threads = append(p.threads, newThread())
		}
		rt.Repeat(map[string]func(*rapid.T){
			"section":        p.section,
			"sectionContext": p.sectionContext,
			"part":           p.part,
			"bind":           p.bind,
			"return":         p.unbind,
			"end":            p.end,
			"endAgain":       p.end,
			"alloc":          p.alloc,
			"allocMore":      p.alloc,
			"free":           p.free,
			"resetPeak":      func(*rapid.T) { tr.ResetPeak() }, // a section's peak is its own
			"":               p.check,
		})
		for _, th := range p.threads {
			for range th.bound() {
				th.back()
			}
			close(th.work)
		}
		p.check(rt)
		require.NoError(rt, tr.Close())
	})
}

type sectionProgram struct {
	*rapid.T
	tr       *tracker.MemTracker
	threads  []*thread
	sections []*account // ever
	live     []held
	level    alloc.Bytes
}

// account is what a section should measure.
type account struct {
	*tracker.Section
	ctx              context.Context
	parent           *account
	path             string
	start, end, peak alloc.Bytes
	allocated, freed mem.Tally
	selfPeak         alloc.Bytes
	ended            bool
}

type held struct {
	*tracker.Buffer
	path string
}

// open returns the section or the innermost one around it that has not ended.
func (a *account) open() *account {
	for a != nil && a.ended {
		a = a.parent
	}
	return a
}

// thread is a goroutine that does what it is told, and the sections that it is in: those
// that it opened, and those that it works for, the innermost last.
type thread struct {
	work chan func()
	done chan struct{}
	in   []place
}

type place struct {
	*account
	bound bool
}

func newThread() *thread {
	th := &thread{work: make(chan func()), done: make(chan struct{})}
	go th.serve()
	return th
}

// serve does the work until it is told to return.
func (th *thread) serve() error {
	for f := range th.work {
		if f == nil {
			return nil
		}
		f()
		th.done <- struct{}{}
	}
	return nil
}

func (th *thread) do(f func()) {
	th.work <- f
	<-th.done
}

// into has the thread serve as a part of the section until back.
func (th *thread) into(a *account) {
	th.in = append(th.in, place{a, true})
	th.do(func() {
		th.done <- struct{}{}
		if err := a.Bind(th.serve)(); err != nil {
			panic(err)
		}
	})
}

// back returns from the last bound function.
func (th *thread) back() {
	i := len(th.in) - 1
	for !th.in[i].bound {
		i--
	}
	th.in = th.in[:i]
	th.do(nil)
}

func (th *thread) bound() (bound []place) {
	for _, in := range th.in {
		if in.bound {
			bound = append(bound, in)
		}
	}
	return bound
}

// around is the section that the thread is in.
func (th *thread) around() *account {
	if len(th.in) == 0 {
		return nil
	}
	return th.in[len(th.in)-1].account
}

// left has the thread leave a section that ended: with those that it opened inside, if it
// ended it itself.
func (th *thread) left(a *account, itself bool) {
	i := slices.Index(th.in, place{a, false})
	if i < 0 {
		return
	}
	end := i + 1
	for itself && end < len(th.in) && !th.in[end].bound {
		end++
	}
	th.in = slices.Delete(th.in, i, end)
}

func (p *sectionProgram) thread() *thread { return rapid.SampledFrom(p.threads).Draw(p.T, "thread") }

func (p *sectionProgram) any() *account {
	if len(p.sections) == 0 {
		p.Skip("no section yet")
	}
	return rapid.SampledFrom(p.sections).Draw(p.T, "section")
}

func (p *sectionProgram) section(*rapid.T) {
	th := p.thread()
	p.add(th, th.around(), p.tr.Section)
}

func (p *sectionProgram) part(*rapid.T) {
	parent := p.any()
	p.add(p.thread(), parent, parent.Section.Section)
}

func (p *sectionProgram) sectionContext(*rapid.T) {
	th := p.thread()
	parent, ctx := th.around(), context.Background()
	if rapid.Bool().Draw(p.T, "from a context") {
		parent = p.any()
		for parent.ctx == nil {
			if parent = parent.parent; parent == nil {
				p.Skip("no context carries it")
			}
		}
		ctx = parent.ctx
	}
	p.add(th, parent, func(name string) (s *tracker.Section) {
		ctx, s = p.tr.SectionContext(ctx, name)
		return s
	}).ctx = ctx
}

// add has the thread open a section.
func (p *sectionProgram) add(th *thread, parent *account, open func(string) *tracker.Section) *account {
	a := &account{parent: parent, path: rapid.SampledFrom([]string{"a", "b", "b/c"}).Draw(p.T, "name"), start: p.level, peak: p.level}
	th.do(func() { a.Section = open(a.path) })
	if parent != nil {
		a.path = parent.path + "/" + a.path
	}
	p.sections = append(p.sections, a)
	th.in = append(th.in, place{a, false})
	return a
}

func (p *sectionProgram) bind(*rapid.T) { p.thread().into(p.any()) }

func (p *sectionProgram) unbind(*rapid.T) {
	th := p.thread()
	if len(th.bound()) == 0 {
		p.Skip("it works for nobody")
	}
	th.back()
}

func (p *sectionProgram) end(*rapid.T) {
	a, th := p.any(), p.thread()
	th.do(a.End)
	if a.ended {
		return
	}
	a.ended, a.end = true, p.level
	for _, other := range p.threads {
		other.left(a, other == th)
	}
}

func (p *sectionProgram) alloc(*rapid.T) {
	th := p.thread()
	shape := alloc.Shape{rapid.SampledFrom([]int{0, 1, 1000, 1 << 20}).Draw(p.T, "elements")}
	var buf *tracker.Buffer
	var err error
	th.do(func() { buf, err = p.tr.Alloc(shape, alloc.Float32, tracker.Activation) })
	require.NoError(p, err)
	in := th.around().open()
	path := ""
	if in != nil {
		path = in.path
	}
	p.live = append(p.live, held{buf, path})
	p.level += buf.Bytes()
	for ; in != nil; in = in.parent.open() {
		in.allocated = in.allocated.Add(mem.Tally{Count: 1, Bytes: buf.Bytes()})
		in.selfPeak = max(in.selfPeak, in.allocated.Bytes-in.freed.Bytes)
	}
	for _, a := range p.sections {
		if !a.ended {
			a.peak = max(a.peak, p.level)
		}
	}
}

func (p *sectionProgram) free(*rapid.T) {
	if len(p.live) == 0 {
		p.Skip("nothing is live")
	}
	th, i := p.thread(), rapid.IntRange(0, len(p.live)-1).Draw(p.T, "buffer")
	buf := p.live[i]
	p.live = slices.Delete(p.live, i, i+1)
	var err error
	th.do(func() { err = buf.Free() })
	require.NoError(p, err)
	p.level -= buf.Bytes()
	for in := th.around().open(); in != nil; in = in.parent.open() {
		in.freed = in.freed.Add(mem.Tally{Count: 1, Bytes: buf.Bytes()})
	}
}

func (p *sectionProgram) check(*rapid.T) {
	calls := make(map[string]int64)
	for _, a := range p.sections {
		now := p.level
		if a.ended {
			now = a.end
			calls[a.path]++
		}
		d := a.Data()
		require.Equal(p, a.path, d.Path)
		require.Equal(p, sections.MemoryUse{Before: a.start, Used: now, Peak: a.peak}, d.GPU, a.path)
		require.Equal(p, a.allocated, d.Allocated, a.path)
		require.Equal(p, a.freed, d.Freed, a.path)
		require.Equal(p, a.selfPeak, d.SelfPeak, a.path)
		require.Empty(p, d.Incomplete)
	}
	for _, r := range p.tr.Profile() {
		require.Equal(p, calls[r.Path], r.Calls, r.Path)
	}
	paths := make(map[alloc.Ptr]string)
	for a := range p.tr.Snapshot().Allocations() {
		paths[a.Ptr] = a.Section
	}
	for _, buf := range p.live {
		require.Equal(p, buf.path, paths[buf.Ptr()])
	}
}
