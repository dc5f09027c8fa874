package estimate

import "slices"

// training runs the operations from begin up to end forward and backward.
// gradients holds the memory of the parameters' gradients that each operation
// accumulates; so many other micro-batches keep what this one keeps.
func training(t *Tape, begin, end int32, gradients []gradient, from gradientsAt, others int64, drop bool, log *timeline) (peak, passes) {
	a := newAlive(t, begin, end, false, drop, log)
	a.gradients = from.forward
	segments := t.within(begin, end)
	a.countKeepers(segments)
	a.enter()
	a.forward(begin, end, segments)
	var done passes
	if log != nil {
		done.turn = len(log.events)
	}
	var kept int64
	for id, n := range a.keepers {
		if n > 0 && !t.storages[id].input {
			kept += t.storages[id].bytes
		}
	}
	a.bytes += others * kept
	a.saved += others * kept
	if others > 0 {
		a.peak.bytes += others * kept
		a.peak.saved += others * kept
	}
	a.gradients = from.backward
	a.backward(segments, gradients, from.backward > 0)
	if log != nil {
		done.held = a.held()
		done.events, done.handles = log.events, log.next
	}
	return a.peak, done
}

func (t *Tape) within(begin, end int32) []segment {
	var in []segment
	for _, s := range t.segments {
		if s.begin >= begin && s.end <= end {
			in = append(in, s)
		}
	}
	return in
}

// countKeepers counts for each storage the operations that keep it at the end
// of the forward pass: all but those within checkpointed segments.
func (a *alive) countKeepers(segments []segment) {
	next := 0
	for i := a.begin; i < a.end; i++ {
		if next < len(segments) && i == segments[next].begin {
			for _, id := range segments[next].inputs {
				a.keepers[id]++
			}
			i = segments[next].end - 1
			next++
			continue
		}
		for _, id := range a.t.refs[a.t.ops[i].keep:a.t.ops[i].end] {
			a.keepers[id]++
		}
	}
}

// forward runs operations and lets die what nothing keeps.
func (a *alive) forward(begin, end int32, segments []segment) {
	next := 0
	for i := begin; i < end; i++ {
		for next < len(segments) && segments[next].end <= i {
			next++
		}
		inside := next < len(segments) && i >= segments[next].begin
		a.run(i, inside)
	}
}

func (a *alive) run(i int32, drop bool) {
	o := &a.t.ops[i]
	for _, id := range a.t.refs[o.in:o.keep] {
		a.begins(id)
	}
	a.begins(o.out)
	for _, id := range a.t.refs[o.keep:o.end] {
		a.begins(id)
	}
	a.note(i, o.workspace, a.gradients, false)
	a.log.temporary(o.workspace)
	if drop {
		for _, id := range a.t.refs[o.keep:o.end] {
			if s := &a.t.storages[id]; s.own && !s.cached && a.keepers[id] == 0 {
				a.stop(id)
			}
		}
	}
	a.dies.of(i, a.expire)
}

// release takes one keeper away.
func (a *alive) release(id int32) {
	a.keepers[id]--
	if a.keepers[id] == 0 && a.live[id] {
		a.saved -= a.t.storages[id].bytes
		if !a.returns(id) {
			a.stop(id)
		}
	}
}

// backward runs the operations in reverse. Parameters' gradients stay or, where they are
// there already, are added to.
func (a *alive) backward(segments []segment, gradients []gradient, there bool) {
	g := gradientSet{a: a, of: a.t.memory.counts(len(a.t.storages)), buffers: make([]gradientBuffer, 0, len(a.t.ops))}
	g.begin(a.t.ops[a.end-1].out)
	g.buffers[0].users++ // the caller holds the gradient that it begins with
	next := len(segments) - 1
	hooked := a.t.cfg.hooksInputs()
	for i := a.end - 1; i >= a.begin; i-- {
		if next >= 0 && i == segments[next].end-1 {
			a.recompute(segments[next])
		}
		sum := gradients[i].sum.bytes() + gradients[i].passing
		if there {
			sum += max(0, gradients[i].stays)
		} else {
			a.gradients += gradients[i].stays
		}
		o := &a.t.ops[i]
		if o.grad {
			extra := g.step(o) + o.workspace + o.backward
			a.note(i, extra+sum, a.gradients, true)
			a.log.temporary(extra)
			a.log.gradients(gradients[i].group, o.kernels)
			g.settle()
		}
		for _, id := range a.t.refs[o.keep:o.end] {
			a.release(id)
		}
		if next >= 0 && i == segments[next].begin {
			for _, id := range segments[next].inputs {
				if of := g.of[id]; hooked && of != 0 {
					g.buffers[of-1].users++
					g.hooked = append(g.hooked, hookedInput{id, of})
				} else {
					a.release(id)
				}
			}
			next--
		}
	}
	for _, h := range g.hooked {
		g.drop(h.buffer)
		a.release(h.id)
	}
}

// hooksInputs reports whether the inputs of checkpointed layers live with their gradients until the backward
// pass is over: so long FSDP holds the hooks on them that free the layer's frozen parameters
// (torch/distributed/fsdp/_runtime_utils.py, _register_post_backward_reshard_only_hook, since 2.1), and
// the hooks hold what they are on.
func (c *config) hooksInputs() bool {
	return c.sharding.ZeRO >= 3 && c.sharding.Data > 1 && (c.lora != nil || len(c.frozen) > 0) && !c.release.before(2, 1)
}

// recompute runs a segment forward again, now keeping what it needs.
func (a *alive) recompute(s segment) {
	for i := s.begin; i < s.end; i++ {
		for _, id := range a.t.refs[a.t.ops[i].keep:a.t.ops[i].end] {
			if a.keepers[id]++; a.keepers[id] == 1 && a.live[id] {
				a.saved += a.t.storages[id].bytes
			}
		}
	}
	for i := s.begin; i < s.end; i++ {
		o := &a.t.ops[i]
		for _, id := range a.t.refs[o.in:o.end] {
			a.begins(id)
		}
		a.begins(o.out)
		a.note(i, o.workspace, a.gradients, true)
		a.log.temporary(o.workspace)
		a.dies.of(i, a.expire)
	}
	// What the segment returned was used up by the forward pass.
	for i := s.begin; i < s.end; i++ {
		if id := a.t.ops[i].out; a.keepers[id] == 0 && !a.returns(id) {
			a.stop(id)
		}
	}
}

// gradientSet holds the gradients of activations. Operations that pass a
// gradient on unchanged share its buffer.
type gradientSet struct {
	a       *alive
	of      []int32 // buffer of each storage's gradient, counted from 1
	buffers []gradientBuffer
	done    []int32 // buffers that the current step no longer needs
	hooked  []hookedInput
}

// hookedInput is an input of a checkpointed layer and the buffer of its gradient, both of which live on.
type hookedInput struct{ id, buffer int32 }

type gradientBuffer struct {
	bytes  int64
	users  int32
	handle int32 // in the log
}

func (g *gradientSet) begin(id int32) {
	n := g.a.t.storages[id].bytes
	g.buffers = append(g.buffers, gradientBuffer{n, 1, g.a.log.alloc(n)})
	g.of[id] = int32(len(g.buffers))
	g.a.bytes += n
}

// step gives the inputs of an operation their gradients and returns the memory
// that it needs meanwhile besides what is alive.
func (g *gradientSet) step(o *op) (extra int64) {
	t := g.a.t
	if o.parts > 0 {
		return g.join(o)
	}
	from := g.of[o.out]
	if from == 0 || o.view {
		return 0
	}
	g.of[o.out] = 0
	seen := t.refs[o.in:o.keep]
	for i, id := range seen {
		if !t.storages[id].grad || slices.Contains(seen[:i], id) {
			continue
		}
		have := g.of[id]
		pass := o.passGrad && !(o.promotes && t.storages[id].bytes < t.storages[o.out].bytes)
		switch {
		case !pass:
			extra += g.give(id)
		case have == 0:
			g.of[id] = from
			g.buffers[from-1].users++
		case g.buffers[have-1].users > 1: // another needs the old sum: a new one is made
			g.drop(have)
			g.begin(id)
		}
	}
	g.done = append(g.done, from)
	return extra
}

// give makes a storage's gradient, or a summand of it whose size is returned.
func (g *gradientSet) give(id int32) (extra int64) {
	have := g.of[id]
	if have == 0 {
		g.begin(id)
		return 0
	}
	if g.buffers[have-1].users > 1 { // another needs the old sum: a new one is made
		g.drop(have)
		g.begin(id)
	}
	return g.a.t.storages[id].bytes
}

func (g *gradientSet) drop(buffer int32) {
	b := &g.buffers[buffer-1]
	if b.users--; b.users == 0 {
		g.a.bytes -= b.bytes
		g.a.log.free(b.handle)
	}
}

// settle lets go of the gradients that the last step used up.
func (g *gradientSet) settle() {
	for _, buffer := range g.done {
		g.drop(buffer)
	}
	g.done = g.done[:0]
}
