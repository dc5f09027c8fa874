package serving

import (
	"cmp"
	"errors"
	"fmt"
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// VLLMStart says what vLLM starts on, and what it needs beside its cache.
type VLLMStart struct {
	Memory   alloc.Bytes // of the GPU, as PyTorch has it
	Fraction float64     // --gpu-memory-utilization; 0 means the default: 0.92, and 0.9 before 0.20
	Weights  alloc.Bytes // on this GPU
	// WeightsUpper is the most that they can be, where it is not sure what tensor parallelism divides, or
	// how kernels pad quantized weights; 0 means that they are exact.
	WeightsUpper alloc.Bytes
	// Step is what a step of MaxBatchedTokens tokens takes beside weights and cache: so many times a model's StepWidth, in its type.
	Step     alloc.Bytes
	Vocab    int
	Requests int  // the most that run at once: --max-num-seqs; 0 means 256
	Eager    bool // --enforce-eager: no CUDA graphs
}

// VLLMBudget is how vLLM comes to the memory of its cache (v1/worker/gpu_worker.py, Worker.determine_available_memory). What it
// measures on the GPU is estimated here, with bounds.
type VLLMBudget struct {
	Requested alloc.Bytes    `json:"requested_bytes"` // the fraction of the GPU's memory, rounded up
	Weights   estimate.Value `json:"weights"`
	// Profile is the peak of a step without cache: of MaxBatchedTokens tokens through the model, or of sampling for all requests
	// at once. vLLM compiles the model, and kernels have workspaces that are not known: the step takes 0.7 to 1.5 times Step.
	// Sampling takes 14 bytes of each logit (the logits, a float32 copy, probabilities and random numbers), at least 6 (the first
	// two) and at most 20 (another copy, and its type). Before 0.17 the logits are sorted, which takes 30 bytes, from 14 to 45.
	Profile estimate.Value `json:"profile_run"`
	// Outside is what grows outside of PyTorch meanwhile: kernels that are loaded, libraries' workspaces, and NCCL's buffers of
	// tensor parallelism. Start-up logs leave 0.3 to 0.5 GiB for it on one GPU.
	Outside estimate.Value `json:"outside_pytorch"`
	// Graphs is vLLM's own estimate of CUDA graphs, which it measures. Published start-up logs of 0.20 to 0.29 have 0.14 GiB
	// (aivrar/vllm-windows-build#4), 0.17 (noonghunna/club-3090#127), 0.36 (gpustack/runner#251), 0.44 (vllm-project/vllm#48214)
	// and 2.43 (MiaAI-Lab/GLM-5.3-Flash-EXL3-2x-DGX-Sparks#25); vllm-project/vllm#53013 has 118.65, which is taken for a fault.
	// Before 0.20 it is no part of the budget.
	Graphs estimate.Value `json:"cuda_graphs"`
	Cache  estimate.Value `json:"cache"` // what is left; less than 0 where the fraction is too small
}

// Start estimates how much memory vLLM leaves for its cache on each GPU. The error says which number makes no sense.
func (v VLLM) Start(s VLLMStart) (VLLMBudget, error) {
	s.Fraction = cmp.Or(s.Fraction, v.DefaultFraction())
	switch {
	case s.Memory < 1 || s.Memory > maxBytes:
		return VLLMBudget{}, fmt.Errorf("start vLLM: a GPU of %v: want the memory of one", s.Memory)
	case !(s.Fraction > 0 && s.Fraction <= 1):
		return VLLMBudget{}, fmt.Errorf("start vLLM: a Fraction of %v: want more than 0, and at most 1", s.Fraction)
	case min(s.Weights, s.WeightsUpper, s.Step) < 0 || max(s.Weights, s.WeightsUpper, s.Step) > maxBytes || min(s.Vocab, s.Requests) < 0 || max(s.Vocab, s.Requests) > maxSetting:
		return VLLMBudget{}, errors.New("start vLLM: a size is negative or too large")
	}
	b := VLLMBudget{Requested: alloc.Bytes(math.Ceil(float64(s.Memory) * s.Fraction)), Profile: v.profile(s)}
	b.Weights = estimate.Value{Bytes: s.Weights, Lower: s.Weights, Upper: max(s.Weights, s.WeightsUpper)}
	b.Outside = estimate.Value{Bytes: 300 * alloc.MiB, Lower: 0, Upper: 700 * alloc.MiB}
	if v.Tensor > 1 || v.Pipeline > 1 {
		b.Outside = estimate.Value{Bytes: 600 * alloc.MiB, Lower: 100 * alloc.MiB, Upper: 1536 * alloc.MiB}
	}
	if !s.Eager && !v.before("0.20") {
		b.Graphs = estimate.Value{Bytes: alloc.GiB / 2, Lower: alloc.GiB / 10, Upper: 5 * alloc.GiB / 2}
	}
	needs := b.needs()
	b.Cache = estimate.Value{Bytes: b.Requested - needs.Bytes, Lower: b.Requested - needs.Upper, Upper: b.Requested - needs.Lower}
	return b, nil
}

// Fraction returns the least --gpu-memory-utilization that leaves so much for the cache, and its bounds: with the upper one the
// cache is large enough for sure. It may be above 1, which no GPU has. The errors are those of Start.
func (v VLLM) Fraction(s VLLMStart, cache alloc.Bytes) (fraction, lower, upper float64, err error) {
	b, err := v.Start(s)
	if err != nil {
		return 0, 0, 0, err
	}
	of := func(needs alloc.Bytes) float64 { return ceilThousandth(float64(needs+cache) / float64(s.Memory)) }
	needs := b.needs()
	return of(needs.Bytes), of(needs.Lower), of(needs.Upper), nil
}

// DefaultFraction returns the default of --gpu-memory-utilization (config/cache.py).
func (v VLLM) DefaultFraction() float64 {
	if v.before("0.20") {
		return 0.9
	}
	return 0.92
}

// needs returns what is taken from the requested memory.
func (b VLLMBudget) needs() estimate.Value {
	var sum estimate.Value
	for _, part := range []estimate.Value{b.Weights, b.Profile, b.Outside, b.Graphs} {
		sum.Bytes, sum.Lower, sum.Upper = sum.Bytes+part.Bytes, sum.Lower+part.Lower, sum.Upper+part.Upper
	}
	return sum
}

// profile returns the peak of the profile run (v1/worker/gpu/model_runner.py, profile_run and _dummy_sampler_run).
func (v VLLM) profile(s VLLMStart) estimate.Value {
	logits := alloc.Bytes(min(cmp.Or(s.Requests, 256), cmp.Or(v.MaxBatchedTokens, 8192))) * alloc.Bytes(s.Vocab)
	usual, least, most := 14*logits, 6*logits, 20*logits
	if v.before("0.17") { // v1/sample/ops/topk_topp_sampler.py, apply_top_k_top_p
		usual, least, most = 30*logits, 14*logits, 45*logits
	}
	return estimate.Value{Bytes: max(s.Step, usual), Lower: max(s.Step*7/10, least), Upper: max(s.Step*3/2, most)}
}

// ceilThousandth rounds a fraction up as people write it.
func ceilThousandth(f float64) float64 { return math.Ceil(f*1000) / 1000 }
