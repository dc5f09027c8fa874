package estimating

import (
	"cmp"
	"encoding/json"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/serving"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// sglangPool plans the pools of SGLang.
func sglangPool(o estimateOptions, m poolModel) (*pool, error) {
	g, p := device(o), o.pool
	switch {
	case o.training.pipeline > 1:
		return nil, cli.UsageError("estimate: --pp: the pools of SGLang are planned for one stage: leave it out")
	case p.eager:
		return nil, cli.UsageError("estimate: --enforce-eager is about vLLM: SGLang has no memory for CUDA graphs in its fraction")
	}
	s, start := sglangSettings(o, m)
	release := cmp.Or(o.engine.release, serving.SGLangVersion)
	out := &pool{title: fmt.Sprintf("%s %s on %s, requests of up to %s", o.engine.Title, release, devices(g, o.tp), tokensOf(m.tokens)), drafts: m.drafts()}
	if release != serving.SGLangVersion {
		out.lines = append(out.lines, "The rules are those of SGLang "+serving.SGLangVersion+".")
	}
	if m.towers && p.fraction == 0 && p.cache == 0 {
		out.lines = append(out.lines, "SGLang's own fraction for a model that reads images is some 5 % less than that of a text model, which is what counts here as its default: --memory-fraction says which.")
	}
	if p.requests > 0 {
		return out, out.sglangAsked(s, start, m, p.requests)
	}
	pools := exactly(p.cache)
	if p.cache == 0 {
		b, err := s.Start(start)
		if err != nil {
			return nil, err
		}
		pools = b.Pools
		if p.fraction == 0 {
			out.usual = []string{"--memory-fraction", fractionText(b.Fraction)}
		}
		out.sglangBudget(b)
	}
	plan, err := out.plannedBySGLang(s, m, pools)
	if err == nil && p.cache == 0 {
		out.adviseSGLang(s, start, m, plan)
	}
	return out, err
}

// sglangSettings returns SGLang's settings, and what it starts with.
func sglangSettings(o estimateOptions, m poolModel) (serving.SGLang, serving.SGLangStart) {
	p := o.pool
	state, _ := p.stateType() // askedPool checks it
	s := serving.SGLang{
		ModelType: m.modelType, Context: m.tokens, Page: p.block, Tensor: o.tp, DType: m.dtype, KVType: p.kvType, StateType: state, NoRadixCache: p.noPrefix, MaxRequests: p.most,
		ChunkedPrefill: stepTokens(o), DraftTokens: p.drafted, ImagesAndSounds: m.towers,
	}
	if p.drafted > 0 {
		s.DraftLayers = 1
	}
	latent := slices.ContainsFunc(m.specs, func(s serving.CacheSpec) bool { return s.Kind == serving.Latent })
	return s, serving.SGLangStart{Memory: device(o).memory, Fraction: p.fraction, Weights: m.weights, WeightsUpper: m.weightsUpper, Latent: latent}
}

// plannedBySGLang plans the pools, and fills in what they hold.
func (p *pool) plannedBySGLang(s serving.SGLang, m poolModel, pools estimate.Value) (serving.SGLangPlan, error) {
	plan, err := s.Plan(m.specs, pools.Bytes)
	small := tooSmall(err)
	switch {
	case small != nil:
		p.TooSmall, p.err = small, small
		p.answer = noneFits(m.tokens, small.Longest)
	case err != nil:
		return plan, cli.UsageError("estimate: %w", err)
	}
	p.Plan = plan
	lower, _ := s.Plan(m.specs, pools.Lower)
	upper, _ := s.Plan(m.specs, pools.Upper)
	p.Lower = &poolHolds{pools.Lower, lower.Tokens, lower.Requests}
	p.Upper = &poolHolds{pools.Upper, upper.Tokens, upper.Requests}
	p.holdsSGLang(plan, lower, upper, m.tokens)
	if small == nil {
		p.answer = fmt.Sprintf("%s; SGLang prints max_total_num_tokens=%d.", fitAtOnce(plan.Requests, lower.Requests, m.tokens), plan.Tokens)
	}
	return plan, nil
}

// adviseSGLang says which way to turn the fraction.
func (p *pool) adviseSGLang(s serving.SGLang, start serving.SGLangStart, m poolModel, plan serving.SGLangPlan) {
	if p.err != nil {
		pools, err := s.PoolsFor(m.specs, 1)
		fraction, _, upper, fails := s.Fraction(start, pools)
		switch {
		case err != nil || fails != nil:
		case fraction <= mostFraction:
			p.lines = append(p.lines, fmt.Sprintf("One request of %s fits with --memory-fraction %s; %s.", tokensOf(m.tokens), fractionText(fraction), surely(upper)))
		default:
			start.Fraction = mostFraction
			longest := 0
			if b, err := s.Start(start); err == nil {
				longest, _ = s.Longest(m.specs, b.Pools.Bytes, 1)
			}
			p.lines = append(p.lines, withNoFraction(m.tokens, longest))
		}
	}
	p.lines = append(p.lines, fractionOfSGLang(start, plan))
}

// fractionOfSGLang says what a hundredth of the fraction holds.
func fractionOfSGLang(start serving.SGLangStart, plan serving.SGLangPlan) string {
	more := float64(start.Memory) / 100 / plan.BytesPerToken
	if plan.StateBytes > 0 {
		more /= 1.9 // the rest is for states
	}
	return fmt.Sprintf("0.01 more of --memory-fraction holds %s tokens more. What it leaves must hold activations and CUDA graphs: SGLang does not measure them, and "+
		"runs out of memory later where it leaves too little.", text.Grouped(int(more)))
}

// sglangBudget fills in how the memory of the pools comes about.
func (p *pool) sglangBudget(b serving.SGLangBudget) {
	if p.drafts {
		b.Weights.Upper = estimate.Unbounded
	}
	p.Fraction, p.Budget = b.Fraction, b
	p.parts = []poolPart{
		{"free before loading (estimate)", b.Free}, {fractionText(b.Fraction) + " of it", b.Static}, {"weights", b.Weights}, {"left by loading (estimate)", b.Loading},
		{"left for the pools", b.Pools},
	}
}

// holdsSGLang fills in what the pools hold.
func (p *pool) holdsSGLang(plan, lower, upper serving.SGLangPlan, tokens int) {
	row := func(name string, of func(serving.SGLangPlan) int64) {
		p.holds = append(p.holds, poolRow{name, text.Grouped(of(plan)), text.Grouped(of(lower)), text.Grouped(of(upper))})
	}
	p.holds = []poolRow{{name: "a token", value: alloc.Bytes(plan.BytesPerToken).String()}}
	row("tokens, as SGLang prints them", func(l serving.SGLangPlan) int64 { return l.Tokens })
	if plan.WindowTokens > 0 {
		row("tokens of layers with a window", func(l serving.SGLangPlan) int64 { return l.WindowTokens })
	}
	if plan.StateBytes > 0 {
		row(fmt.Sprintf("slots of recurrent states, %v each", plan.StateBytes), func(l serving.SGLangPlan) int64 { return int64(l.StateSlots) })
	}
	row("requests at once, however short", func(l serving.SGLangPlan) int64 { return int64(l.MaxRequests) })
	row(fmt.Sprintf("requests of %s at once", tokensOf(tokens)), func(l serving.SGLangPlan) int64 { return int64(l.Requests) })
}

// sglangAsked finds the fraction for a number of requests.
func (p *pool) sglangAsked(s serving.SGLang, start serving.SGLangStart, m poolModel, n int) error {
	pools, err := s.PoolsFor(m.specs, n)
	if err != nil {
		return cli.UsageError("estimate: %w", err)
	}
	fraction, lower, upper, err := s.Fraction(start, pools)
	if err != nil {
		return err
	}
	p.Asked = &poolAsked{Requests: n, Cache: pools}
	usual := serving.SGLangFraction(start.Memory, s.Tensor, start.Latent)
	if fraction > mostFraction {
		start.Fraction = mostFraction
		b, err := s.Start(start)
		if err != nil {
			return err
		}
		p.sglangBudget(b)
		longest, err := s.Longest(m.specs, b.Pools.Bytes, n)
		if err != nil {
			return err
		}
		p.tooMany(n, m.tokens, longest, fmt.Sprintf("pools of %v", pools))
		return nil
	}
	p.Asked.Fraction = &fraction
	if upper <= mostFraction {
		p.Asked.FractionUpper = &upper
	}
	p.answer = fmt.Sprintf("%s of %s %s pools of %v: %s with --memory-fraction %s; %s may be enough, %s.", requests(n), tokensOf(m.tokens), many(n, "needs", "need"), pools, many(n, "it fits", "they fit"), fractionText(fraction), fractionText(lower), surely(upper))
	if fraction > usual {
		p.lines = append(p.lines, fmt.Sprintf("SGLang's own fraction on this GPU is %s: a larger one leaves less to activations and CUDA graphs, which it does not measure.", fractionText(usual)))
	}
	start.Fraction = fraction
	b, err := s.Start(start)
	p.sglangBudget(b)
	return err
}

// modelType returns the model_type of a model's config.json; "" if it has none.
func modelType(of any) string {
	switch m := of.(type) {
	case interface{ Architecture() (string, error) }:
		name, _ := m.Architecture()
		return name
	case zoo.Model:
		var config struct {
			Type string `json:"model_type"`
		}
		_ = json.Unmarshal(m.Config, &config)
		return config.Type
	}
	return ""
}
