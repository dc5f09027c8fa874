package tracker

import (
	"context"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/internal/slab"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Profile returns the sections that have ended, added up by path, in the order of a tree. It
// waits until the device has done their work.
func (t *MemTracker) Profile() *Profile {
	if t.closed.Load() {
		t.usedAfterClose("Profile")
	}
	t.readDeviceTimes(0)
	return t.profile()
}

// profile is Profile without waiting.
func (t *MemTracker) profile() *Profile {
	t.mu.Lock()
	names, stats := t.sections.paths.names, t.sections.stats.View()
	t.mu.Unlock()

	var rows []snapshot.ProfileRow
	stats.Read(t.mu, func(first slab.ID, paths []pathStats) {
		for i, s := range paths {
			if s.calls > 0 || !s.live.IsZero() {
				rows = append(rows, s.row(names[int(first)+i], t.stacks.Site(s.stack), t.stacks.Stack(s.stack)))
			}
		}
	})
	return snapshot.NewProfile(rows)
}

func (s *pathStats) row(path string, site mem.Frame, stack mem.Stack) snapshot.ProfileRow {
	r := snapshot.ProfileRow{
		Path: path, Site: site, Stack: stack, Calls: s.calls, Time: s.time, DeviceTime: -1, CPUTime: s.cpuTime, RSS: s.rss, Heap: s.heap,
		Allocated: s.allocated, Freed: s.freed, Peak: s.peak, OwnPeak: s.ownPeak, Live: s.live,
	}
	if s.timed > 0 {
		r.DeviceTime = s.deviceTime
	}
	if s.layer != nil {
		r.Layer = *s.layer
	}
	return r
}

// Bind returns a function that calls f as a part of the section's work, in any goroutine: what
// f allocates and frees counts for s and carries its path, and a section that f begins is a
// part of s. When f returns, its goroutine is back in its own sections. Use it with an
// errgroup or a go statement:
//
//	step := tr.Section("step")
//	defer step.End()
//	var group errgroup.Group
//	group.Go(step.Bind(load))
//	group.Go(step.Bind(copy))
//	err := group.Wait()
//
// The function may be called any number of times and by many goroutines at once. If s has
// ended, the work counts for the innermost section around s that is still open, if there is
// one. Goroutines that f starts are not part of s. The error is f's.
func (s *Section) Bind(f func() error) func() error {
	return func() error {
		in := &frame{section: &s.section, bound: true}
		s.tracker.enterFrame(in)
		defer s.tracker.leaveFrame(in)
		return f()
	}
}

func (t *MemTracker) enterFrame(f *frame) {
	here := callstack.Goroutine()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed.Load() {
		t.sections.enter(f, here)
	}
}

func (t *MemTracker) leaveFrame(f *frame) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if !t.closed.Load() {
		t.sections.leave(f)
	}
}

// SectionContext begins a section and returns a copy of ctx that carries it. The section is
// part of the section of this tracker that ctx carries, in any goroutine. If ctx carries none,
// it is part of the calling goroutine's innermost open section, as with Section. Like any
// section it must be ended:
//
//	ctx, step := tr.SectionContext(ctx, "step")
//	defer step.End()
//	go func() {
//		_, load := tr.SectionContext(ctx, "load") // "step/load"
//		defer load.End()
//		...
//	}()
//
// Only SectionContext reads a context. Allocations that a goroutine makes before it begins a
// section, and sections that it begins without the context, are not part of the section that
// the context carries. Cancelling ctx does not end the section.
func (t *MemTracker) SectionContext(ctx context.Context, name string) (context.Context, *Section) {
	return t.sectionContext(ctx, tables.StackID(t.stacks.Table.Capture(1)), name)
}

func (t *MemTracker) sectionContext(ctx context.Context, stack tables.StackID, name string) (context.Context, *Section) {
	parent, _ := ctx.Value(sectionKey{t}).(*Section)
	s := t.beginSection(stack, parent, name)
	return context.WithValue(ctx, sectionKey{t}, s), s
}

// sectionKey is what a context carries a tracker's section under.
type sectionKey struct{ tracker *MemTracker }

// peaks are the highest levels that each of the open sections has seen, for a few
// steps at each begin and end, however many are open.
//
// The later a section began, the less it has seen, and the lower its peak is. So in
// the order of their beginnings the sections form runs of the same peak, each run's
// lower than the one's before it. A new level concerns only the last runs: they
// become part of the run before them when they have seen as much.
type peaks struct {
	youngest *run
}

// run is neighbouring sections with the same peak. Each section brings one, which
// is only a reference to another once it is part of it.
type run struct {
	peak           alloc.Bytes
	open           int  // its sections
	within         *run // the older one that it is part of
	older, younger *run
}

// begin enters the run of a section that begins at the level.
func (p *peaks) begin(r *run, level alloc.Bytes) {
	r.peak, r.open = level, 1
	if r.older = p.youngest; r.older != nil {
		r.older.younger = r
	}
	p.youngest = r
	p.raise(level)
}

// raise raises the peaks of all open sections to the level, at least.
func (p *peaks) raise(level alloc.Bytes) {
	r := p.youngest
	if r == nil {
		return
	}
	r.peak = max(r.peak, level)
	for older := r.older; older != nil && older.peak <= r.peak; older = r.older {
		older.peak = r.peak
		older.open += r.open
		older.younger = nil
		r.within, r.older = older, nil
		r = older
	}
	p.youngest = r
}

// end takes a section out, and returns its peak.
func (p *peaks) end(r *run) alloc.Bytes {
	r = r.whole()
	r.open--
	if r.open > 0 {
		return r.peak
	}
	if r.older != nil {
		r.older.younger = r.younger
	}
	if r.younger != nil {
		r.younger.older = r.older
	} else {
		p.youngest = r.older
	}
	r.older, r.younger = nil, nil
	return r.peak
}

// whole returns the run that r is part of by now.
func (r *run) whole() *run {
	for r.within != nil {
		if r.within.within != nil {
			r.within = r.within.within
		}
		r = r.within
	}
	return r
}
