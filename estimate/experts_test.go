package estimate_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// mixture is a small Mixtral, whose experts have most of its parameters.
func mixture(t *testing.T, more ...estimate.Option) *estimate.Report {
	t.Helper()
	opts := []estimate.Option{estimate.Tokens(2, 512), estimate.Precision(alloc.BFloat16), estimate.Train("adamw"), estimate.Loop{Form: "fused", Output: "dropped"}}
	return model(t, layer.Public(with(tiny["mixtral-tiny"].Layers(), layer.NextToken{})), append(opts, more...)...)
}

// Devices that share experts have a part of each mixture's, of their gradients and their states; what replicas divide anyway
// is not divided again.
func TestExpertsAreShared(t *testing.T) {
	c := tiny["mixtral-tiny"]
	experts := alloc.Bytes(2 * c.Blocks * c.Experts * 3 * c.Hidden * c.FFN)
	whole, shared := mixture(t), mixture(t, estimate.Sharding{Experts: 4})
	assert.Equal(t, experts-experts/4, whole.Training.Weights-shared.Training.Weights)
	assert.Equal(t, 2*(experts-experts/4), whole.Training.Optimizer-shared.Training.Optimizer)
	assert.Equal(t, whole.Params, shared.Params)

	replicas := func(zero, n int) estimate.Memory {
		return mixture(t, estimate.Sharding{Data: 8, ZeRO: zero, Experts: n}).Training
	}
	assert.Equal(t, replicas(1, 1).Optimizer, replicas(1, 4).Optimizer, "divided among all eight either way")
	assert.Equal(t, experts-experts/4, replicas(1, 1).Weights-replicas(1, 4).Weights)
	assert.Equal(t, replicas(3, 1).Weights, replicas(3, 4).Weights)

	gathered := func(n int) estimate.Memory {
		return mixture(t, estimate.Sharding{Data: 8, ZeRO: 3, Experts: n, By: "fsdp2"}).Training
	}
	assert.Equal(t, gathered(1).Weights, gathered(4).Weights)
	assert.Less(t, gathered(4).Transient, gathered(1).Transient, "a device gathers its own experts")

	_, err := estimate.Model(layer.Public(c.Layers()), estimate.Sharding{Data: 6, Experts: 4})
	assert.ErrorContains(t, err, "6 replicas do not divide into groups of 4")
}

// Where devices share experts, or experts run one after another, the router decides how large tensors are: bounds say so.
func TestRoutingIsUneven(t *testing.T) {
	terms := func(more ...estimate.Option) (of []string) {
		for _, u := range mixture(t, more...).Training.Uncertain {
			of = append(of, u.Of)
		}
		return of
	}
	cached := func(more ...estimate.Option) alloc.Bytes { // what the upper bound adds to reserved memory alone
		f := mixture(t, more...).Training.Footprint
		return f.Reserved.Upper - f.Reserved.Bytes - (f.Allocated.Upper - f.Allocated.Bytes)
	}
	shared := estimate.Sharding{Experts: 4}
	assert.False(t, slices.Contains(terms(), "tokens of experts"), "as many tokens, whichever experts they visit")
	assert.Contains(t, terms(shared), "tokens of experts")
	assert.Greater(t, cached(shared), cached(shared, estimate.ExpandableSegments()), "no block of another size is left")
	old := estimate.Installed("transformers==4.45")
	assert.Greater(t, cached(old), cached(old, estimate.RunsExperts("grouped")), "one expert after another")
	assert.Greater(t, cached(estimate.RunsExperts("loop")), cached())
	even, uneven := mixture(t).Training, mixture(t, shared, estimate.ExpandableSegments()).Training
	assert.Greater(t, float64(uneven.Peak.Upper)/float64(uneven.Peak.Bytes), float64(even.Peak.Upper)/float64(even.Peak.Bytes))
	assert.Less(t, mixture(t, estimate.Checkpointed("model.layers.*"), shared).Training.Peak.Upper, mixture(t, shared).Training.Peak.Upper)
}

// transformers runs all experts of Llama 4 on every token; elsewhere each gets the tokens that are routed to it.
func TestExpertsOfLlama4(t *testing.T) {
	c := family.Transformer{Family: family.Llama4, Vocab: 1000, Hidden: 256, FFN: 512, Blocks: 2, Heads: 8, KVHeads: 2, Mixture: family.Mixture{Experts: 16, TopK: 1, ExpertFFN: 512, SharedFFN: 512}}
	run := func(more ...estimate.Option) *estimate.Report {
		return model(t, layer.Public(c.Layers()), append([]estimate.Option{estimate.Tokens(2, 512), estimate.Precision(alloc.BFloat16), estimate.Train("none")}, more...)...)
	}
	all, routed := run(), run(estimate.RunsExperts("grouped"))
	assert.Equal(t, all.Params, routed.Params)
	visits := alloc.Bytes(2 * 512 * 2) // bytes of an element of all tokens
	each := visits * alloc.Bytes(2*c.Hidden+4*512)
	assert.InEpsilon(t, float64(2*15*each), float64(all.Retained-routed.Retained), 0.01, "input twice, both halves, the gate and the product of 15 experts in two layers")
	_, err := estimate.Model(layer.Public(c.Layers()), estimate.RunsExperts("all"))
	assert.ErrorContains(t, err, `Experts is "all": want one of grouped, loop`)
}
