package estimate

// history puts the passes of a stretch of a tape together to the run of a process:
// loading, and steps one after another. Handles of the passes come after its own.
type history struct {
	timeline
	t    *Tape
	h    *holding
	s    stage
	done passes

	inputs, output []int32
	added          []int32   // gradients that are to be added to others
	gradients      [][]int32 // of each module that has them
	of             [][]int64 // sizes of the gradients of each group: a module, or what of it is apart
	work           []int64   // what the optimizer needs for each module by itself
	pass           []int32   // handles of the pass
}

func newHistory(t *Tape, h *holding, s stage, done passes) *history {
	y := &history{t: t, h: h, s: s, done: done, pass: make([]int32, done.handles)}
	t.memory.lend(&y.timeline)
	return y
}

// parameters are those of the stage, on one device.
func (y *history) parameters() []load {
	if y.t.cfg.sharding.Pipeline > 1 {
		return []load{y.t.cfg.device(y.s.load)}
	}
	each := make([]load, len(y.h.each))
	for i, p := range y.h.each {
		each[i] = y.t.cfg.device(p.load)
	}
	return each
}

// load puts the model on the device, its weights as large as m says.
func (y *history) load(m Memory, each []load) {
	var sum int64
	for _, p := range each {
		sum += p.weights
	}
	scale := float64(m.Weights) / float64(max(1, sum))
	for _, p := range each {
		y.alloc(int64(float64(p.weights) * scale))
		y.alloc(p.buffers)
		if m.Master > 0 {
			y.alloc(p.master)
		}
	}
	y.alloc(int64(m.Buckets))
	y.alloc(y.t.fetched(y.s))
	if c := y.t.cfg.cache; c != nil && m.Cache > 0 {
		n := 2 * max(1, min(int64(c.Layers), maxBlocksOfCache))
		for range n {
			y.alloc(int64(m.Cache) / n)
		}
	}
}

// maxBlocksOfCache bounds the pieces that a key/value cache is cut into.
const maxBlocksOfCache = 1 << 12

// read lets a new batch take the place of the last.
func (y *history) read() {
	var batch []int32
	if y.s.begin == 0 {
		for i := range y.t.storages {
			if s := &y.t.storages[i]; s.input {
				batch = append(batch, y.alloc(s.bytes))
			}
		}
	}
	y.freeAll(y.inputs)
	y.inputs = batch
}

// play appends the events of a pass.
func (y *history) play(events []event) {
	for _, e := range events {
		switch {
		case e.handle < 0 && e.bytes < 0:
			y.freeAll(y.added)
			y.added = y.added[:0]
		case e.handle < 0:
			y.accumulate(int(-e.handle) - 1)
		case e.bytes < 0:
			y.free(y.pass[e.handle])
		default:
			y.pass[e.handle] = y.alloc(e.bytes)
		}
	}
}

// accumulate gives a group of parameters their gradients, or makes those that are to be added to
// what they have.
func (y *history) accumulate(group int) {
	if group < len(y.h.modules) {
		y.temporaries(y.h.sums[group].summand, y.h.sums[group].anew)
		if y.work != nil && y.t.cfg.passing() && y.h.tiedIn[group] == 0 {
			made := y.allocAll(nil, y.of[group]...)
			y.temporary(y.work[group])
			y.freeAll(made)
			return
		}
	}
	to := &y.gradients[group]
	if len(*to) > 0 {
		to = &y.added
	}
	*to = y.allocAll(*to, y.of[group]...)
}

// clear frees the gradients.
func (y *history) clear() {
	for group, handles := range y.gradients {
		y.freeAll(handles)
		y.gradients[group] = handles[:0]
	}
}

// forward is a pass after which the output of the last dies.
func (y *history) forward() {
	y.play(y.done.forward())
	y.release()
}

// release lets the output die.
func (y *history) release() {
	y.freeAll(y.output)
	y.output = nil
}

// keep notes what is held of the output when a pass is over.
func (y *history) keep() {
	for _, h := range y.done.held {
		y.output = append(y.output, y.pass[h])
	}
}

// steps is the number of training steps that a history has. The first leaves blocks
// behind that the second cannot use: later ones are like the second.
const steps = 2

// serving is the history of a process that runs the model forward.
func (t *Tape) serving(h *holding, s stage, m Memory, done passes) *timeline {
	y := newHistory(t, h, s, done)
	y.load(m, y.parameters())
	if t.multiplies {
		size, _ := t.cfg.workspace()
		y.alloc(int64(size))
	}
	for range steps {
		y.read()
		y.forward()
		if y.keep(); t.cfg.cache != nil && t.cfg.loop.Output == OutputUnknown {
			y.release() // who serves text takes the next token from it
		}
	}
	return &y.timeline
}

// learning is the history of a process that trains the model.
func (t *Tape) learning(h *holding, s stage, m Memory, done passes, loop Loop, steps int) *timeline {
	y := newHistory(t, h, s, done)
	each := y.parameters()
	y.load(m, each)
	y.sizes()
	passing := t.cfg.passing()
	if passing {
		y.inBackward(each, loop.Form, loop.Decay)
	}
	workspace, _ := t.cfg.workspace()
	for step := range steps {
		if passing || loop.ZeroGrad == ZeroGradFirst {
			y.clear()
		}
		for batch := range min(loop.MicroBatches, 2) { // later ones are like the second
			y.read()
			if t.multiplies && step == 0 && batch == 0 {
				y.alloc(int64(workspace))
			}
			y.forward()
			if loop.ZeroGrad == ZeroGradBackward && batch == 0 {
				y.clear()
			}
			if t.multiplies && step == 0 && batch == 0 {
				y.alloc(int64(workspace))
			}
			y.play(done.backward())
			y.keep()
			if loop.Output != OutputHeld {
				y.release()
			}
		}
		if !passing {
			y.step(each, step == 0, loop)
		}
	}
	return &y.timeline
}

// sizes fills in the sizes of the gradients of each group.
func (y *history) sizes() {
	groups := 2 * len(y.h.modules)
	y.of, y.gradients = make([][]int64, groups), make([][]int32, groups)
	for _, p := range y.h.each {
		n, m := y.t.cfg.device(p.load).gradients, p.module
		if p.apart && !y.t.cfg.passing() {
			m = y.h.apart(m)
		}
		switch {
		case n == 0 || n == y.h.tiedOut[p.module]: // it appears where it is tied to
		default:
			y.of[m] = append(y.of[m], n)
		}
	}
	for m, n := range y.h.tiedIn {
		if n > 0 {
			y.of[m] = append(y.of[m], n)
		}
	}
}

// inBackward makes ready for an optimizer that steps as soon as a gradient is there.
func (y *history) inBackward(each []load, form Form, decay Decay) {
	y.states(each)
	y.work = make([]int64, len(y.h.modules))
	for m, l := range y.h.modules {
		y.work[m] = y.t.cfg.device(l).work.temporary(form, decay)
	}
}

// states are those of the optimizer.
func (y *history) states(each []load) {
	for _, p := range each {
		if p.state > 0 {
			n := y.t.cfg.optimizer.states(p.state, max(p.weights, p.master))
			for range n {
				y.alloc(p.state / n)
			}
		}
	}
}

// step is that of the optimizer, which makes its states in the first.
func (y *history) step(each []load, first bool, loop Loop) {
	if first {
		y.states(each)
	}
	var all []int32
	for _, p := range each {
		n := p.work.alone
		if loop.Form == OneByOne {
			n = max(n, p.work.single)
		}
		y.temporaries(n/2, n-n/2)
		if loop.Form == ForEach {
			all = append(all, y.alloc(p.work.together))
			if loop.Decay == DecayUsed {
				all = append(all, y.alloc(p.work.decay))
			}
		}
	}
	y.freeAll(all)
}
