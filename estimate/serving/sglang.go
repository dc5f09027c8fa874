package serving

import (
	"cmp"
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// SGLang says how SGLang serves a model, by the names of its own settings. The rules are those of release 0.5.23. Zero values are
// SGLang's defaults. The specs are those of one GPU's stage, if the layers are divided in a pipeline.
type SGLang struct {
	// ModelType is the model_type of config.json, such as "gpt_oss". Only some types have a pool of their own for layers with a
	// window; those of all others keep all tokens.
	ModelType string

	Context int         // the most tokens of a request: --context-length
	Page    int         // tokens of a page, --page-size; 0 means 1
	Tensor  int         // --tensor-parallel-size; 0 means 1
	DType   alloc.DType // of the model, --dtype; 0 means bfloat16
	KVType  string      // --kv-cache-dtype: "auto", "bfloat16", "fp8_e4m3", "fp8_e5m2" or "mxfp8"; "" means "auto"

	StateType  alloc.DType // of recurrent states, --mamba-ssm-dtype; 0 means float32, unless the model wants another
	StateRatio float64     // memory of states over that of keys and values, --mamba-full-memory-ratio; 0 means 0.9
	StateSlots int         // --max-mamba-cache-size, which replaces the ratio; 0 means none
	// StateBuffer is how states are kept for the prefix cache, --mamba-scheduler-strategy: "extra_buffer", of which a request has
	// five slots, four with NoOverlap; or "no_buffer", of which it has three. "" means "extra_buffer".
	StateBuffer string

	WindowRatio     float64 // tokens of layers with a window over those of the others, --swa-full-tokens-ratio; 0 means 0.8
	WholeWindows    bool    // --disable-hybrid-swa-memory: layers with a window keep all tokens
	NoRadixCache    bool    // --disable-radix-cache
	NoOverlap       bool    // --disable-overlap-schedule
	ChunkedPrefill  int     // tokens of a prompt that run at once, --chunked-prefill-size; 0 means 8192. SGLangBatch has the defaults of a GPU
	MaxRequests     int     // --max-running-requests; 0 means that it follows from the pool
	MaxTokens       int64   // --max-total-tokens; 0 means what the budget gives
	DraftLayers     int     // layers of the draft model or of the prediction of several tokens, of the size of the model's own
	DraftTokens     int     // --speculative-num-draft-tokens; hybrids need MaxRequests beside it
	ImagesAndSounds bool    // the model reads images or sounds: 100 MiB of the budget are set aside for what the encoder made of them
}

// SGLangVersion is the release of SGLang whose rules are here.
const SGLangVersion = "0.5.23"

// SGLangPlan is how SGLang divides the memory of its pools.
type SGLangPlan struct {
	BytesPerToken float64     `json:"token_bytes"`        // on each GPU, of all layers; a token of a layer with a window counts by the ratio of the pools
	Tokens        int64       `json:"tokens"`             // printed as max_total_num_tokens; one page more is allocated
	WindowTokens  int64       `json:"window_tokens"`      // of the pool for layers with a window; 0 means that there is none
	StateBytes    alloc.Bytes `json:"state_slot_bytes"`   // of the recurrent states of one slot; 0 means that the model has none
	StateSlots    int         `json:"state_slots"`        // one more is allocated
	MaxRequests   int         `json:"max_requests"`       // printed as max_running_requests: how many may run, however short
	Requests      int         `json:"requests"`           // of Context tokens that run at once
	TokensNeeded  int64       `json:"tokens_per_request"` // of one of those
}

// ownWindowPool are the types whose layers with a window have a pool of their own. SGLang lists the classes of these
// (configs/model_config.py, is_hybrid_swa_model).
var ownWindowPool = []string{
	"beam", "diffusion_gemma", "gemma4", "gemma4_unified", "gpt_oss", "granite_moe_swa", "granite_swa", "inkling", "iquest_q1", "laguna", "llama4", "mellum",
	"mimo_v2", "mimo_v2_flash", "muse_glimmer", "step3p5", "step3p7", "unlimited_ocr",
}

// sglangTypes are the bits of an element, and the elements that share a scale of one byte.
var sglangTypes = map[string]struct{ bits, group int64 }{
	"auto": {}, "bf16": {16, 0}, "bfloat16": {16, 0}, "float16": {16, 0}, "fp8": {8, 0}, "fp8_e4m3": {8, 0}, "fp8_e5m2": {8, 0}, "mxfp8": {8, 32},
}

const (
	evictionInterval = 128 // SGLANG_SWA_EVICTION_INTERVAL
	imageCache       = 100 * alloc.MiB
)

// Budget returns what is left for the pools of a GPU (mem_cache/kv_cache_configurator.py, _profile_available_bytes): of the memory
// that was free before the model was loaded, a fraction (--mem-fraction-static) is for weights and pools, the rest for
// activations and CUDA graphs.
func (s SGLang) Budget(freeBefore, freeAfter alloc.Bytes, fraction float64) alloc.Bytes {
	rest := float64(freeAfter) - float64(freeBefore)*(1-fraction)
	if s.ImagesAndSounds {
		rest -= float64(imageCache)
	}
	return alloc.Bytes(rest)
}

// SGLangBatch returns SGLang's defaults of --chunked-prefill-size and of the largest batch of its CUDA graphs on a GPU
// (arg_groups/memory_hook.py, handle_gpu_memory_settings).
func SGLangBatch(memory alloc.Bytes, tensor int) (prefill, graphs int) {
	few := tensor < 4
	pick := func(one, many int) int {
		if few {
			return one
		}
		return many
	}
	switch {
	case memory < 20*alloc.GiB:
		return 2048, 8
	case memory < 35*alloc.GiB:
		return 4096, pick(48, 160)
	case memory < 60*alloc.GiB:
		return 4096, pick(32, 160)
	case memory < 160*alloc.GiB:
		return 8192, pick(256, 512)
	}
	return 16384, 512
}

// SGLangFraction returns SGLang's default of --mem-fraction-static on a GPU, for a text model of which some layers are Latent
// or none (arg_groups/memory_hook.py, handle_gpu_memory_settings and reserve_for_graph_mb). It reserves an amount that is not
// measured. A model with a vision tower gets some 5 % less.
func SGLangFraction(memory alloc.Bytes, tensor int, latent bool) float64 {
	tensor = max(1, tensor)
	prefill, graphs := SGLangBatch(memory, tensor)
	reserved := 512 + 1.5*float64(max(prefill, 2048)) + float64(tensor)/8*1024 + 2*float64(graphs) // MiB
	if latent {
		reserved += 1536
	} else {
		reserved += 8 * float64(prefillGraphs(prefill))
	}
	if memory > 60*alloc.GiB {
		reserved = max(reserved, 10*1024)
	}
	total := float64(memory / alloc.MiB)
	return math.Round((total-reserved)/total*1000) / 1000
}

// prefillGraphs returns how many CUDA graphs there are for prompts of up to so many tokens (arg_groups/cuda_graph_hook.py,
// generate_prefill_cuda_graph_batch_sizes).
func prefillGraphs(most int) (n int) {
	for _, sizes := range []struct{ from, to, step int }{
		{4, 32, 4}, {48, 256, 16}, {288, 512, 32}, {576, 1024, 64}, {1280, 4096, 256}, {4608, most, 512},
	} {
		for size := sizes.from; size <= min(sizes.to, most); size += sizes.step {
			n++
		}
	}
	return n
}

// Plan divides a budget among the pools (model_executor/pool_configurator.py and mem_cache/kv_cache_configurator.py). The error is
// a *TooSmallError if not one request of Context tokens fits, and the plan is what SGLang makes of the budget then, as it serves
// shorter ones. Other errors say which setting makes no sense.
func (s SGLang) Plan(specs []CacheSpec, budget alloc.Bytes) (SGLangPlan, error) {
	s.Page, s.Tensor, s.DType = max(1, s.Page), max(1, s.Tensor), cmp.Or(s.DType, alloc.BFloat16)
	s.StateRatio, s.WindowRatio = cmp.Or(s.StateRatio, 0.9), cmp.Or(s.WindowRatio, 0.8)
	s.ChunkedPrefill = cmp.Or(s.ChunkedPrefill, 8192)
	if err := s.check(specs); err != nil {
		return SGLangPlan{}, fmt.Errorf("plan SGLang's pools: %w", err)
	}
	p := sglangPlanner{SGLang: s, specs: specs}
	plan := p.plan(max(0, budget))
	if plan.Requests > 0 {
		return plan, nil
	}
	needed := float64(plan.TokensNeeded)*plan.BytesPerToken + float64(plan.StateBytes)*float64(2*p.slotsOfRequest())
	return plan, &TooSmallError{s.Context, alloc.Bytes(needed), budget, int(min(int64(s.Context), plan.Tokens))}
}

// check returns what is wrong with the settings, after the defaults are set.
func (s SGLang) check(specs []CacheSpec) error {
	_, known := sglangTypes[cmp.Or(s.KVType, "auto")]
	switch {
	case !known:
		return fmt.Errorf("KVType is %q: want auto, bfloat16, fp8_e4m3, fp8_e5m2 or mxfp8", s.KVType)
	case s.StateBuffer != "" && s.StateBuffer != "extra_buffer" && s.StateBuffer != "no_buffer":
		return fmt.Errorf("StateBuffer is %q: want extra_buffer or no_buffer", s.StateBuffer)
	case len(specs) == 0 || len(specs) > maxSpecs:
		return fmt.Errorf("%d layers keep something: want 1 to %d", len(specs), maxSpecs)
	case !slices.ContainsFunc(specs, func(spec CacheSpec) bool { return spec.Kind != Recurrent && spec.Kind != Cross }):
		return errors.New("no layer keeps keys and values: how SGLang divides memory then is not known")
	case s.Context < 1:
		return fmt.Errorf("a Context of %d: want 1 or more", s.Context)
	case min(s.Page, s.Tensor, s.StateSlots+1, s.ChunkedPrefill, s.MaxRequests+1, s.DraftLayers+1, s.DraftTokens+1) < 1 || s.MaxTokens < 0:
		return errors.New("a setting is negative: want 0 or more")
	case max(s.Page, s.Tensor, s.StateSlots, s.ChunkedPrefill, s.MaxRequests, s.DraftLayers, s.DraftTokens, s.Context) > maxSetting:
		return fmt.Errorf("a setting is above %d", maxSetting)
	case !(s.WindowRatio > 0 && s.WindowRatio <= 1) || !(s.StateRatio > 0 && s.StateRatio <= 1e3):
		return fmt.Errorf("WindowRatio is %v and StateRatio %v: want above 0, and at most 1 and 1000", s.WindowRatio, s.StateRatio)
	}
	// The rules for a spec on its own are those of vLLM: what a layer of the kind needs, and what tensor parallelism divides.
	check := planner{VLLM: VLLM{Tensor: s.Tensor}}
	for _, spec := range specs {
		if err := check.checkSpec(spec); err != nil {
			return fmt.Errorf("layer %d, %s: %w", spec.Layer, cmp.Or(spec.Kind, "of no kind"), err)
		}
		if spec.Kind == Recurrent && s.DraftTokens > 0 && s.StateSlots+s.MaxRequests == 0 {
			return errors.New("DraftTokens with recurrent states needs MaxRequests, as SGLang itself does")
		}
	}
	return nil
}

// sglangPlanner plans a model's pools, with all defaults set.
type sglangPlanner struct {
	SGLang
	specs []CacheSpec
}

func (p *sglangPlanner) plan(budget alloc.Bytes) (plan SGLangPlan) {
	full, windowed, window := p.perToken()
	plan.BytesPerToken = full + p.WindowRatio*windowed
	rest := budget
	if plan.StateBytes = p.stateBytes(); plan.StateBytes > 0 {
		plan.StateSlots, rest = p.states(plan.StateBytes, budget)
	}
	switch {
	case windowed > 0 && full == 0:
		plan.Tokens = p.pages(float64(rest) / windowed)
		plan.WindowTokens, plan.BytesPerToken = plan.Tokens, windowed
	case windowed > 0 && p.NoRadixCache && p.MaxRequests > 0:
		plan.WindowTokens = p.cappedWindow(window)
		plan.Tokens = p.pages((float64(rest) - float64(plan.WindowTokens)*windowed) / full)
	default:
		plan.Tokens = p.pages(float64(rest) / plan.BytesPerToken)
	}
	if p.MaxTokens > 0 {
		plan.Tokens = min(plan.Tokens, p.MaxTokens/int64(p.Page)*int64(p.Page))
	}
	if windowed > 0 && full > 0 && plan.WindowTokens == 0 {
		plan.WindowTokens = p.pages(float64(plan.Tokens) * p.WindowRatio)
	}
	p.requests(&plan, window)
	return plan
}

// pages rounds a number of tokens down to whole pages; there are none below 0.
func (p *sglangPlanner) pages(tokens float64) int64 {
	return max(0, int64(math.Floor(tokens))/int64(p.Page)*int64(p.Page))
}

// perToken returns the bytes of a token on one GPU in layers that keep all tokens, and in those that have a pool of their own
// for their window.
func (p *sglangPlanner) perToken() (full, windowed float64, window int) {
	own := !p.WholeWindows && slices.Contains(ownWindowPool, strings.TrimSuffix(p.ModelType, "_text"))
	layers := 0 // that keep all tokens
	for _, s := range p.specs {
		switch n := p.tokenBytes(s); {
		case s.Kind == Recurrent || s.Kind == Cross:
		case own && (s.Kind == Sliding || s.Kind == Chunked):
			windowed += n
			window = max(window, s.Window)
		default:
			full += n
			layers++
		}
	}
	if layers > 0 {
		full += math.Floor(full * float64(p.DraftLayers) / float64(layers))
	}
	return full, windowed, window
}

// tokenBytes returns the bytes of a token in a layer. A latent is whole on each GPU, and has beside it the key of an indexer in
// bytes, with a float32 for each 128 of them.
func (p *sglangPlanner) tokenBytes(s CacheSpec) float64 {
	kv := sglangTypes[cmp.Or(p.KVType, "auto")]
	bits := cmp.Or(kv.bits, int64(p.DType.Bits()))
	if s.Kind == Latent {
		n := int64(s.Latent) * bits / 8
		if s.Index > 0 {
			if bits == 8 {
				n = kvTypes["fp8_ds_mla"].row // as FlashMLA's kernel for an indexer reads it
			}
			n += int64(s.Index + s.Index/128*4)
		}
		return float64(n)
	}
	elements := int64(max(1, s.KVHeads/p.Tensor)) * int64(s.HeadSize+s.ValueSize)
	n := elements * bits / 8
	if kv.group > 0 {
		n += elements / kv.group
	}
	return float64(n)
}

// stateBytes returns the bytes of a slot: of all recurrent states of one sequence on one GPU (configs/mamba_utils.py,
// mamba_cache_per_req). The convolution keeps the inputs before the current one.
func (p *sglangPlanner) stateBytes() (n alloc.Bytes) {
	heads := planner{VLLM: VLLM{Tensor: p.Tensor}}
	for _, s := range p.specs {
		if s.Kind == Recurrent {
			state := cmp.Or(p.StateType, s.StateType, alloc.Float32)
			n += alloc.Bytes(int64(heads.channels(s)/p.Tensor) * int64(s.Kernel-1) * int64(p.DType.Bits()) / 8)
			n += alloc.Bytes(int64(s.StateHeads/p.Tensor) * int64(s.HeadState) * int64(state.Bits()) / 8)
		}
	}
	return n
}

// slotsOfRequest returns how many slots a request takes: its own and those that the prefix cache needs for it (_calculate_mamba_ratio).
func (p *sglangPlanner) slotsOfRequest() int {
	switch {
	case p.NoRadixCache:
		return 1
	case p.StateBuffer == "no_buffer":
		return 3
	case p.NoOverlap:
		return 4
	}
	return 5
}

// states returns the slots of recurrent states, and what they leave for keys and values (_handle_max_mamba_cache). One more slot is
// allocated than there are. While drafts are verified, their states are kept beside.
func (p *sglangPlanner) states(each, budget alloc.Bytes) (slots int, rest alloc.Bytes) {
	of, drafts := p.slotsOfRequest(), p.DraftTokens
	requests := max(1, p.MaxRequests)
	switch {
	case p.StateSlots > 0:
		slots = p.StateSlots
		requests = min(requests, slots/of)
	case p.NoRadixCache && p.MaxRequests > 0:
		slots = p.MaxRequests
	default:
		states := float64(budget) * p.StateRatio / (1 + p.StateRatio)
		beside := float64(each) * float64(1+drafts)
		slots = int(math.Floor((states - beside) / (float64(each) * (1 + float64(drafts)/float64(of)))))
		requests = min(requests, slots/of)
	}
	slots = max(0, slots)
	rest = budget - alloc.Bytes(slots+1)*each
	if drafts > 0 {
		rest -= alloc.Bytes(requests+1) * alloc.Bytes(drafts) * each
	}
	return slots, max(0, rest)
}

// cappedWindow returns the tokens of the pool for windows where it is sized by the number of requests (compute_swa_request_cap):
// what each may hold, two chunks of prompts, and a page.
func (p *sglangPlanner) cappedWindow(window int) int64 {
	each := window + evictionInterval*max(1, p.DraftTokens) + 2*p.Page
	chunks := 2
	if p.NoOverlap {
		chunks = 1
	}
	tokens := int64(each)*int64(p.MaxRequests) + int64(chunks)*int64(p.ChunkedPrefill) + int64(p.Page)
	return (tokens + int64(p.Page) - 1) / int64(p.Page) * int64(p.Page)
}

// requests sets how many requests may run (resolve_max_num_reqs), and how many of Context tokens fit.
func (p *sglangPlanner) requests(plan *SGLangPlan, window int) {
	most := min(max(int64(float64(plan.Tokens)/float64(p.Context)*512), 2048), 4096)
	if p.MaxRequests > 0 {
		most = int64(p.MaxRequests)
	}
	most = min(most, plan.Tokens/2)
	page := int64(p.Page)
	plan.TokensNeeded = (int64(p.Context) + page - 1) / page * page
	fit := plan.Tokens / plan.TokensNeeded
	if plan.WindowTokens > 0 {
		fit = min(fit, plan.WindowTokens/min(plan.TokensNeeded, int64(window+evictionInterval)+2*page))
	}
	if plan.StateBytes > 0 {
		most = min(most, int64(plan.StateSlots/p.slotsOfRequest()))
	}
	plan.MaxRequests, plan.Requests = int(most), int(min(fit, most))
}
