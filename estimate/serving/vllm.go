package serving

import (
	"cmp"
	"fmt"
	"math"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// VLLM says how vLLM serves a model, by the names of its own settings. The rules are those of release 0.33.0, and where other
// releases differ, those of the Version. Zero values are vLLM's defaults on the GPU of the Capability, but for NoPrefixCaching.
type VLLM struct {
	Version     string // such as "0.33.0"; "" means the newest whose rules are here, VLLMVersion
	MaxModelLen int    // the most tokens of a request, prompt and answer together: --max-model-len

	// MaxBatchedTokens is the most tokens of a step: --max-num-batched-tokens; 0 means 8192. VLLMBatch has the defaults of a GPU.
	MaxBatchedTokens int
	Block            int    // tokens of a block: --block-size; 0 means what the attention backend prefers
	Backend          string // --attention-backend, such as "FLASHMLA"; "" means the first that runs the model on this GPU
	Capability       string // compute capability of the GPU, such as "8.0"; "" means "9.0", Hopper's
	Tensor, Pipeline int    // --tensor-parallel-size, --pipeline-parallel-size; 0 means 1
	Layers           int    // layers of the model, which a pipeline divides; 0 means up to the last one that keeps something

	DType     alloc.DType // of the model, --dtype; 0 means bfloat16
	KVType    string      // --kv-cache-dtype: "auto", "fp8", "int8_per_token_head", "fp8_per_token_head", "nvfp4", "fp8_ds_mla" and others; "" means "auto"
	StateType alloc.DType // --mamba-ssm-cache-dtype; 0 means "auto": what the model wants

	NoPrefixCaching bool // --no-enable-prefix-caching; before 0.28 vLLM's default for models with Recurrent layers
	NoAsync         bool // --no-async-scheduling
	NoHybridManager bool // --disable-hybrid-kv-cache-manager: layers with a window keep all tokens
	BlockOutermost  bool // layouts BLHNC, BLNHC and BHLNC (VLLM_KV_CACHE_LAYOUT, and some connectors), which pack pages of several sizes into a block

	Draft        []CacheSpec // layers of the draft model or of the prediction of several tokens, which join the pool
	DraftTokens  int         // tokens that are drafted at once: num_speculative_tokens
	DraftModules int         // modules that draft one after another, where a model has several

	Blocks int // --num-gpu-blocks-override: replaces what the budget gives; 0 means none
}

// VLLMVersion is the newest release of vLLM whose rules are here.
const VLLMVersion = "0.33.0"

// VLLMGroup is a number of layers that share the numbers of their blocks.
type VLLMGroup struct {
	Kind   string      `json:"kind"`               // of the layers; "" where kinds or sizes differ
	Layers []int       `json:"layers"`             // by their numbers in the model, the draft's after them
	Block  int         `json:"block_tokens"`       // tokens of a block
	Page   alloc.Bytes `json:"page_bytes"`         // of a block in one layer, padding included; of all layers of the group together where they differ
	Blocks int         `json:"blocks_per_request"` // of a request of MaxModelLen tokens
}

// VLLMPlan is how vLLM divides the memory of the cache.
type VLLMPlan struct {
	Block            int         `json:"block_tokens"` // tokens of a block, before groups are made equal: cache_config.block_size
	Groups           []VLLMGroup `json:"groups"`
	BytesPerBlock    alloc.Bytes `json:"block_bytes"`        // on each GPU; of a pipeline on the GPU where it is largest
	Blocks           int         `json:"blocks"`             // in the pool, the null block included
	BlocksPerRequest int         `json:"blocks_per_request"` // of MaxModelLen tokens
	// Tokens is what vLLM prints as the size of the cache. It depends on MaxModelLen and MaxBatchedTokens, not on the memory
	// alone: it is what so many requests of that length hold, and not what the pool holds of short ones.
	Tokens      int64   `json:"tokens"`
	Concurrency float64 `json:"concurrency"` // requests of MaxModelLen tokens, as printed
	Requests    int     `json:"requests"`    // whole requests of MaxModelLen tokens that run at once: one block, the null block, holds nothing
}

// TooSmallError says that the memory does not hold one request of MaxModelLen tokens, which vLLM refuses to serve.
type TooSmallError struct {
	MaxModelLen int         `json:"max_model_len"`
	Needed      alloc.Bytes `json:"needed_bytes"`    // by that request
	Available   alloc.Bytes `json:"available_bytes"` // for requests
	Longest     int         `json:"longest"`         // tokens of the longest request that fits; 0 means not even one token
}

// Error says how long a request would fit.
func (e *TooSmallError) Error() string {
	if e.Available < 0 {
		return fmt.Sprintf("a request of %d tokens needs %v of cache, and %v are missing without any: give it more of the GPU's memory, or more GPUs", e.MaxModelLen, e.Needed, -e.Available)
	}
	text := fmt.Sprintf("a request of %d tokens needs %v of cache, and there is %v", e.MaxModelLen, e.Needed, e.Available)
	if e.Longest > 0 {
		text += fmt.Sprintf(": the longest that fits has %d tokens", e.Longest)
	}
	return text
}

// VLLMBatch returns vLLM's defaults of --max-num-batched-tokens and --max-num-seqs for its server on a GPU of this name and
// memory (engine/arg_utils.py, EngineArgs.get_batch_defaults). It runs at least 2496 tokens of the models of Gemma 4 whose images attend in
// both directions, 26B-A4B and 31B.
func VLLMBatch(gpu string, memory alloc.Bytes) (tokens, requests int) {
	switch {
	case memory >= 160*alloc.GiB:
		return 16384, 1024
	case memory >= 70*alloc.GiB && !strings.Contains(strings.ToLower(gpu), "a100"):
		return 8192, 1024
	}
	return 2048, 256
}

// Plan divides a budget, the memory of each GPU that is left for the cache, as vLLM does when it starts
// (v1/core/kv_cache_planning.py, get_kv_cache_configs). The error is a *TooSmallError if not even one request fits; the plan
// then has the groups and sizes, without blocks. Other errors say which setting makes no sense.
func (v VLLM) Plan(specs []CacheSpec, budget alloc.Bytes) (VLLMPlan, error) {
	p, err := v.planner(specs)
	if err != nil {
		return VLLMPlan{}, fmt.Errorf("plan vLLM's cache: %w", err)
	}
	plan := p.plan()
	if v.Blocks > 0 {
		budget = timesBlock(v.Blocks, plan.BytesPerBlock)
	}
	if v.MaxModelLen < 1 {
		return VLLMPlan{}, fmt.Errorf("plan vLLM's cache: MaxModelLen is %d: want 1 or more", v.MaxModelLen)
	}
	need := func(tokens int) alloc.Bytes { return timesBlock(p.blocks(tokens), plan.BytesPerBlock) }
	free := budget
	if !v.before("0.29") { // the null block is set aside since then
		free -= plan.BytesPerBlock
	}
	if need(v.MaxModelLen) > free {
		return plan, &TooSmallError{v.MaxModelLen, need(v.MaxModelLen), free, longest(v.MaxModelLen, func(tokens int) bool { return need(tokens) <= free })}
	}
	plan.Blocks = int(min(budget/plan.BytesPerBlock, math.MaxInt32))
	plan.Concurrency = float64(plan.Blocks) / float64(plan.BlocksPerRequest)
	plan.Tokens = int64(plan.Concurrency * float64(v.MaxModelLen))
	plan.Requests = (plan.Blocks - 1) / plan.BlocksPerRequest
	if v.before("0.21") {
		plan.Tokens = int64(plan.Blocks / len(p.groups) * p.smallest())
	}
	return plan, nil
}

// Budget returns the memory of each GPU that the cache needs so that this many requests of MaxModelLen tokens run at once. The
// error says which setting or spec makes no sense.
func (v VLLM) Budget(specs []CacheSpec, requests int) (alloc.Bytes, error) {
	p, err := v.planner(specs)
	if err == nil && (requests < 1 || v.MaxModelLen < 1) {
		err = fmt.Errorf("%d requests of %d tokens: want 1 or more of both", requests, v.MaxModelLen)
	}
	if err != nil {
		return 0, fmt.Errorf("plan vLLM's cache: %w", err)
	}
	plan := p.plan()
	blocks := int64(requests)*int64(plan.BlocksPerRequest) + 1
	if blocks > maxBytes/int64(plan.BytesPerBlock) {
		return 0, fmt.Errorf("plan vLLM's cache: %d requests take more than %v", requests, alloc.Bytes(maxBytes))
	}
	return alloc.Bytes(blocks) * plan.BytesPerBlock, nil
}

// Longest returns the most tokens that a request can have, up to MaxModelLen, so that this many run at once in the budget; 0 if
// not even one token fits. The error says which setting or spec makes no sense.
func (v VLLM) Longest(specs []CacheSpec, budget alloc.Bytes, requests int) (int, error) {
	p, err := v.planner(specs)
	if err != nil {
		return 0, fmt.Errorf("plan vLLM's cache: %w", err)
	}
	usable := int64(budget/p.plan().BytesPerBlock) - 1
	return longest(v.MaxModelLen, func(tokens int) bool { return int64(p.blocks(tokens)) <= usable/int64(max(1, requests)) }), nil
}

// longest returns the largest number from 1 to most that fits, or 0.
func longest(most int, fits func(int) bool) int {
	low, high := 0, most
	for low < high {
		if mid := low + (high-low+1)/2; fits(mid) {
			low = mid
		} else {
			high = mid - 1
		}
	}
	return low
}

// before reports whether the version is older than a release.
func (v VLLM) before(release string) bool {
	mine, other := numbers(cmp.Or(v.Version, VLLMVersion)), numbers(release)
	for i := range mine {
		if mine[i] != other[i] {
			return mine[i] < other[i]
		}
	}
	return false
}

// numbers returns the first three numbers of a version; what is no number counts as 0.
func numbers(version string) (n [3]int) {
	for i, part := range strings.SplitN(strings.TrimPrefix(version, "v"), ".", 4) {
		if i < len(n) {
			digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
			n[i], _ = strconv.Atoi(digits)
		}
	}
	return n
}

// timesBlock returns the memory of blocks, at most maxBytes.
func timesBlock(blocks int, each alloc.Bytes) alloc.Bytes {
	if int64(blocks) > maxBytes/int64(each) {
		return maxBytes
	}
	return alloc.Bytes(blocks) * each
}

// maxBytes bounds sizes, so that no sum overflows.
const maxBytes = 1 << 56
