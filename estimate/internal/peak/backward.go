package peak

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/timeline"
)

// Training runs the operations from begin up to end forward and backward. gradients holds the
// memory of parameters' gradients that each operation adds; others is the number of other
// micro-batches that keep as much as this one.
func Training(t *tape.Tape, begin, end int32, gradients []tape.Gradient, from setting.GradientsAt, others int64, drop bool, log *timeline.Timeline) (Peak, timeline.Passes) {
	a := newAlive(t, begin, end, false, drop, log)
	a.gradients = from.Forward
	segments := within(t, begin, end)
	a.countSaved(segments)
	a.enter()
	a.gathering = newGathering(a)
	for i := begin; i < end; i++ {
		a.gathering.before(i)
		a.run(i)
		a.gathering.after(i)
		if t.Ops[i].Drops {
			a.releaseUnreached(i)
		}
	}
	a.releaseUnreached(end - 1)
	a.gathering.turn()
	var done timeline.Passes
	if log != nil {
		done.Turn = len(log.Events)
	}
	var kept int64
	for id, n := range a.savedBy {
		if n > 0 && !t.Storages[id].Input {
			kept += t.Storages[id].Bytes
		}
	}
	a.bytes += others * kept
	a.saved += others * kept
	a.peak.Bytes += others * kept
	a.peak.Saved += others * kept
	a.gradients = from.Backward
	a.backward(segments, gradients, from.Backward > 0)
	a.gathering.end()
	if log != nil {
		done.Held = a.held()
		done.Events, done.Handles = log.Events, log.Next
	}
	return a.peak, done
}

func within(t *tape.Tape, begin, end int32) []tape.Segment {
	var in []tape.Segment
	for _, s := range t.Segments {
		if s.Begin >= begin && s.End <= end {
			in = append(in, s)
		}
	}
	return in
}

// countSaved counts, for each storage, the operations that keep it at the end of the forward
// pass. Operations in checkpointed segments do not count.
func (a *alive) countSaved(segments []tape.Segment) {
	next := 0
	for i := a.begin; i < a.end; i++ {
		if next < len(segments) && i == segments[next].Begin {
			for _, id := range segments[next].Inputs {
				a.savedBy[id]++
			}
			for _, id := range segments[next].Saved {
				a.savedBy[id]++
			}
			i = segments[next].End - 1
			next++
			continue
		}
		for _, id := range a.t.Refs[a.t.Ops[i].Keep:a.t.Ops[i].End] {
			a.savedBy[id]++
		}
	}
}

// run runs an operation of the forward pass, and ends the life of what no later operation reads and none keeps. In a
// checkpointed segment that includes what the operation makes to keep.
func (a *alive) run(i int32) {
	o := &a.t.Ops[i]
	for _, id := range a.t.Refs[o.In:o.Keep] {
		a.begins(id)
	}
	a.begins(o.Out)
	for _, id := range a.t.Refs[o.Keep:o.End] {
		a.begins(id)
	}
	a.note(i, o.Workspace+o.Forward, a.gradients, false)
	a.log.Temporary(o.Workspace + o.Forward)
	a.dies.of(i, a.expire)
}

// release notes that one operation no longer keeps the storage.
func (a *alive) release(id int32) {
	a.savedBy[id]--
	if a.savedBy[id] == 0 && a.live[id] {
		a.saved -= a.t.Storages[id].Bytes
		if !a.returns(id) {
			a.stop(id)
		}
	}
}

// releaseUnreached releases what operations up to the one at keep through which no backward pass goes: the graph of what the
// model does not return is gone when it returns, or before. What later operations read lives on.
func (a *alive) releaseUnreached(at int32) {
	for i := a.dropped; i <= at; i++ {
		o := &a.t.Ops[i]
		if !o.Unreached {
			continue
		}
		for _, id := range a.t.Refs[o.Keep:o.End] {
			if s := &a.t.Storages[id]; at < a.end-1 && a.live[id] && a.savedBy[id] == 1 && s.Last > at {
				a.savedBy[id] = 0
				a.saved -= s.Bytes
				continue
			}
			a.release(id)
		}
	}
	a.dropped = at + 1
}

// backward runs the operations in reverse. Parameters' gradients are made, or added to if they are
// there.
func (a *alive) backward(segments []tape.Segment, gradients []tape.Gradient, there bool) {
	g := gradientSet{a: a, of: a.t.Memory.Counts(len(a.t.Storages)), buffers: make([]gradientBuffer, 0, len(a.t.Ops))}
	g.begin(a.t.Ops[a.end-1].Out)
	g.buffers[0].users++ // the caller holds the gradient of the output
	next := len(segments) - 1
	hooked := hooksInputs(a.t.Cfg)
	for i := a.end - 1; i >= a.begin; i-- {
		a.gathering.beforeBackward(i)
		if next >= 0 && i == segments[next].End-1 {
			a.recompute(segments[next])
		}
		sum := gradients[i].Sum.Bytes() + gradients[i].Passing
		if len(a.gathering.units) > 0 {
			sum = 0
			a.gathering.gradient(gradients[i])
		} else if there {
			sum += max(0, gradients[i].Stays)
		} else {
			a.gradients += gradients[i].Stays
		}
		o := &a.t.Ops[i]
		if o.Grad && !o.Unreached {
			extra := g.step(o) + o.Workspace + o.Backward
			a.note(i, extra+sum, a.gradients, true)
			a.log.Temporary(extra)
			if len(a.gathering.units) > 0 {
				a.log.Temporary(o.Kernels)
			} else {
				a.log.Gradients(gradients[i].Group, o.Kernels)
			}
			g.releaseDone()
		}
		for _, id := range a.t.Refs[o.Keep:o.End] {
			if !o.Unreached {
				a.release(id)
			}
		}
		if next >= 0 && i == segments[next].Begin {
			for _, id := range segments[next].Inputs {
				if of := g.of[id]; hooked && of != 0 {
					g.buffers[of-1].users++
					g.hooked = append(g.hooked, hookedInput{id, of})
				} else {
					a.release(id)
				}
			}
			next--
		}
		a.gathering.afterBackward(i, there)
	}
	for _, h := range g.hooked {
		g.drop(h.buffer)
		a.release(h.id)
	}
}

// hooksInputs reports whether the inputs of checkpointed layers live, with their gradients, until
// the backward pass is over. FSDP has hooks on these tensors, which free the layer's frozen
// parameters and hold the tensors until then (torch/distributed/fsdp/_runtime_utils.py,
// _register_post_backward_reshard_only_hook, since 2.1).
func hooksInputs(c *setting.Config) bool {
	return c.Sharding.ZeRO >= 3 && c.Sharding.Data > 1 && (c.Lora != nil || len(c.Frozen) > 0) && !c.Release.Before(2, 1)
}

// recompute runs a segment forward again, this time keeping what its backward pass needs.
func (a *alive) recompute(s tape.Segment) {
	for i := s.Begin; i < s.End; i++ {
		for _, id := range a.t.Refs[a.t.Ops[i].Keep:a.t.Ops[i].End] {
			if a.savedBy[id]++; a.savedBy[id] == 1 && a.live[id] {
				a.saved += a.t.Storages[id].Bytes
			}
		}
	}
	for i := s.Begin; i < s.End; i++ {
		o := &a.t.Ops[i]
		for _, id := range a.t.Refs[o.In:o.End] {
			a.begins(id)
		}
		a.begins(o.Out)
		a.note(i, o.Workspace+o.Forward, a.gradients, true)
		a.log.Temporary(o.Workspace + o.Forward)
		a.dies.of(i, a.expire)
	}
	for _, id := range s.Saved {
		a.release(id)
	}
	// The forward pass has used up what the segment returned.
	for i := s.Begin; i < s.End; i++ {
		if id := a.t.Ops[i].Out; a.savedBy[id] == 0 && !a.returns(id) {
			a.stop(id)
		}
	}
}

// gradientSet holds the gradients of activations. Operations that pass a
// gradient on unchanged share its buffer.
type gradientSet struct {
	a       *alive
	of      []int32 // for each storage, the buffer of its gradient, counted from 1
	buffers []gradientBuffer
	done    []int32 // buffers that the current step no longer needs
	hooked  []hookedInput
}

// hookedInput is an input of a checkpointed layer with the buffer of its gradient. Both live until
// the backward pass is over.
type hookedInput struct{ id, buffer int32 }

type gradientBuffer struct {
	bytes  int64
	users  int32
	handle int32 // in the log
}

func (g *gradientSet) begin(id int32) {
	n := g.a.t.Storages[id].Bytes
	g.buffers = append(g.buffers, gradientBuffer{n, 1, g.a.log.Alloc(n)})
	g.of[id] = int32(len(g.buffers))
	g.a.bytes += n
}

// step makes the gradients of an operation's inputs. It returns the memory that this needs for a
// while, besides what is in use.
func (g *gradientSet) step(o *tape.Recorded) (extra int64) {
	t := g.a.t
	if o.Parts > 0 {
		return g.join(o)
	}
	from := g.of[o.Out]
	if from == 0 || o.View {
		return 0
	}
	g.of[o.Out] = 0
	seen := t.Refs[o.In:o.Keep]
	for i, id := range seen {
		if !t.Storages[id].Grad || slices.Contains(seen[:i], id) {
			continue
		}
		if o.PassGrad && !(o.Promotes && t.Storages[id].Bytes < t.Storages[o.Out].Bytes) {
			g.pass(id, from)
		} else {
			extra += g.give(id)
		}
	}
	g.done = append(g.done, from)
	return extra
}

// pass makes a buffer the gradient of another storage too. If there is a gradient already, the buffer is added to it.
func (g *gradientSet) pass(id, buffer int32) {
	if g.of[id] == 0 {
		g.of[id] = buffer
		g.buffers[buffer-1].users++
		return
	}
	g.own(id)
}

// give makes a storage's gradient. If there is one already it makes a summand instead, and returns
// its size.
func (g *gradientSet) give(id int32) (extra int64) {
	if g.of[id] == 0 {
		g.begin(id)
		return 0
	}
	g.own(id)
	return g.a.t.Storages[id].Bytes
}

// own gives a gradient a buffer that can be added to: a new one if another tensor still needs the old sum.
func (g *gradientSet) own(id int32) {
	if have := g.of[id]; g.buffers[have-1].users > 1 {
		g.drop(have)
		g.begin(id)
	}
}

func (g *gradientSet) drop(buffer int32) {
	b := &g.buffers[buffer-1]
	if b.users--; b.users == 0 {
		g.a.bytes -= b.bytes
		g.a.log.Free(b.handle)
	}
}

// releaseDone drops the gradients that the last step has used up.
func (g *gradientSet) releaseDone() {
	for _, buffer := range g.done {
		g.drop(buffer)
	}
	g.done = g.done[:0]
}

// join makes the gradient of a tensor from the gradients of its parts.
func (g *gradientSet) join(o *tape.Recorded) (extra int64) {
	t, found := g.a.t, false
	for id := o.Out; id < o.Out+o.Parts; id++ {
		if from := g.of[id]; from != 0 {
			g.of[id], found = 0, true
			g.done = append(g.done, from)
		} else {
			extra += t.Storages[id].Bytes // zeros for a part without a gradient
		}
	}
	if !found {
		return 0
	}
	return extra + g.give(t.Refs[o.In])
}
