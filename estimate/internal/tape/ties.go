package tape

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// tie is a parameter of one module that is the same as another module's.
type tie struct {
	module, owner int
	load          Load
}

// sum is the memory needed to add to an existing gradient: the summand and, unless the sum is made
// in place, the new sum.
type sum struct{ Summand, Anew int64 }

func (s sum) Bytes() int64 { return s.Summand + s.Anew }

// tie notes that a parameter is the same as another module's.
func (h *Holding) tie(d *Declaration, p *ownedParam, cfg *setting.Config) {
	owner := d.ownerOf(p.Tied)
	if owner == nil || owner.Buffer {
		return
	}
	if l, _, err := loadOf(cfg, owner, d.Modules[owner.module].Frozen); err == nil { // otherwise Weigh reports the error at the owner
		h.ties = append(h.ties, tie{p.module, owner.module, l})
	}
}

// meet finds where the gradients of tied parameters appear and are added up. The backward pass
// reaches the last of the modules first and the owner last. The first two gradients are added into
// a new one, since the head's gradient is transposed; later ones are added in place
// (torch/csrc/autograd/input_buffer.cpp).
func (h *Holding) meet(s setting.Sharding) {
	n := len(h.Modules)
	h.TiedIn, h.TiedOut, h.Sums = make([]int64, n), make([]int64, n), make([]sum, n)
	for i := len(h.ties) - 1; i >= 0; i-- {
		t := h.ties[i]
		bytes := t.load.shard(s).Gradients
		if h.TiedOut[t.owner] == 0 {
			h.TiedIn[t.module] += bytes
			h.TiedOut[t.owner] += bytes
			h.Sums[t.owner] = sum{bytes, bytes}
			continue
		}
		h.Sums[t.module], h.Sums[t.owner] = h.Sums[t.owner], sum{Summand: bytes}
	}
}

// untie gives each stage its own copy of parameters that are tied to another stage's, as
// Megatron-LM does with the embedding for the last stage.
func (h *Holding) untie(stages []Stage, stageOf func(module int) int, s setting.Sharding) {
	var left []tie
	for _, t := range h.ties {
		at := stageOf(t.module)
		if at == stageOf(t.owner) {
			left = append(left, t)
			continue
		}
		stages[at].Load.add(t.load)
		h.Modules[t.module].add(t.load)
	}
	h.ties = left
	h.meet(s)
}
