package peak_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/peak"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/timeline"
)

// training says how a step trains, beside its tape. The zero value is a step over the whole tape without other
// micro-batches, whose parameters' gradients take no memory.
type training struct {
	begin, end int // 0 for end means all
	gradients  map[int]tape.Gradient
	from       setting.GradientsAt
	others     int64
	drop       bool
}

// run returns the peak and, if there is a log, what it has.
func (s training) run(r *tape.Tape, log *timeline.Timeline) (peak.Peak, timeline.Passes) {
	gradients := make([]tape.Gradient, len(r.Ops))
	for i, g := range s.gradients {
		gradients[i] = g
	}
	end := s.end
	if end == 0 {
		end = len(r.Ops)
	}
	return peak.Training(r, int32(s.begin), int32(end), gradients, s.from, s.others, s.drop, log)
}

// trains asserts the peak of a training step, with and without a log, and what the caller holds when it is over.
func trains(t *testing.T, r *tape.Tape, s training, want peak.Peak, held ...int64) {
	t.Helper()
	got, _ := s.run(r, nil)
	assert.Equal(t, want, got)
	logged, done := s.run(r, &timeline.Timeline{})
	assert.Equal(t, want, logged, "with a log")
	p := play(t, done.Events)
	if s.gradients == nil && s.others == 0 && s.begin == 0 && s.from == (setting.GradientsAt{}) {
		assert.Equal(t, want.Bytes, p.most, "of the log")
	}
	assert.Equal(t, held, sizes(p, done))
	if s.begin == 0 {
		assert.Len(t, p.left, len(done.Held)+1, "besides what is held, the gradient of the output is left")
	}
}

// What an operation keeps is saved until its backward pass, which also needs the gradients of its output and its input.
func TestTrainingKeepsWhatBackwardNeeds(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		return keeping(f, 10, a)
	})
	// a, the output and its gradient, and the gradient of a.
	trains(t, r, training{}, peak.Peak{Bytes: 100 + 10 + 10 + 100, Saved: 100, Op: 1, Backward: true}, 10)
}

// What nothing keeps is freed in the forward pass already, so that the peak may lie there.
func TestThePeakOfAForwardPass(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		x.DType = alloc.Uint8
		a := f.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{100}})
		b := f.Op(tape.Op{In: []tape.Tensor{a}, Shape: alloc.Shape{90}, Workspace: 5})
		return keeping(f, 10, b)
	})
	// a and b need no gradient. The last operation keeps b.
	trains(t, r, training{}, peak.Peak{Bytes: 195, Saved: 90, Op: 1}, 10)
	_, done := training{}.run(r, &timeline.Timeline{})
	assert.Equal(t, int64(195), play(t, done.Forward()).most)
	assert.Equal(t, map[int]int{90: 1, 10: 1}, bySize(play(t, done.Forward()).left), "b is kept for the backward pass")
}

// bySize counts what is left by its size.
func bySize(left map[int32]int64) map[int]int {
	n := map[int]int{}
	for _, bytes := range left {
		n[int(bytes)]++
	}
	return n
}

// Workspaces of a forward pass are needed in the backward pass of the operation too, with those of the backward pass alone.
func TestBackwardWorkspaces(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		return op(f, 10, tape.Op{Workspace: 3, BackwardWorkspace: 4}, a)
	})
	trains(t, r, training{}, peak.Peak{Bytes: 10 + 10 + 100 + 3 + 4, Op: 1, Backward: true}, 10)
}

// A loss that computes its gradients in the forward pass needs its workspace there, and not again in its backward pass; a
// checkpointed layer that runs again needs it again.
func TestForwardWorkspaces(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		return op(f, 10, tape.Op{Workspace: 3, ForwardWorkspace: 150}, a)
	})
	trains(t, r, training{}, peak.Peak{Bytes: 100 + 10 + 3 + 150, Op: 1}, 10)
	infers(t, r, 0, 2, peak.Peak{Bytes: 100 + 10 + 3 + 150, Op: 1}, 10)
}

// Both terms of a sum have its gradient, in one buffer. Another gradient of a term is added to it in a new buffer then, as
// the other term still needs the old one: it is the gradient with which that term's backward pass runs.
func TestASharedGradientIsNotAddedToInPlace(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		b := op(f, 100, tape.Op{}, a)
		return sum(f, 100, a, b)
	})
	// While b's operation runs backward there are the output, its gradient (which is that of a and b), the new sum for a, and
	// the summand. No activation is kept.
	trains(t, r, training{}, peak.Peak{Bytes: 400, Op: 1, Backward: true}, 100)
}

// Where each reader of a tensor makes a gradient of its own, the second is added to the first in place.
func TestAGradientOfItsOwnIsAddedToInPlace(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		b := op(f, 1, tape.Op{}, a)
		c := op(f, 1, tape.Op{}, a)
		return sum(f, 1, b, c)
	})
	// The output and its gradient, the gradient of a, and the summand.
	trains(t, r, training{}, peak.Peak{Bytes: 1 + 1 + 100 + 100, Op: 1, Backward: true}, 1)
	_, done := training{}.run(r, &timeline.Timeline{})
	assert.Equal(t, []int64{1, 100, 100}, allocated(done.Backward()), "the gradients of the output and of a, and the summand")
}

// A gradient that a sum passes on is added to one that is there: in place if nothing else needs that one, and in a new
// buffer otherwise.
func TestAPassedGradientIsAdded(t *testing.T) {
	const workspace = 1000 // makes the sum's backward pass the peak
	inPlace := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		b := op(f, 100, tape.Op{}, x)
		s := sumWith(f, 100, workspace, a, b)
		c := op(f, 1, tape.Op{}, s)
		d := op(f, 1, tape.Op{}, a)
		return sum(f, 1, c, d)
	})
	// a has its gradient from d. That of s is b's, too, and nothing new is made for a.
	trains(t, inPlace, training{}, peak.Peak{Bytes: 1 + 1 + 100 + 100 + workspace, Op: 2, Backward: true}, 1)
	_, done := training{}.run(inPlace, &timeline.Timeline{})
	assert.Equal(t, []int64{1, 100, 100, workspace}, allocated(done.Backward()), "the gradients of the output, of a and of s")

	anew := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		b := op(f, 100, tape.Op{}, x)
		c := op(f, 100, tape.Op{}, x)
		s := sumWith(f, 100, workspace, a, b)
		d := op(f, 1, tape.Op{}, s)
		u := sum(f, 100, a, c)
		e := op(f, 1, tape.Op{}, u)
		return sum(f, 1, d, e)
	})
	// The gradient of u is that of a and of c. When that of s reaches a, c still needs it, so the sum is a third tensor.
	trains(t, anew, training{}, peak.Peak{Bytes: 1 + 1 + 300 + workspace, Op: 3, Backward: true}, 1)
}

// A narrow term of a sum in a wide type has a gradient of its own, in its own type.
func TestANarrowTermHasItsOwnGradient(t *testing.T) {
	autocast := func(c *setting.Config) { c.Autocast = alloc.BFloat16 }
	mixed := func(narrow, wide alloc.DType) *tape.Tape {
		return taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
			a := op(f, 50, tape.Op{DType: narrow}, x)
			b := op(f, 50, tape.Op{DType: wide}, x)
			return sumWith(f, 50, 1000, a, b)
		}, autocast)
	}
	// The output, its gradient, which is b's, and the narrower one of a.
	trains(t, mixed(alloc.BFloat16, alloc.Float32), training{}, peak.Peak{Bytes: 200 + 200 + 100 + 1000, Op: 2, Backward: true}, 200)
	// Of one type, both terms share the gradient.
	trains(t, mixed(alloc.Float32, alloc.Float32), training{}, peak.Peak{Bytes: 200 + 200 + 1000, Op: 2, Backward: true}, 200)
}

// A tensor that an operation reads twice has one gradient.
func TestATensorThatIsReadTwice(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		return op(f, 10, tape.Op{}, a, a)
	})
	trains(t, r, training{}, peak.Peak{Bytes: 10 + 10 + 100, Op: 1, Backward: true}, 10)
}

// A view has the memory of what it shows, and its gradient is that of its output.
func TestViewsHaveNoGradientOfTheirOwn(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		v := f.View(a, 10, 10)
		return op(f, 10, tape.Op{}, v)
	})
	trains(t, r, training{}, peak.Peak{Bytes: 10 + 10 + 100, Op: 2, Backward: true}, 10)
}

// An operation in place makes a new gradient, although its output is its input.
func TestBackwardOfAnOperationInPlace(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		a = op(f, 100, tape.Op{InPlace: true}, a)
		return op(f, 10, tape.Op{}, a)
	})
	trains(t, r, training{}, peak.Peak{Bytes: 10 + 10 + 100 + 100, Op: 1, Backward: true}, 10)
}

// The gradients of a tensor's parts are joined in a new one, with zeros for a part that has none.
func TestTheGradientsOfPartsAreJoined(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		parts := f.Views(a, alloc.Shape{60}, alloc.Shape{40})
		return op(f, 10, tape.Op{}, parts[0])
	})
	// The output, its gradient, that of the first part, zeros for the second, and the joined one.
	trains(t, r, training{}, peak.Peak{Bytes: 10 + 10 + 60 + 40 + 100, Op: 1, Backward: true}, 10)

	unread := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		f.Views(a, alloc.Shape{60}, alloc.Shape{40})
		return op(f, 10, tape.Op{}, x)
	})
	// No part has a gradient, so a has none either: the peak is in the forward pass, where a is made.
	trains(t, unread, training{}, peak.Peak{Bytes: 100, Op: 0}, 10)

	twice := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		parts := f.Views(a, alloc.Shape{60}, alloc.Shape{40})
		return op(f, 10, tape.Op{}, parts[0], parts[1], a)
	})
	// a has a gradient of its own already, and the joined one is added to it.
	trains(t, twice, training{}, peak.Peak{Bytes: 10 + 10 + 100 + 60 + 40 + 100, Op: 1, Backward: true}, 10)
}

// The gradients of parameters stay, or take memory for a moment where they are added or used up.
func TestGradientsOfParameters(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		return keeping(f, 10, a)
	})
	stay := map[int]tape.Gradient{0: {Stays: 50, Group: 1}, 1: {Stays: 20, Group: 2}}
	// Those of the second operation are there; those of the first come when no more than its output's gradient is left.
	trains(t, r, training{gradients: stay}, peak.Peak{Bytes: 220 + 20, Saved: 100, Gradients: 20, Op: 1, Backward: true}, 10)

	large := map[int]tape.Gradient{0: {Stays: 500, Group: 1}, 1: {Stays: 20, Group: 2}}
	// a is freed: the output, its gradient, and that of a, beside all gradients of parameters.
	trains(t, r, training{gradients: large}, peak.Peak{Bytes: 120 + 520, Gradients: 520, Op: 0, Backward: true}, 10)

	passing := map[int]tape.Gradient{1: {Passing: 30, Group: 1}}
	trains(t, r, training{gradients: passing}, peak.Peak{Bytes: 220 + 30, Saved: 100, Op: 1, Backward: true}, 10)

	tied := map[int]tape.Gradient{0: {Stays: -20, Group: 1}, 1: {Stays: 20, Group: 2}}
	tied[1] = tape.Gradient{Stays: 20, Group: 2}
	trains(t, r, training{gradients: tied}, peak.Peak{Bytes: 220 + 20, Saved: 100, Gradients: 20, Op: 1, Backward: true}, 10)
}

// Where the gradients are there, each new one is a summand that is used up at once, and what a tied parameter takes off is none.
func TestGradientsThatAreThere(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		return keeping(f, 10, a)
	})
	there := setting.GradientsAt{Forward: 70, Backward: 70}
	stay := map[int]tape.Gradient{0: {Stays: 50, Group: 1}, 1: {Stays: 20, Group: 2}}
	trains(t, r, training{gradients: stay, from: there}, peak.Peak{Bytes: 220 + 70 + 20, Saved: 100, Gradients: 70, Op: 1, Backward: true}, 10)
	tied := map[int]tape.Gradient{1: {Stays: -20, Group: 1}}
	trains(t, r, training{gradients: tied, from: there}, peak.Peak{Bytes: 220 + 70, Saved: 100, Gradients: 70, Op: 1, Backward: true}, 10)

	// zero_grad after the forward pass: the peak of that pass has the old gradients.
	only := setting.GradientsAt{Forward: 1000}
	trains(t, r, training{from: only}, peak.Peak{Bytes: 1000 + 110, Saved: 100, Gradients: 1000, Op: 1}, 10)
}

// The log says when the parameters' gradients of each group appear, and the workspace of the kernels that make them.
func TestTheLogHasTheGradients(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		return op(f, 10, tape.Op{Kernels: 9}, a)
	})
	_, done := training{gradients: map[int]tape.Gradient{0: {Stays: 5, Group: 1}, 1: {Stays: 5, Group: 2}}}.run(r, &timeline.Timeline{})
	var groups []timeline.Event
	for i, e := range done.Backward() {
		if e.Handle < 0 {
			groups = append(groups, e)
		}
		if e.Handle == -2 && e.Bytes == 0 {
			assert.Equal(t, int64(9), done.Backward()[i+1].Bytes, "the kernels' workspace follows")
		}
	}
	assert.Equal(t, []timeline.Event{{Handle: -2}, {Handle: -2, Bytes: -1}, {Handle: -1}, {Handle: -1, Bytes: -1}}, groups)
	for _, e := range done.Forward() {
		assert.GreaterOrEqual(t, e.Handle, int32(0))
	}
	assert.Equal(t, len(done.Events), len(done.Forward())+len(done.Backward()))
	assert.Greater(t, done.Turn, 0)
}

// Other micro-batches of a pipeline keep as much as this one, besides what it has at its peak. Inputs are the caller's.
func TestOtherMicroBatches(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := keeping(f, 100, x)
		b := op(f, 20, tape.Op{}, a)
		return keeping(f, 10, a, b)
	})
	alone := peak.Peak{Bytes: 100 + 10 + 10 + 100 + 20, Saved: 100, Op: 2, Backward: true}
	trains(t, r, training{}, alone, 10)
	with := alone
	with.Bytes, with.Saved = with.Bytes+300, with.Saved+300
	trains(t, r, training{others: 3}, with, 10)

	forward := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		x.DType = alloc.Uint8
		a := f.Op(tape.Op{In: []tape.Tensor{x}, Shape: alloc.Shape{1000}})
		b := f.Op(tape.Op{In: []tape.Tensor{a}, Shape: alloc.Shape{90}})
		return keeping(f, 10, b)
	})
	// The peak of the forward pass moves with them.
	trains(t, forward, training{others: 2}, peak.Peak{Bytes: 1090 + 180, Saved: 90 + 180, Op: 1}, 10)
}

// Code that drops the output frees it once nothing reads it.
func TestDroppedOutput(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		return keeping(f, 40, a)
	})
	trains(t, r, training{}, peak.Peak{Bytes: 100 + 40 + 40 + 100, Saved: 100, Op: 1, Backward: true}, 40)
	trains(t, r, training{drop: true}, peak.Peak{Bytes: 100 + 40 + 100, Saved: 100, Op: 1, Backward: true})
}

// A stage of a pipeline begins with what it reads of earlier stages, which is saved if the stage keeps it.
func TestTrainingOfAStage(t *testing.T) {
	r := taped(t, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		a := op(f, 100, tape.Op{}, x)
		b := keeping(f, 50, a)
		c := keeping(f, 30, b)
		return op(f, 10, tape.Op{}, c, a)
	})
	// a and b are there, and b is kept: a 100, b 50, c 30, the output and its gradient 20, the gradients of c and of a, which come
	// first, and then b's.
	trains(t, r, training{begin: 2}, peak.Peak{Bytes: 50 + 20 + 30 + 100 + 50, Saved: 50, Op: 2, Backward: true}, 10)
}

// blocked returns the tape of a model whose middle is a block that is checkpointed: its first operation makes 80 bytes, which
// its second needs, and that 60 bytes. The operations before and after it make 100 and 10.
func blocked(t *testing.T, first, second tape.Op, opts ...func(*setting.Config)) *tape.Tape {
	block := tape.Module{Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		first.Keep = []tape.Tensor{x}
		b := op(f, 80, first, x)
		second.Keep = []tape.Tensor{b}
		return op(f, 60, second, b)
	}}
	checkpointed := func(c *setting.Config) { c.Checkpoints = []string{"block"} }
	return tapedWith(t, tape.Sequential{tape.As("block", block)}, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		return keeping(f, 10, f.Call("block", op(f, 100, tape.Op{}, x)))
	}, append(opts, checkpointed)...)
}

// A checkpointed layer keeps its input alone. Its backward pass first runs it forward again, and by then what the forward
// pass returned is used up.
func TestCheckpointedLayersRunAgain(t *testing.T) {
	r := blocked(t, tape.Op{}, tape.Op{})
	// The input of the block and what its second operation keeps, the output and its gradient, and the gradients of the
	// block's output and of that tensor.
	trains(t, r, training{}, peak.Peak{Bytes: 100 + 80 + 10 + 10 + 60 + 80, Saved: 100 + 80, Op: 2, Backward: true}, 10)
}

// While it runs again, its output is made again too, beside the gradient of it.
func TestTheOutputIsMadeAgain(t *testing.T) {
	block := tape.Module{Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		b := keeping(f, 20, x)
		return op(f, 200, tape.Op{Keep: []tape.Tensor{b}, Workspace: 3}, b)
	}}
	r := tapedWith(t, tape.Sequential{tape.As("block", block)}, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		return keeping(f, 10, f.Call("block", op(f, 100, tape.Op{}, x)))
	}, func(c *setting.Config) { c.Checkpoints = []string{"block"} })
	trains(t, r, training{}, peak.Peak{Bytes: 100 + 20 + 200 + 3 + 10 + 10 + 200, Saved: 100 + 20, Op: 2, Backward: true}, 10)
}

// What the operations before and after a block keep is saved as usual, and its input is freed when its backward pass is over.
func TestAroundACheckpointedLayer(t *testing.T) {
	r := blocked(t, tape.Op{}, tape.Op{})
	r.Ops[3].Backward = 1000
	// The block's input and output, which the last operation keeps, with the gradients of both outputs.
	trains(t, r, training{}, peak.Peak{Bytes: 100 + 60 + 10 + 10 + 60 + 1000, Saved: 100 + 60, Op: 3, Backward: true}, 10)
	r.Ops[3].Backward, r.Ops[3].Workspace = 0, 1000
	trains(t, r, training{}, peak.Peak{Bytes: 100 + 60 + 10 + 10 + 60 + 1000, Saved: 100 + 60, Op: 3, Backward: true}, 10)
	r.Ops[3].Workspace, r.Ops[0].Backward = 0, 1000
	// The output, its gradient and that of the block's input.
	trains(t, r, training{}, peak.Peak{Bytes: 10 + 10 + 100 + 1000, Op: 0, Backward: true}, 10)

	block := tape.Module{Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor { return keeping(f, 60, keeping(f, 80, x)) }}
	last := tapedWith(t, tape.Sequential{tape.As("block", block)}, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
		return f.Call("block", op(f, 100, tape.Op{KeepOwn: []tape.Own{{Shape: alloc.Shape{5}}}}, x))
	}, func(c *setting.Config) { c.Checkpoints = []string{"block"} })
	// The first operation keeps 5 bytes of its own. Its output is there with its gradient, that of the tensor within the block,
	// and the block's output with its gradient, which are the caller's.
	trains(t, last, training{}, peak.Peak{Bytes: 5 + 100 + 100 + 80 + 60 + 60, Saved: 5 + 100, Op: 1, Backward: true}, 60)
}

// A stage of a pipeline runs its own checkpointed layers again, whether they are at its begin, at its end, or all of it.
func TestCheckpointedLayersOfAStage(t *testing.T) {
	r := blocked(t, tape.Op{}, tape.Op{})
	made := func(begin, end int) []int64 {
		_, done := training{begin: begin, end: end}.run(r, &timeline.Timeline{})
		return allocated(done.Backward())
	}
	// The gradients of the output and of the block's; the tensors of 80 and 60 again; two gradients.
	assert.Equal(t, []int64{10, 60, 80, 60, 80, 100}, made(1, 4))
	// The block's output is there, as the next stage reads it.
	assert.Equal(t, []int64{60, 80, 80, 100}, made(0, 3))
	assert.Equal(t, []int64{60, 80, 80, 100}, made(1, 3))
	assert.Equal(t, []int64{10, 60}, made(3, 4))
}

// With ZeRO 3, FSDP's hooks hold the inputs of checkpointed layers that have frozen parameters, with their gradients, until the
// backward pass is over. Before torch 2.1 it had none.
func TestHooksHoldTheInputs(t *testing.T) {
	// In the backward pass of the first operation there are the output, its gradient and that of 50 bytes, and with hooks the
	// block's input of 100 bytes and its gradient.
	hooked := peak.Peak{Bytes: 10 + 10 + 50 + 100 + 100 + 1000, Saved: 100, Op: 0, Backward: true}
	free := peak.Peak{Bytes: 10 + 10 + 50 + 1000, Op: 0, Backward: true}
	block := tape.Module{Run: func(f *tape.Flow, x tape.Tensor) tape.Tensor { return keeping(f, 60, keeping(f, 80, x)) }}
	for name, c := range map[string]struct {
		set  func(c *setting.Config)
		want peak.Peak
	}{
		"frozen layers": {func(c *setting.Config) { c.Frozen = []string{"idle"} }, hooked},
		"adapters":      {func(c *setting.Config) { c.Lora = &setting.LoRA{Rank: 1, Targets: []string{"idle"}} }, hooked},
		"all trained":   {func(*setting.Config) {}, free},
		"torch 2.1":     {func(c *setting.Config) { c.Frozen, c.Release = []string{"idle"}, setting.Release{Major: 2, Minor: 1} }, hooked},
		"torch 2.0":     {func(c *setting.Config) { c.Frozen, c.Release = []string{"idle"}, setting.Release{Major: 2} }, free},
		"ZeRO 2":        {func(c *setting.Config) { c.Frozen, c.Sharding.ZeRO = []string{"idle"}, 2 }, free},
		"one device":    {func(c *setting.Config) { c.Frozen, c.Sharding.Data = []string{"idle"}, 1 }, free},
	} {
		t.Run(name, func(t *testing.T) {
			r := tapedWith(t, tape.Sequential{tape.As("block", block)}, func(f *tape.Flow, x tape.Tensor) tape.Tensor {
				x = op(f, 50, tape.Op{BackwardWorkspace: 1000}, x)
				return keeping(f, 10, f.Call("block", op(f, 100, tape.Op{}, x)))
			}, func(c *setting.Config) { c.Checkpoints = []string{"block"} })
			r.Cfg.Sharding.ZeRO, r.Cfg.Sharding.Data = 3, 2
			c.set(r.Cfg)
			trains(t, r, training{}, c.want, 10)
		})
	}
}

// What operations of a checkpointed layer keep of their own is dropped at once in the forward pass, and kept when they run again.
func TestOwnTensorsOfACheckpointedLayer(t *testing.T) {
	r := blocked(t, tape.Op{KeepOwn: []tape.Own{{Shape: alloc.Shape{7}}}}, tape.Op{})
	trains(t, r, training{}, peak.Peak{Bytes: 340 + 7, Saved: 180 + 7, Op: 2, Backward: true}, 10)
	forward := blocked(t, tape.Op{KeepOwn: []tape.Own{{Shape: alloc.Shape{1000}}}, Workspace: 2000}, tape.Op{})
	_, done := training{}.run(forward, &timeline.Timeline{})
	p := play(t, done.Forward())
	assert.Equal(t, int64(100+80+1000+2000), p.most)
	assert.Equal(t, map[int]int{100: 1, 60: 1, 10: 1}, bySize(p.left), "the input of the block, its output, which the last operation keeps, and the model's")
	// In autocast's cache it stays until the forward pass is over.
	cached := blocked(t, tape.Op{KeepOwn: []tape.Own{{Shape: alloc.Shape{7}}}}, tape.Op{})
	cache(cached, 7)
	_, done = training{}.run(cached, &timeline.Timeline{})
	assert.Equal(t, int64(100+80+60+7), play(t, done.Forward()).most)
}

// Selective checkpointing keeps what products return, so that it is not lost and made again.
func TestCheckpointsThatSaveProducts(t *testing.T) {
	saves := func(c *setting.Config) { c.Saves = setting.SaveProducts }
	r := blocked(t, tape.Op{As: tape.MM}, tape.Op{}, saves)
	// As without it: the product of 80 bytes is kept from the forward pass on.
	trains(t, r, training{}, peak.Peak{Bytes: 340, Saved: 180, Op: 2, Backward: true}, 10)
	_, done := training{}.run(r, &timeline.Timeline{})
	assert.Equal(t, map[int]int{100: 1, 80: 1, 60: 1, 10: 1}, bySize(play(t, done.Forward()).left))
	assert.Equal(t, []int64{10, 60, 60, 80, 100}, allocated(done.Backward()), "the gradients of the output and of the block's, that again, and two gradients")
	_, done = training{}.run(blocked(t, tape.Op{}, tape.Op{}), &timeline.Timeline{})
	assert.Equal(t, []int64{10, 60, 80, 60, 80, 100}, allocated(done.Backward()), "without it the product is made again")
}

// allocated lists the sizes of allocations.
func allocated(events []timeline.Event) []int64 {
	var sizes []int64
	for _, e := range events {
		if e.Bytes > 0 {
			sizes = append(sizes, e.Bytes)
		}
	}
	return sizes
}
