package estimate

// gradient is the memory of the gradients that an operation makes of its
// layer's parameters: that which stays, that which is needed meanwhile to add
// to a gradient that is there, and that which is used up at once, with what the optimizer needs for it.
type gradient struct {
	stays, passing int64
	sum            sum
	group          int32 // of parameters whose they are, counted from 1
}

// gradients is the memory of the parameters' gradients that appear when each
// operation is passed backward: those of a layer at the first of its operations
// that reads them, but for parameters that are apart. Where a layer is Shared they appear at its last call, and each
// call before adds to them.
func (t *Tape) gradients(h *holding) []gradient {
	g := make([]gradient, len(t.ops))
	loop := t.cfg.usual(t.cfg.loop)
	last, shared := make([]int, len(h.modules)), make([]bool, len(h.modules)) // call that reads each module: its row, counted from 1
	for i := len(t.ops) - 1; i >= 0; i-- {
		if m, call := t.moduleOf(i), int(t.ops[i].row)+1; m >= 0 && t.ops[i].params {
			last[m] = or(last[m], call)
			shared[m] = shared[m] || call != last[m]
		}
	}
	apart := t.apart(h)
	placed := make([]bool, len(t.rows)+1)
	for i := range t.ops {
		m, call := t.moduleOf(i), int(t.ops[i].row)+1
		if m >= 0 && t.ops[i].apart && call == last[m] && apart != nil {
			g[i] = gradient{stays: apart[m], group: h.apart(int32(m)) + 1}
		}
		if m < 0 || placed[call] || !t.ops[i].params {
			continue
		}
		placed[call] = true
		l := t.cfg.device(h.modules[m])
		if call != last[m] {
			g[i] = gradient{sum: sum{summand: l.gradients}} // added in place
			continue
		}
		g[i] = gradient{stays: l.gradients + h.tiedIn[m] - h.tiedOut[m], sum: h.sums[m], group: int32(m) + 1}
		if apart != nil {
			g[i].stays -= apart[m]
		}
		if t.cfg.passing() && !shared[m] {
			g[i] = g[i].passes(l, h.tiedIn[m], h.tiedOut[m], loop.Form, loop.Decay)
		}
	}
	return g
}

// apart are the gradients of the parameters of each module that are apart: nil where there are
// none, or where gradients do not stay.
func (t *Tape) apart(h *holding) []int64 {
	var apart []int64
	for _, p := range h.each {
		if !p.apart || t.cfg.passing() {
			continue
		}
		if apart == nil {
			apart = make([]int64, len(h.modules))
		}
		apart[p.module] += t.cfg.device(p.load).gradients
	}
	return apart
}

// passes is a gradient that leaves the device, or that the optimizer uses up, as soon as it is
// made. That of a tied parameter waits until the last of the layers that use it is passed.
func (g gradient) passes(l load, tiedIn, tiedOut int64, form Form, decay Decay) gradient {
	return gradient{
		stays: tiedIn - tiedOut, sum: g.sum, group: g.group,
		passing: max(0, l.gradients-tiedOut) + l.work.temporary(form, decay),
	}
}
