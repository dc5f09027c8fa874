package tape

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Gradient is the memory that the gradients of a layer's parameters take when the backward pass
// reaches an operation: Stays is kept, Sum is needed to add to a gradient that exists already, and
// Passing is used up at once, together with what the optimizer needs for it.
type Gradient struct {
	Stays, Passing int64
	Sum            sum
	Group          int32 // which parameters the gradients belong to, counted from 1
}

// Gradients returns, for each operation, the memory of the parameters' gradients that appear when
// the backward pass reaches it. A layer's gradients appear at its first operation that reads its
// parameters, except those of parameters marked Apart. The gradients of a Shared layer appear at
// its last call; each earlier call adds to them.
func (t *Tape) Gradients(h *Holding) []Gradient {
	g := make([]Gradient, len(t.Ops))
	loop := t.Cfg.Usual(t.Cfg.Loop)
	last, shared := make([]int, len(h.Modules)), make([]bool, len(h.Modules)) // the call that last reads each module, as its row counted from 1
	for i := len(t.Ops) - 1; i >= 0; i-- {
		if m, call := t.moduleOf(i), int(t.Ops[i].Row)+1; m >= 0 && t.Ops[i].params {
			last[m] = setting.Or(last[m], call)
			shared[m] = shared[m] || call != last[m]
		}
	}
	apart := t.apart(h)
	placed := make([]bool, len(t.Rows)+1)
	for i := range t.Ops {
		m, call := t.moduleOf(i), int(t.Ops[i].Row)+1
		if m >= 0 && t.Ops[i].apart && call == last[m] && apart != nil {
			g[i] = Gradient{Stays: apart[m], Group: h.Apart(int32(m)) + 1}
		}
		if m < 0 || placed[call] || !t.Ops[i].params {
			continue
		}
		placed[call] = true
		l := h.Modules[m].Device(t.Cfg)
		if call != last[m] {
			g[i] = Gradient{Sum: sum{Summand: l.Gradients}} // added in place
			continue
		}
		g[i] = Gradient{Stays: l.Gradients + h.TiedIn[m] - h.TiedOut[m], Sum: h.Sums[m], Group: int32(m) + 1}
		if apart != nil {
			g[i].Stays -= apart[m]
		}
		if t.Cfg.Passing() && !shared[m] {
			g[i] = g[i].passes(l, h.TiedIn[m], h.TiedOut[m], loop.Form, loop.Decay)
		}
	}
	return g
}

// apart returns, for each module, the bytes of gradients whose parameters are marked Apart. It is
// nil where there are none, or where gradients do not stay on the device.
func (t *Tape) apart(h *Holding) []int64 {
	var apart []int64
	for _, p := range h.Each {
		if !p.Apart || t.Cfg.Passing() {
			continue
		}
		if apart == nil {
			apart = make([]int64, len(h.Modules))
		}
		apart[p.Module] += p.Load.Device(t.Cfg).Gradients
	}
	return apart
}

// passes returns the memory of a gradient that leaves the device, or that the optimizer uses up, as
// soon as it is made. The gradient of a tied parameter waits until the backward pass has reached
// all layers that use it.
func (g Gradient) passes(l Load, tiedIn, tiedOut int64, form, decay string) Gradient {
	return Gradient{
		Stays: tiedIn - tiedOut, Sum: g.Sum, Group: g.Group,
		Passing: max(0, l.Gradients-tiedOut) + l.Work.Temporary(form, decay),
	}
}
