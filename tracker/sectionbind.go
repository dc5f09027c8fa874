package tracker

import (
	"context"

	"github.com/gpumemtrack/gpumemtrack/internal/callstack"
	"github.com/gpumemtrack/gpumemtrack/tracker/internal/tables"
)

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

// sectionKey is the key under which a context carries a tracker's section.
type sectionKey struct{ tracker *MemTracker }
