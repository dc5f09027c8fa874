package tracker

import (
	"context"

	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// Bind returns a function that calls f as a part of the section's work, in
// whichever goroutine it is called: what f allocates and frees there counts for s
// and carries its path, and a section that f opens is a part of s. When it
// returns, its goroutine is back in the sections that it was in before. This
// hands a section on to an errgroup or a go statement:
//
//	step := tr.Section("step")
//	defer step.End()
//	var group errgroup.Group
//	group.Go(step.Bind(load))
//	group.Go(step.Bind(copy))
//	err := group.Wait()
//
// The function may be called any number of times, by many goroutines at once, in
// another section's, and after s has ended: then the work counts for the
// innermost section around s that is still open, and if there is none, for none.
// Goroutines that f starts inherit nothing.
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

// SectionContext opens a section and returns a copy of ctx that carries it. It is
// a part of the section of this tracker that ctx carries, in whichever goroutine
// it is called; if ctx carries none, of the calling goroutine's innermost open
// one, as with Section. Like any section it must be ended:
//
//	ctx, step := tr.SectionContext(ctx, "step")
//	defer step.End()
//	go func() {
//		_, load := tr.SectionContext(ctx, "load") // "step/load"
//		defer load.End()
//		...
//	}()
//
// Only SectionContext looks into a context: what a goroutine allocates before it
// has opened a section, and a Section that it opens without the context, are no
// part of the one that the context carries. A ctx that is done ends nothing.
func (t *MemTracker) SectionContext(ctx context.Context, name string) (context.Context, *Section) {
	return t.sectionContext(ctx, snapshot.StackID(t.stacks.table.Capture(1)), name)
}

func (t *MemTracker) sectionContext(ctx context.Context, stack snapshot.StackID, name string) (context.Context, *Section) {
	parent, _ := ctx.Value(sectionKey{t}).(*Section)
	s := t.beginSection(stack, parent, name)
	return context.WithValue(ctx, sectionKey{t}, s), s
}

// sectionKey is what a context carries a tracker's section under.
type sectionKey struct{ tracker *MemTracker }
