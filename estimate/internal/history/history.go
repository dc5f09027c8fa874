// Package history lists the allocations and frees of a process that loads a model and serves or trains it, in
// the order in which PyTorch makes them. Package timeline says what an allocator makes of them.
package history

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/timeline"
)

// history joins the passes over a range of a tape to the run of a whole process: it loads the
// model, then runs one step after another. Its own handles come first, those of the passes after
// them.
type history struct {
	timeline.Timeline
	t    *tape.Tape
	h    *tape.Holding
	s    tape.Stage
	done timeline.Passes

	inputs, output []int32
	added          []int32   // gradients that are yet to be added to others
	gradients      [][]int32 // handles of the gradients of each group
	of             [][]int64 // sizes of the gradients of each group: a module's, or those marked Apart
	work           []int64   // what the optimizer needs for each module on its own
	pass           []int32   // handles of the pass
}

// Resident is the memory that a process holds once it has loaded the model.
type Resident struct {
	Weights, Master, Buckets alloc.Bytes
	Cache                    setting.CacheBytes
}

func newHistory(t *tape.Tape, h *tape.Holding, s tape.Stage, done timeline.Passes) *history {
	y := &history{t: t, h: h, s: s, done: done, pass: make([]int32, done.Handles)}
	t.Memory.Lend(&y.Timeline)
	y.Expandable = t.Cfg.Expandable
	return y
}

// parameters returns the parameters of the stage, on one device.
func (y *history) parameters() []tape.Load {
	if y.t.Cfg.Sharding.Pipeline > 1 {
		return []tape.Load{y.s.Load.Device(y.t.Cfg)}
	}
	each := make([]tape.Load, len(y.h.Each))
	for i, p := range y.h.Each {
		each[i] = p.Load.Device(y.t.Cfg)
	}
	return each
}

// load puts the model on the device; m says how large its weights are, and fetched what is fetched of them besides.
func (y *history) load(m Resident, each []tape.Load, fetched int64) {
	var sum int64
	for _, p := range each {
		sum += p.Weights
	}
	scale := float64(m.Weights) / float64(max(1, sum))
	for i, p := range each {
		if n := int64(float64(p.Weights) * scale); y.quantizes(i) {
			y.toNF4(n)
		} else {
			y.Alloc(n)
		}
		y.Alloc(p.Buffers)
		if m.Master > 0 {
			y.Alloc(p.Master)
		}
	}
	y.Alloc(int64(m.Buckets))
	y.Alloc(fetched)
	if c := y.t.Cfg.Cache; c != nil {
		n := max(1, min(int64(c.Layers), maxBlocksOfCache))
		for _, part := range []alloc.Bytes{m.Cache.Keys, m.Cache.Values, m.Cache.Fixed} {
			for range n {
				y.Alloc(int64(part) / n)
			}
		}
	}
}

// maxBlocksOfCache bounds the number of pieces of each part of a key/value cache.
const maxBlocksOfCache = 1 << 12

// read frees the last batch and allocates a new one.
func (y *history) read() {
	var batch []int32
	if y.s.Begin == 0 {
		for i := range y.t.Storages {
			if s := &y.t.Storages[i]; s.Input {
				batch = append(batch, y.Alloc(s.Bytes))
			}
		}
	}
	y.FreeAll(y.inputs)
	y.inputs = batch
}

// play appends the events of a pass.
func (y *history) play(events []timeline.Event) {
	for _, e := range events {
		switch {
		case e.Handle < 0 && e.Bytes < 0:
			y.FreeAll(y.added)
			y.added = y.added[:0]
		case e.Handle < 0:
			y.accumulate(int(-e.Handle) - 1)
		case e.Bytes < 0:
			y.Free(y.pass[e.Handle])
		default:
			y.pass[e.Handle] = y.AllocOn(e.Bytes, e.Stream)
		}
	}
}

// accumulate makes the gradients of a group of parameters, or what is to be added to them if they
// are there.
func (y *history) accumulate(group int) {
	if group < len(y.h.Modules) && len(y.t.Units) == 0 {
		y.Temporaries(y.h.Sums[group].Summand, y.h.Sums[group].Anew)
		if y.work != nil && y.t.Cfg.Passing() && y.h.TiedIn[group] == 0 {
			made := y.AllocAll(nil, y.of[group]...)
			y.Temporary(y.work[group])
			y.FreeAll(made)
			return
		}
	}
	to := &y.gradients[group]
	if len(*to) > 0 {
		to = &y.added
	}
	if len(y.t.Units) > 0 { // gradients of a unit are parts of what is summed up, on a stream of its own
		for _, n := range y.of[group] {
			*to = append(*to, y.AllocOn(n, timeline.Reducing))
		}
		return
	}
	*to = y.AllocAll(*to, y.of[group]...)
}

// clear frees the gradients.
func (y *history) clear() {
	for group, handles := range y.gradients {
		y.FreeAll(handles)
		y.gradients[group] = handles[:0]
	}
}

// forward runs a pass and then frees the output of the last one.
func (y *history) forward() {
	y.play(y.done.Forward())
	y.release()
}

// release frees the output.
func (y *history) release() {
	y.FreeAll(y.output)
	y.output = nil
}

// keep notes what is still held of the output when a pass is over.
func (y *history) keep() {
	for _, h := range y.done.Held {
		y.output = append(y.output, y.pass[h])
	}
}

// Steps is the number of training steps in a history. The first step leaves blocks behind that the
// second cannot use; later steps are like the second.
const Steps = 2

// Serving returns the history of a process that runs the model forward.
func Serving(t *tape.Tape, h *tape.Holding, s tape.Stage, m Resident, done timeline.Passes) *timeline.Timeline {
	y := newHistory(t, h, s, done)
	y.load(m, y.parameters(), tape.Fetched(t, s, false))
	if layer.Ran.Of(t).Multiplies {
		size, _ := t.Cfg.Workspace()
		y.Alloc(int64(size))
	}
	for range Steps {
		y.read()
		y.forward()
		if y.keep(); t.Cfg.Cache != nil && t.Cfg.Loop.Output == "" {
			y.release() // whoever generates text takes the next token from it
		}
	}
	return &y.Timeline
}

// Learning returns the history of a process that trains the model.
func Learning(t *tape.Tape, h *tape.Holding, s tape.Stage, m Resident, done timeline.Passes, loop setting.Loop, steps int) *timeline.Timeline {
	y := newHistory(t, h, s, done)
	each := y.parameters()
	y.load(m, each, tape.Fetched(t, s, true))
	y.sizes()
	passing := t.Cfg.Passing()
	if passing {
		y.inBackward(each, loop.Form, loop.Decay)
	}
	workspace, _ := t.Cfg.Workspace()
	for step := range steps {
		if passing || loop.ZeroGrad == setting.ZeroGradFirst {
			y.clear()
		}
		for batch := range min(loop.MicroBatches, 2) { // later ones are like the second
			y.read()
			if layer.Ran.Of(t).Multiplies && step == 0 && batch == 0 {
				y.Alloc(int64(workspace))
			}
			y.forward()
			if loop.ZeroGrad == setting.ZeroGradBackward && batch == 0 {
				y.clear()
			}
			if layer.Ran.Of(t).Multiplies && step == 0 && batch == 0 {
				y.Alloc(int64(workspace))
			}
			y.play(done.Backward())
			y.keep()
			if loop.Output != setting.OutputHeld {
				y.release()
			}
		}
		if !passing {
			y.step(each, step == 0, loop)
		}
	}
	return &y.Timeline
}

// sizes fills in the sizes of the gradients of each group.
func (y *history) sizes() {
	groups := 2*len(y.h.Modules) + len(y.t.Units)
	y.of, y.gradients = make([][]int64, groups), make([][]int32, groups)
	for i, u := range y.t.Units {
		y.of[2*len(y.h.Modules)+i] = []int64{u.Kept}
	}
	if len(y.t.Units) > 0 {
		return
	}
	for _, p := range y.h.Each {
		n, m := p.Load.Device(y.t.Cfg).Gradients, p.Module
		if p.Apart && !y.t.Cfg.Passing() {
			m = y.h.Apart(m)
		}
		switch {
		case n == 0 || n == y.h.TiedOut[p.Module]: // it appears at the module that it is tied to
		default:
			y.of[m] = append(y.of[m], n)
		}
	}
	for m, n := range y.h.TiedIn {
		if n > 0 {
			y.of[m] = append(y.of[m], n)
		}
	}
}

// inBackward prepares for an optimizer that updates each parameter as soon as its gradient is made.
func (y *history) inBackward(each []tape.Load, form, decay string) {
	y.states(each)
	y.work = make([]int64, len(y.h.Modules))
	for m, l := range y.h.Modules {
		y.work[m] = l.Device(y.t.Cfg).Work.Temporary(form, decay)
	}
}

// states allocates the optimizer's states.
func (y *history) states(each []tape.Load) {
	for _, p := range each {
		if p.State > 0 {
			n := y.t.Cfg.Optimizer.States(p.State, max(p.Weights, p.Master))
			for range n {
				y.Alloc(p.State / n)
			}
		}
	}
}

// step runs the optimizer. The first step allocates its states.
func (y *history) step(each []tape.Load, first bool, loop setting.Loop) {
	if first {
		y.states(each)
	}
	var all []int32
	var widened tape.Load
	for _, p := range each {
		widened.Gradients += p.Gradients
	}
	all = append(all, y.Alloc(widened.Widened(y.t.Cfg)))
	for _, p := range each {
		n := p.Work.Alone
		if loop.Form == setting.OneByOne {
			n = max(n, p.Work.Single)
		}
		y.Temporaries(n/2, n-n/2)
		if loop.Form == setting.ForEach {
			all = append(all, y.Alloc(p.Work.Together))
			if loop.Decay == setting.DecayUsed {
				all = append(all, y.Alloc(p.Work.Decay))
			}
		}
	}
	y.FreeAll(all)
}
