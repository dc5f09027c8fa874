package tape

import "github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"

// resting are the modules that do not run, as ranges of the declaration.
var resting Slot[[][2]int]

// Rest notes that the modules from one up to another, which counts no more, do not run.
func Rest(t *Tape, from, to int) {
	all := resting.Of(t)
	*all = append(*all, [2]int{from, to})
}

// LeaveUnreached marks the operations of which the loss needs nothing, and takes from h the gradients and the states of the
// optimizer of modules that the loss does not reach: they do not run, or nothing on the way to the loss reads what they
// make. PyTorch's backward pass leaves their gradients None, and optimizers make no states for these (torch/optim/adam.py,
// _init_group). What replicates or divides parameters, or keeps them elsewhere, makes gradients and states for all; then
// nothing changes.
func LeaveUnreached(t *Tape, h *Holding) {
	if s := t.Cfg.Sharding; s.Data > 1 || s.ZeRO > 0 || s.Pipeline > 1 || t.Cfg.Offload != "" {
		return
	}
	unreached := unreachedModules(t, len(h.Modules))
	for _, tie := range h.ties {
		unreached[tie.module], unreached[tie.owner] = false, false
	}
	h.Total = Load{}
	for i := range h.Modules {
		if unreached[i] {
			h.Modules[i].rest()
		}
		h.Total.add(h.Modules[i])
	}
	for i := range h.Each {
		if unreached[h.Each[i].Module] {
			h.Each[i].Load.rest()
		}
	}
}

func (l *Load) rest() { l.Gradients, l.State, l.Work = 0, 0, setting.Work{} }

// unreachedModules marks the operations of which the loss needs nothing. It returns for each module whether it rests, or has
// operations with its parameters of which all are marked.
func unreachedModules(t *Tape, modules int) []bool {
	unreached, reached := make([]bool, modules), make([]bool, modules)
	for _, r := range *resting.Of(t) {
		for i := r[0]; i < min(r[1], modules); i++ {
			unreached[i] = true
		}
	}
	needed := make([]bool, len(t.Storages))
	needed[t.Home(t.Out.storage)] = true
	for i := len(t.Ops) - 1; i >= 0; i-- {
		o, module := &t.Ops[i], t.moduleOf(i)
		if needed[t.Home(o.Out)] {
			for _, id := range t.Refs[o.In:o.Keep] {
				needed[t.Home(id)] = true
			}
		} else {
			o.Unreached = true
			if module >= 0 && o.params {
				unreached[module] = true
			}
			continue
		}
		if module >= 0 && o.params {
			reached[module] = true
		}
	}
	for _, s := range t.Segments { // they run again as a whole
		for i := s.Begin; i < s.End; i++ {
			t.Ops[i].Unreached = false
		}
	}
	for i := range unreached {
		unreached[i] = unreached[i] && !reached[i]
	}
	return unreached
}
