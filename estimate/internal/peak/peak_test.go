package peak_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/peak"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/timeline"
)

// program is what a test's model does with its input. Tensors are of bytes, so that each takes as much memory as it has
// elements. The output's size differs from the others' where it must be found among them.
type program func(f *tape.Flow, x tape.Tensor) tape.Tensor

// taped returns the tape of a program that reads an input of 7 bytes. The parts are those that it calls.
func taped(t *testing.T, forward program, opts ...func(*setting.Config)) *tape.Tape {
	return tapedWith(t, nil, forward, opts...)
}

func tapedWith(t *testing.T, parts tape.Sequential, forward program, opts ...func(*setting.Config)) *tape.Tape {
	t.Helper()
	cfg, err := setting.New(func(c *setting.Config) {
		for _, o := range opts {
			o(c)
		}
	})
	require.NoError(t, err)
	memory := tape.Scratches.New().(*tape.Scratch)
	decl := tape.NewDeclaration(memory, cfg)
	root := tape.Module{Parts: parts, Run: forward}
	require.NoError(t, decl.Run(root, "test"))
	r := &tape.Tape{
		Memory: memory, Cfg: cfg, Decl: decl, Row: -1, Next: 1, Called: make([]bool, len(decl.Modules)),
		Matched: make([]bool, len(cfg.Checkpoints)), Homes: map[tape.Layer]string{},
	}
	r.AddInput(alloc.Shape{7}, alloc.Uint8, 7)
	r.Out, err = r.Record(root, r.Inputs[0])
	require.NoError(t, err)
	return r
}

// op is an operation with parameters whose output takes n bytes. Unless it says more it keeps nothing.
func op(f *tape.Flow, n int, o tape.Op, in ...tape.Tensor) tape.Tensor {
	o.In, o.Shape, o.Params = in, alloc.Shape{n}, true
	return f.Op(o)
}

// keeping is an operation whose backward pass needs its first input.
func keeping(f *tape.Flow, n int, in ...tape.Tensor) tape.Tensor {
	return op(f, n, tape.Op{Keep: in[:1]}, in...)
}

// sum adds two tensors of n elements. The gradient of the sum is that of both.
func sum(f *tape.Flow, n int, x, y tape.Tensor) tape.Tensor { return sumWith(f, n, 0, x, y) }

// sumWith is a sum whose backward pass needs a workspace.
func sumWith(f *tape.Flow, n int, workspace alloc.Bytes, x, y tape.Tensor) tape.Tensor {
	return f.Op(tape.Op{In: []tape.Tensor{x, y}, Shape: alloc.Shape{n}, PassGrad: true, BackwardWorkspace: workspace})
}

// played is what a log of allocations and frees amounts to.
type played struct {
	most int64           // the most bytes in use
	left map[int32]int64 // what is in use at the end, by handle
}

// play follows the events of a log, and fails where they cannot be: no handle is allocated or freed twice.
func play(t *testing.T, events []timeline.Event) played {
	t.Helper()
	p := played{left: map[int32]int64{}}
	now := int64(0)
	for i, e := range events {
		n, live := p.left[e.Handle]
		switch {
		case e.Handle < 0: // gradients of parameters
		case e.Bytes < 0:
			require.True(t, live, "event %d frees what is not in use", i)
			delete(p.left, e.Handle)
			now -= n
		default:
			require.False(t, live, "event %d allocates what is in use", i)
			p.left[e.Handle] = e.Bytes
			now += e.Bytes
		}
		p.most = max(p.most, now)
	}
	return p
}

// infers asserts the peak of a range of operations in inference, with and without a log, and what the caller holds at the end.
func infers(t *testing.T, r *tape.Tape, begin, end int, want peak.Peak, held ...int64) {
	t.Helper()
	got, _ := peak.Inference(r, int32(begin), int32(end), nil)
	assert.Equal(t, want, got)
	logged, done := peak.Inference(r, int32(begin), int32(end), &timeline.Timeline{})
	assert.Equal(t, want, logged, "with a log")
	assert.Len(t, done.Events, done.Turn, "there is no backward pass")
	p := play(t, done.Events)
	if begin == 0 {
		assert.Equal(t, want.Bytes, p.most, "of the log")
	}
	assert.Equal(t, held, sizes(p, done))
	assert.Len(t, p.left, len(done.Held), "everything else is freed")
}

// sizes are those of what the caller holds when the passes are over.
func sizes(p played, done timeline.Passes) []int64 {
	var held []int64
	for _, h := range done.Held {
		held = append(held, p.left[h])
	}
	return held
}

// A tensor lives from the operation that makes it to the last that reads it. The input is the caller's.
func TestInferenceFreesWhatNothingReads(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		b := op(f, 30, tape.Op{}, a)
		return op(f, 10, tape.Op{}, b)
	})
	infers(t, r, 0, 3, peak.Peak{Bytes: 130, Op: 1}, 10)
}

// Of several moments with as much in use, the peak is the first.
func TestThePeakIsTheFirstOfItsKind(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 50, tape.Op{}, x)
		b := op(f, 50, tape.Op{}, a)
		return op(f, 50, tape.Op{}, b)
	})
	infers(t, r, 0, 3, peak.Peak{Bytes: 100, Op: 1}, 50)
}

// Workspaces are in use only while their operation runs.
func TestInferenceWithWorkspaces(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{Workspace: 60}, x)
		b := op(f, 30, tape.Op{Workspace: 20}, a)
		return op(f, 10, tape.Op{}, b)
	})
	infers(t, r, 0, 3, peak.Peak{Bytes: 160, Op: 0}, 10)
}

// In inference too, a kernel makes the tensors that it would keep, and drops them. One that works in place makes none: its
// indices are those of the memory that it overwrites.
func TestInferenceWithTensorsOfTheOperation(t *testing.T) {
	own := []tape.Own{{Shape: alloc.Shape{40}}}
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{KeepOwn: own}, x)
		return op(f, 10, tape.Op{}, a)
	})
	infers(t, r, 0, 2, peak.Peak{Bytes: 140, Op: 0}, 10)
	r = taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		a = op(f, 100, tape.Op{KeepOwn: own, InPlace: true}, a)
		return op(f, 10, tape.Op{}, a)
	})
	infers(t, r, 0, 3, peak.Peak{Bytes: 110, Op: 2}, 10)
}

// Autocast keeps the narrow copy of a weight until the forward pass is over. It is one tensor, and no workspace of the
// operation that made it.
func TestInferenceWithCachedCopies(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{KeepOwn: []tape.Own{{Shape: alloc.Shape{40}}}}, x)
		b := op(f, 30, tape.Op{}, a)
		return op(f, 10, tape.Op{}, b)
	})
	cache(r, 40)
	infers(t, r, 0, 3, peak.Peak{Bytes: 170, Op: 1}, 10)
}

// cache makes the storage of n bytes a copy of a weight in autocast's cache, which is in use up to the last operation.
func cache(r *tape.Tape, n int64) {
	for i := range r.Storages {
		if s := &r.Storages[i]; s.Bytes == n {
			s.Cached, s.Last, s.LastRun = true, int32(len(r.Ops)-1), int32(len(r.Ops)-1)
		}
	}
}

// Dropout does nothing in inference: its output is its input, which lives as long as either is read.
func TestInferenceSkipsDropout(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		a = op(f, 100, tape.Op{TrainingOnly: true, Workspace: 500}, a)
		a = op(f, 100, tape.Op{TrainingOnly: true}, a)
		b := op(f, 30, tape.Op{}, a)
		return op(f, 10, tape.Op{}, b)
	})
	infers(t, r, 0, 5, peak.Peak{Bytes: 130, Op: 3}, 10)
}

// Dropout of the input is the input, which is the caller's.
func TestInferenceSkipsDropoutOfTheInput(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		return op(f, 10, tape.Op{}, op(f, 7, tape.Op{TrainingOnly: true}, x))
	})
	infers(t, r, 0, 2, peak.Peak{Bytes: 10, Op: 1}, 10)
}

// A table that no operation reads is not counted.
func TestWhatNothingReads(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		y := op(f, 10, tape.Op{}, op(f, 100, tape.Op{}, x))
		f.Const(alloc.Uint8, 1000)
		return y
	})
	infers(t, r, 0, 2, peak.Peak{Bytes: 110, Op: 1}, 10)
	trains(t, r, training{}, peak.Peak{Bytes: 10 + 10 + 100, Op: 1, Backward: true}, 10)
}

// The parts of a tensor take no memory of their own, and it lives as long as one of them is read.
func TestInferenceWithParts(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		parts := f.Views(a, alloc.Shape{60}, alloc.Shape{40})
		b := op(f, 20, tape.Op{}, parts[0])
		c := op(f, 30, tape.Op{}, parts[1], b)
		return op(f, 10, tape.Op{}, c)
	})
	infers(t, r, 0, 5, peak.Peak{Bytes: 150, Op: 3}, 10)
}

// A stage of a pipeline begins with what earlier stages made for it, each tensor once.
func TestInferenceOfAStage(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		b := op(f, 30, tape.Op{}, a)
		c := op(f, 20, tape.Op{Workspace: 25}, b, x)
		d := op(f, 50, tape.Op{}, c, a)
		return op(f, 10, tape.Op{}, d, a)
	})
	infers(t, r, 0, 2, peak.Peak{Bytes: 130, Op: 1})
	// a and b are there, although a is read by the next operation only.
	infers(t, r, 2, 5, peak.Peak{Bytes: 100 + 30 + 20 + 25, Op: 2}, 10)
	r.Ops[2].Workspace = 0
	// b is freed after the operation that reads it.
	infers(t, r, 2, 5, peak.Peak{Bytes: 100 + 20 + 50, Op: 3}, 10)
}

// The caller holds the output, and what the loss read of it.
func TestTheCallerHoldsWhatTheLossRead(t *testing.T) {
	var logits tape.Tensor
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		logits = op(f, 100, tape.Op{}, x)
		a := op(f, 30, tape.Op{}, logits)
		return op(f, 10, tape.Op{}, a)
	})
	r.Answer = []int32{logits.Storage()}
	infers(t, r, 0, 3, peak.Peak{Bytes: 140, Op: 2}, 100, 10)
	assert.True(t, peak.Returns(r, logits.Storage(), true))
	assert.True(t, peak.Returns(r, r.Out.Storage(), true))
	assert.False(t, peak.Returns(r, r.Inputs[0].Storage(), true))
}

// What lingers with the output, such as an input that an old bitsandbytes keeps, does so through its graph, which is one of training.
func TestWhatLingersInTraining(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		return op(f, 10, tape.Op{}, op(f, 100, tape.Op{}, x))
	})
	id := r.Ops[0].Out
	r.Storages[id].Lingers = true
	assert.True(t, peak.Returns(r, id, false))
	assert.False(t, peak.Returns(r, id, true))
	infers(t, r, 0, 2, peak.Peak{Bytes: 110, Op: 1}, 10)
	trains(t, r, training{}, peak.Peak{Bytes: 220, Op: 1, Backward: true}, 100, 10)
}
