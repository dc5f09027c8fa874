package ggml

// MLP is a feed-forward network (src/llama-graph.cpp, build_ffn).
type MLP struct {
	Width  int
	Gated  bool
	Packed bool // one product makes the gate too
}

func (m MLP) build(b *builder, x *tensor) *tensor {
	var y *tensor
	switch {
	case m.Packed:
		y = op(b.row(m.Width), b.product(2*m.Width, x))
	case m.Gated:
		up := b.product(m.Width, x)
		y = gated(b, b.product(m.Width, x), up)
	default:
		y = b.product(m.Width, x)
		y = over(y.size, y)
	}
	return b.product(b.Hidden, y)
}

// gated returns the product of a gate's activation and what it weighs.
func gated(b *builder, gate, up *tensor) *tensor {
	if b.s.ApartGates {
		return over(gate.size, over(gate.size, gate), up)
	}
	return op(gate.size, gate, up)
}

// Mixture is a mixture of experts (src/llama-graph.cpp, build_moe_ffn).
type Mixture struct {
	Experts, TopK, Width int
	Gated                bool
	Shared               int  // width of the MLP of all tokens; 0 means none
	SharedGate           bool // a gate weighs it
	Biased               bool // a bias takes part in the choice
	Groups               bool // groups of experts are chosen first
	Summed               bool // weights are divided by their sum
	Scaled               bool // weights are multiplied by a number
	Before               bool // weights multiply the input (Llama 4)
}

func (m Mixture) build(b *builder, x *tensor) *tensor {
	m.TopK = max(1, min(m.TopK, m.Experts))
	logits := b.product(m.Experts, x)
	scores := over(logits.size, logits)
	choice := scores
	if m.Before {
		choice = logits
	}
	if m.Biased {
		choice = over(scores.size, scores)
	}
	sorted := op(choice.size, choice)
	top := part(sorted, b.row(m.TopK))
	weights := op(b.row(m.TopK), view(scores), top)
	if m.Summed {
		sum := op(b.row(1), op(b.row(1), view(weights)))
		weights = view(over(weights.size, view(weights), sum))
	}
	if m.Scaled {
		weights = over(weights.size, weights)
	}
	b.expand(weights)
	in := view(x)
	if m.Before {
		all := b.row(m.TopK * b.Hidden)
		in = over(all, op(all, in), weights)
	}
	up := op(b.row(m.TopK*m.Width), in, top)
	y := up
	if m.Gated {
		y = gated(b, op(up.size, in, top), up)
	} else {
		y = over(up.size, up)
	}
	y = op(b.row(m.TopK*b.Hidden), y, top)
	if !m.Before {
		y = over(y.size, y, weights)
	}
	all := make([]*tensor, m.TopK)
	for i := range all {
		all[i] = part(y, b.row(b.Hidden))
		b.expand(all[i])
	}
	sum := all[0]
	for _, t := range all[1:] {
		sum = over(t.size, sum, t)
	}
	if m.TopK == 1 {
		sum = op(sum.size, sum)
	}
	b.expand(sum)
	if m.Shared > 0 {
		shared := MLP{Width: m.Shared, Gated: m.Gated}.build(b, x)
		if m.SharedGate {
			gate := b.product(1, x)
			shared = over(shared.size, shared, over(gate.size, gate))
		}
		sum = over(sum.size, sum, shared)
	}
	return sum
}
