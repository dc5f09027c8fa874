package estimate

// tie is a parameter of one module that is another's.
type tie struct {
	module, owner int
	load          load
}

// sum is what it takes to add to a gradient that is there: the summand and, where that is not added in
// place, a new sum.
type sum struct{ summand, anew int64 }

func (s sum) bytes() int64 { return s.summand + s.anew }

// tie notes that a parameter is another's.
func (h *holding) tie(d *Declaration, p *ownedParam, cfg *config) {
	owner := d.ownerOf(p.Tied)
	if owner == nil || owner.Buffer {
		return
	}
	if l, _, err := cfg.load(owner, d.modules[owner.module].frozen); err == nil { // else it is reported where the owner is weighed
		h.ties = append(h.ties, tie{p.module, owner.module, l})
	}
}

// meet finds where the gradients of tied parameters appear and are added up. A backward pass comes to the
// last of the modules first and to the owner at the end. The first two gradients are added to a new
// one, since that of a head is seen transposed, and later ones in place (torch/csrc/autograd/input_buffer.cpp).
func (h *holding) meet(s Sharding) {
	n := len(h.modules)
	h.tiedIn, h.tiedOut, h.sums = make([]int64, n), make([]int64, n), make([]sum, n)
	for i := len(h.ties) - 1; i >= 0; i-- {
		t := h.ties[i]
		bytes := t.load.shard(s).gradients
		if h.tiedOut[t.owner] == 0 {
			h.tiedIn[t.module] += bytes
			h.tiedOut[t.owner] += bytes
			h.sums[t.owner] = sum{bytes, bytes}
			continue
		}
		h.sums[t.module], h.sums[t.owner] = h.sums[t.owner], sum{summand: bytes}
	}
}

// untie gives each stage a copy of the parameters that are tied to another
// stage's, as Megatron-LM gives the last stage the embedding.
func (h *holding) untie(stages []stage, stageOf func(module int) int, s Sharding) {
	var left []tie
	for _, t := range h.ties {
		at := stageOf(t.module)
		if at == stageOf(t.owner) {
			left = append(left, t)
			continue
		}
		stages[at].load.add(t.load)
		h.modules[t.module].add(t.load)
	}
	h.ties = left
	h.meet(s)
}
