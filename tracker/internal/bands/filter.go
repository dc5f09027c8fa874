package bands

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Filter says which allocations a layer has. All that is set must hold. The zero Filter passes everything.
type Filter struct {
	Text        string   // is in a frame of the stack ("function" or "file:line"), the kind or the label, in upper or lower case
	Lines       []uint32 // one of these
	Kinds       []uint16 // one of these
	Allocations []uint32 // one of these
	MinBytes    int64
	MaxBytes    int64 // 0 is no bound
	MinLife     float64
	MaxLife     float64 // 0 is no bound; in seconds, or in events if the index is untimed
	// Stack and Depth pass the stacks that share their outermost frames, as many as Depth, with a stack. Depth 0 passes all.
	Stack uint32
	Depth int
}

// Key is equal for equal filters only.
func (f *Filter) Key() string { return fmt.Sprintf("%+v", *f) }

// IsZero reports whether the filter passes everything.
func (f *Filter) IsZero() bool {
	return f.Text == "" && len(f.Lines) == 0 && len(f.Kinds) == 0 && len(f.Allocations) == 0 &&
		f.MinBytes == 0 && f.MaxBytes == 0 && f.MinLife == 0 && f.MaxLife == 0 && f.Depth == 0
}

// NewLayer returns the allocations of an index that pass a filter. The error is the context's.
func NewLayer(ctx context.Context, x *Index, f Filter) (*Layer, error) {
	if f.IsZero() {
		return x.All, nil
	}
	l := &Layer{ids: []uint32{}}
	add := func(id uint32) {
		l.ids = append(l.ids, id)
		l.born, l.died, l.bytes = append(l.born, x.All.born[id]), append(l.died, x.All.died[id]), append(l.bytes, x.All.bytes[id])
	}
	t, err := newTest(ctx, x, f)
	if err != nil {
		return nil, err
	}
	if len(f.Allocations) > 0 {
		for _, id := range slices.Compact(slices.Sorted(slices.Values(f.Allocations))) {
			if int(id) < x.Len() && t.passes(id) {
				add(id)
			}
		}
	} else {
		for id := range uint32(x.Len()) {
			if id%checkEvery == 0 && ctx.Err() != nil {
				return nil, context.Cause(ctx)
			}
			if t.passes(id) {
				add(id)
			}
		}
	}
	l.finish(x.Moments())
	return l, nil
}

// test is a filter whose questions about stacks and kinds are answered.
type test struct {
	*Index
	Filter
	stacks []bool // those that pass; nil if all do
	kinds  []bool
	named  map[uint32]bool // allocations whose labels have the text
	text   []bool          // kinds that have the text; nil if there is none
	others []bool          // where there is a text: the stacks that pass all else; nil if all do
}

func newTest(ctx context.Context, x *Index, f Filter) (*test, error) {
	t := &test{Index: x, Filter: f}
	if len(f.Kinds) > 0 {
		t.kinds = make([]bool, 1<<16)
		for _, k := range f.Kinds {
			t.kinds[k] = true
		}
	}
	if len(f.Lines) > 0 {
		t.stacks = make([]bool, len(x.stackOf))
		for _, line := range f.Lines {
			for _, stack := range x.lineOf[line] {
				t.stacks[stack] = true
			}
		}
	}
	if f.Depth > 0 {
		if int(f.Stack) >= len(x.stackOf) {
			t.stacks = make([]bool, len(x.stackOf))
			return t, nil
		}
		want, _ := x.Stack(f.Stack)
		t.and(func(s mem.Stack) bool { return sharesOuter(want, s, f.Depth) })
	}
	if f.Text != "" {
		return t, t.search(ctx)
	}
	return t, ctx.Err()
}

// and lets only stacks pass that also pass a test.
func (t *test) and(passes func(mem.Stack) bool) {
	all := t.stacks == nil
	if all {
		t.stacks = make([]bool, len(t.stackOf))
	}
	for i := range t.stacks {
		if all || t.stacks[i] {
			stack, _ := t.Index.Stack(uint32(i))
			t.stacks[i] = passes(stack)
		}
	}
}

// sharesOuter reports whether two stacks, innermost first, have the same n outermost frames.
func sharesOuter(a, b mem.Stack, n int) bool {
	return len(a) >= n && len(b) >= n && slices.Equal(a[len(a)-n:], b[len(b)-n:])
}

// search finds the stacks, kinds and labels that have the text.
func (t *test) search(ctx context.Context) error {
	text := strings.ToLower(t.Text)
	has := func(s string) bool { return strings.Contains(strings.ToLower(s), text) }
	known := make(map[mem.Frame]bool)
	frame := func(f *mem.Frame) bool {
		found, ok := known[*f]
		if !ok {
			found = has(f.Function) || has(fmt.Sprintf("%s:%d", f.File, f.Line))
			known[*f] = found
		}
		return found
	}
	found := make([]bool, len(t.stackOf))
	for i := range found {
		if i%1024 == 0 && ctx.Err() != nil {
			return context.Cause(ctx)
		}
		stack, _ := t.Index.Stack(uint32(i))
		for j := range stack {
			if frame(&stack[j]) {
				found[i] = true
				break
			}
		}
	}
	t.named = make(map[uint32]bool)
	_, n := t.Names.Len()
	t.text = make([]bool, n)
	for k := range t.text {
		t.text[k] = has(t.Names.Kind(uint16(k)))
	}
	labels(t.Index, func(id uint32, label string) {
		if has(label) {
			t.named[id] = true
		}
	})
	for i := range found {
		found[i] = found[i] && (t.stacks == nil || t.stacks[i])
	}
	t.stacks, t.others = found, t.stacks
	return nil
}

// passes reports whether an allocation passes.
func (t *test) passes(id uint32) bool {
	if t.stacks != nil && !t.stacks[t.Index.stacks[id]] && !t.byName(id) {
		return false
	}
	if t.kinds != nil && !t.kinds[t.Index.kinds[id]] {
		return false
	}
	if n := t.All.bytes[id]; n < t.MinBytes || t.MaxBytes > 0 && n > t.MaxBytes {
		return false
	}
	if t.MinLife > 0 || t.MaxLife > 0 {
		life := t.Lifetime(id)
		return life >= t.MinLife && (t.MaxLife == 0 || life <= t.MaxLife)
	}
	return true
}

// byName reports whether the kind or the label of an allocation has the text.
func (t *test) byName(id uint32) bool {
	if t.text == nil || t.others != nil && !t.others[t.Index.stacks[id]] {
		return false
	}
	return int(t.Index.kinds[id]) < len(t.text) && t.text[t.Index.kinds[id]] || t.named[id]
}
