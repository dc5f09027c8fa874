package bands

import (
	"cmp"
	"context"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/tracker/mem"
)

// Frame is a frame of a flame graph with everything that it called. It stands for the stacks that share the outermost Depth
// frames of Stack: see Filter.
type Frame struct {
	mem.Frame
	Value    float64
	Count    int64
	Stack    uint32 // None of a Frame that sums up others
	Depth    int
	Children []*Frame // by Value
}

// Flame lays the stacks of a layer over each other, outermost frames first. It sums up the bytes that are live at the
// selection's moment, or, of lifetimes, the bytes times the part of each lifetime in its range. It has at most so many frames
// below its root, and for each frame at most one without a name, which sums up the calls of least value. The error is the
// context's.
func Flame(ctx context.Context, x *Index, l *Layer, s Selection, lifetimes bool, most int) (*Frame, error) {
	sums, err := ByStack(ctx, x, l, s)
	if err != nil {
		return nil, err
	}
	weights := make([]weighed, 0, len(sums))
	for i := range sums {
		w := weighed{uint32(i), float64(sums[i].LiveBytes), sums[i].LiveCount}
		if lifetimes {
			w.value, w.count = sums[i].Lifetime, sums[i].BornCount
		}
		if w.value > 0 {
			weights = append(weights, w)
		}
	}
	slices.SortFunc(weights, func(a, b weighed) int { return cmp.Or(cmp.Compare(b.value, a.value), cmp.Compare(a.stack, b.stack)) })
	f := flame{Index: x, left: most}
	root := &Frame{Stack: None}
	for i, w := range weights {
		if i%1024 == 0 && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		root.Value, root.Count = root.Value+w.value, root.Count+w.count
	}
	f.grow(root, weights, root.Value/float64(2*most))
	return root, ctx.Err()
}

type weighed struct {
	stack uint32
	value float64
	count int64
}

// flame makes frames, as many as are left.
type flame struct {
	*Index
	left int
}

// pendingFrame is a frame whose calls are not made yet.
type pendingFrame struct {
	*Frame
	of []weighed
}

// grow makes the calls below a frame, those of most value first. What is below the least value is summed up.
func (f *flame) grow(root *Frame, of []weighed, least float64) {
	queue := []pendingFrame{{root, of}}
	for len(queue) > 0 {
		at := queue[0]
		queue = queue[1:]
		calls := f.calls(at)
		var rest *Frame
		for _, c := range calls {
			if c.Value < least || f.left <= 1 {
				if rest == nil {
					rest = &Frame{Stack: None, Depth: at.Depth + 1}
				}
				rest.Value, rest.Count = rest.Value+c.Value, rest.Count+c.Count
				continue
			}
			f.left--
			at.Children = append(at.Children, c.Frame)
			queue = append(queue, c)
		}
		if rest != nil {
			f.left--
			at.Children = append(at.Children, rest)
		}
	}
}

// calls groups the stacks below a frame by their next frame.
func (f *flame) calls(at pendingFrame) []pendingFrame {
	index := make(map[mem.Frame]int)
	var out []pendingFrame
	for _, w := range at.of {
		stack, _ := f.Index.Stack(w.stack)
		var next mem.Frame
		switch {
		case at.Depth < len(stack):
			next = stack[len(stack)-1-at.Depth]
		case len(stack) > 0 || at.Depth > 0:
			continue // it ends here
		default:
			next = mem.Frame{Function: "unknown"}
		}
		i, ok := index[next]
		if !ok {
			i = len(out)
			index[next] = i
			out = append(out, pendingFrame{&Frame{Frame: next, Stack: w.stack, Depth: at.Depth + 1}, nil})
		}
		out[i].Value, out[i].Count = out[i].Value+w.value, out[i].Count+w.count
		out[i].of = append(out[i].of, w)
	}
	slices.SortStableFunc(out, func(a, b pendingFrame) int { return cmp.Compare(b.Value, a.Value) })
	return out
}
