package estimating

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/serving"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// capabilities are the compute capabilities of generations of GPUs; data center and other GPUs of Blackwell differ.
var capabilities = map[string]string{"volta": "7.0", "turing": "7.5", "ampere": "8.0", "ada": "8.9", "hopper": "9.0", "blackwell": "10.0"}

// capability returns that of a GPU.
func capability(g gpu) string {
	if g.generation == "blackwell" && !strings.HasPrefix(g.name, "b") && g.name != "" {
		return "12.0"
	}
	return capabilities[g.generation]
}

// vllmPool plans the pool of vLLM.
func vllmPool(o estimateOptions, m poolModel) (*pool, error) {
	g, p := device(o), o.pool
	v := vllmSettings(o, m)
	start, usual := vllmStart(o, m, v)
	release := cmp.Or(o.engine.release, serving.VLLMVersion)
	out := &pool{title: fmt.Sprintf("%s %s on %s", o.engine.Title, release, devices(g, max(1, v.Tensor)*max(1, v.Pipeline))), drafts: m.drafts(), usual: usual}
	if p.requests > 0 {
		return out, out.vllmAsked(v, start, m, p.requests)
	}
	cache := exactly(p.cache)
	if p.cache == 0 {
		b, err := v.Start(start)
		if err != nil {
			return nil, err
		}
		cache = b.Cache
		out.budget(b, start.Fraction)
	}
	plan, err := v.Plan(m.specs, cache.Bytes)
	if small := tooSmall(err); small != nil {
		out.TooSmall, out.err = small, small
		out.answer = noneFits(m.tokens, small.Longest)
	} else if err != nil {
		return nil, cli.UsageError("estimate: %w", err)
	}
	out.Plan = plan
	lower, _ := v.Plan(m.specs, cache.Lower) // without blocks if it is too small
	upper, _ := v.Plan(m.specs, cache.Upper)
	out.Lower = &poolHolds{cache.Lower, lower.Tokens, lower.Requests}
	out.Upper = &poolHolds{cache.Upper, upper.Tokens, upper.Requests}
	out.holdsVLLM(plan, lower, upper, m.tokens)
	if out.err == nil {
		out.answer = fmt.Sprintf("%s; vLLM prints a cache of %s tokens.", fitAtOnce(plan.Requests, lower.Requests, m.tokens), text.Grouped(plan.Tokens))
	}
	out.adviseVLLM(v, start, m.specs, plan, p)
	return out, nil
}

// vllmSettings returns vLLM's settings.
func vllmSettings(o estimateOptions, m poolModel) serving.VLLM {
	p := o.pool
	state, _ := p.stateType() // askedPool checks it
	v := serving.VLLM{
		Version: o.engine.release, MaxModelLen: m.tokens, MaxBatchedTokens: stepTokens(o), Block: p.block, Capability: capability(device(o)),
		Tensor: o.tp, Pipeline: o.training.pipeline, DType: m.dtype, KVType: p.kvType, StateType: state, NoPrefixCaching: p.noPrefix, DraftTokens: p.drafted,
	}
	if p.drafted > 0 {
		for _, s := range m.specs {
			if s.Kind == serving.Full || s.Kind == serving.Latent {
				v.Draft = []serving.CacheSpec{s}
			}
		}
	}
	return v
}

// vllmStart returns what vLLM starts with, and the flags that have its defaults.
func vllmStart(o estimateOptions, m poolModel, v serving.VLLM) (s serving.VLLMStart, usual []string) {
	g, p := device(o), o.pool
	s = serving.VLLMStart{
		Memory: g.memory, Fraction: p.fraction, Weights: m.weights, WeightsUpper: m.weightsUpper, Step: m.step, Requests: p.most, Eager: p.eager,
	}
	if n := len(m.report.Output); n > 0 {
		s.Vocab = m.report.Output[n-1]
	}
	if s.Fraction == 0 && p.cache == 0 && p.requests == 0 {
		s.Fraction = v.DefaultFraction()
		usual = append(usual, "--memory-fraction", fractionText(s.Fraction))
	}
	if _, most := serving.VLLMBatch(g.title, g.memory); s.Requests == 0 {
		s.Requests = most
		usual = append(usual, "--max-requests", strconv.Itoa(most))
	}
	return s, usual
}

// devices names a number of GPUs.
func devices(g gpu, n int) string {
	title := g.title
	if g.memory > 0 {
		title = fmt.Sprintf("%s (%v)", g.title, g.memory)
	}
	if n > 1 {
		return fmt.Sprintf("%d x %s", n, title)
	}
	return title
}

// budget fills in how the memory of the cache comes about.
func (p *pool) budget(b serving.VLLMBudget, fraction float64) {
	if p.drafts {
		b.Weights.Upper = estimate.Unbounded
	}
	p.Fraction, p.Budget = fraction, b
	p.parts = []poolPart{
		{fractionText(fraction) + " of it", exactly(b.Requested)}, {"weights", b.Weights}, {"profile run (estimate)", b.Profile}, {"outside PyTorch (estimate)", b.Outside},
	}
	if b.Graphs.Upper > 0 {
		p.parts = append(p.parts, poolPart{"CUDA graphs (estimate)", b.Graphs})
	}
	p.parts = append(p.parts, poolPart{"left for the cache", b.Cache})
}

// holdsVLLM fills in what the cache holds.
func (p *pool) holdsVLLM(plan, lower, upper serving.VLLMPlan, tokens int) {
	row := func(name string, of func(serving.VLLMPlan) int) {
		p.holds = append(p.holds, poolRow{name, text.Grouped(of(plan)), text.Grouped(of(lower)), text.Grouped(of(upper))})
	}
	p.holds = []poolRow{{name: "a block", value: plan.BytesPerBlock.String()}}
	row("blocks of a request", func(l serving.VLLMPlan) int { return l.BlocksPerRequest })
	row("blocks", func(l serving.VLLMPlan) int { return l.Blocks })
	row("tokens, as vLLM prints them", func(l serving.VLLMPlan) int { return int(l.Tokens) })
	row(fmt.Sprintf("requests of %s at once", tokensOf(tokens)), func(l serving.VLLMPlan) int { return l.Requests })
	for _, g := range plan.Groups {
		line := fmt.Sprintf("Group of blocks: %d layers, %s; %s tokens each, %s for a request", len(g.Layers), cmp.Or(g.Kind, "of several sizes"), text.Grouped(g.Block), text.Grouped(g.Blocks))
		if !slices.Contains(p.lines, line) {
			p.lines = append(p.lines, line)
		}
	}
}

// adviseVLLM says which way to turn the fraction.
func (p *pool) adviseVLLM(v serving.VLLM, start serving.VLLMStart, specs []serving.CacheSpec, plan serving.VLLMPlan, o poolOptions) {
	if plan.Requests > start.Requests {
		p.lines = append(p.lines, fmt.Sprintf("It runs %s requests at once, the rest wait: --max-requests says how many.", text.Grouped(start.Requests)))
	}
	if o.cache > 0 {
		return
	}
	if p.err != nil {
		p.lines = append(p.lines, startsWith(v, start, specs, alloc.Bytes(plan.BlocksPerRequest+1)*plan.BytesPerBlock))
		return
	}
	blocks := float64(start.Memory) / 100 / float64(plan.BytesPerBlock)
	tokens := int(blocks / float64(plan.BlocksPerRequest) * float64(v.MaxModelLen))
	p.lines = append(p.lines, fmt.Sprintf("0.01 more of --memory-fraction holds %s tokens more. vLLM starts only if so much of the GPU is free; %s is the most on an unused one.", text.Grouped(tokens), fractionText(mostFraction)))
}

// startsWith says what lets vLLM start with a request of MaxModelLen tokens, for which the cache needs so much.
func startsWith(v serving.VLLM, start serving.VLLMStart, specs []serving.CacheSpec, needed alloc.Bytes) string {
	fraction, _, upper, err := v.Fraction(start, needed)
	if err != nil || fraction > mostFraction {
		longest := 0
		start.Fraction = mostFraction
		if b, err := v.Start(start); err == nil {
			longest, _ = v.Longest(specs, b.Cache.Bytes, 1)
		}
		return withNoFraction(v.MaxModelLen, longest)
	}
	return fmt.Sprintf("One request of %s fits with --memory-fraction %s; %s.", tokensOf(v.MaxModelLen), fractionText(fraction), surely(upper))
}

// withNoFraction says what is to be done where one request fits with no fraction. With the largest fraction the longest that
// fits has so many tokens; 0 if none does.
func withNoFraction(tokens, longest int) string {
	said := fmt.Sprintf("One request of %s fits with no fraction: give more GPUs with --tp", tokensOf(tokens))
	if longest == 0 {
		return said + ", or smaller weights with --quantize."
	}
	return said + fmt.Sprintf(", smaller weights with --quantize, or shorter requests with --max-model-len, of at most %s.", tokensOf(longest))
}

// noneFits says that not one request fits, and how long those are that do.
func noneFits(tokens, longest int) string {
	if longest == 0 {
		return "No request fits, however short: too little memory is left for the cache."
	}
	return fmt.Sprintf("Not one request of %s fits: %s is the longest.", tokensOf(tokens), text.Grouped(longest))
}

// vllmAsked finds the fraction for a number of requests.
func (p *pool) vllmAsked(v serving.VLLM, start serving.VLLMStart, m poolModel, n int) error {
	cache, err := v.Budget(m.specs, n)
	if err != nil {
		return cli.UsageError("estimate: %w", err)
	}
	fraction, lower, upper, err := v.Fraction(start, cache)
	if err != nil {
		return err
	}
	p.Asked = &poolAsked{Requests: n, Cache: cache}
	if fraction <= mostFraction {
		p.Asked.Fraction = &fraction
		if upper <= mostFraction {
			p.Asked.FractionUpper = &upper
		}
		p.answer = fmt.Sprintf("%s of %s %s a cache of %v: %s with --memory-fraction %s; %s may be enough, %s.", requests(n), tokensOf(m.tokens), many(n, "needs", "need"), cache, many(n, "it fits", "they fit"), fractionText(fraction), fractionText(lower), surely(upper))
		start.Fraction = fraction
		b, err := v.Start(start)
		p.budget(b, fraction)
		return err
	}
	start.Fraction = mostFraction
	b, err := v.Start(start)
	if err != nil {
		return err
	}
	p.budget(b, mostFraction)
	longest, err := v.Longest(m.specs, b.Cache.Bytes, n)
	if err != nil {
		return err
	}
	p.tooMany(n, m.tokens, longest, fmt.Sprintf("a cache of %v", cache))
	return nil
}

// tooMany answers that so many requests fit with no fraction. need is what they need, and longest are the tokens of those of
// which so many fit; 0 if there are none.
func (p *pool) tooMany(n, tokens, longest int, need string) {
	p.Asked.Longest = &longest
	p.err = fmt.Errorf("%s of %s %s not fit, whatever the fraction", requests(n), tokensOf(tokens), many(n, "does", "do"))
	p.answer = fmt.Sprintf("%s of %s %s %s, which no fraction leaves", requests(n), tokensOf(tokens), many(n, "needs", "need"), need)
	if longest == 0 {
		p.err = fmt.Errorf("%w, however short they are", p.err)
		p.answer += ": so many do not fit, however short they are."
		return
	}
	p.err = fmt.Errorf("%w: the longest of which so many fit have %s", p.err, tokensOf(longest))
	p.answer += fmt.Sprintf(": of requests of %s so many fit.", tokensOf(longest))
}

// requests counts requests in words.
func requests(n int) string {
	return text.Grouped(n) + many(n, " request", " requests")
}

// fitAtOnce says how many requests fit, and how many at least if these are fewer.
func fitAtOnce(n, lower, tokens int) string {
	least := fmt.Sprintf(" (at least %s)", text.Grouped(lower))
	switch lower {
	case n:
		least = ""
	case 0:
		least = ", or none"
	}
	return fmt.Sprintf("%s of %s %s at once%s", requests(n), tokensOf(tokens), many(n, "fits", "fit"), least)
}

// mostFraction is the largest fraction with which a server starts on a GPU that nothing else uses: the CUDA context takes the
// rest.
const mostFraction = 0.98

// surely says with which fraction requests fit for sure.
func surely(upper float64) string {
	if upper > mostFraction {
		return "and with no fraction it is sure"
	}
	return fractionText(upper) + " is enough for sure"
}
