package serving

import (
	"cmp"
	"errors"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// SGLangStart says what SGLang starts on.
type SGLangStart struct {
	Memory   alloc.Bytes // of the GPU, of which nothing else is used
	Fraction float64     // --mem-fraction-static; 0 means the default, SGLangFraction
	Weights  alloc.Bytes // on this GPU
	// WeightsUpper is the most that they can be, where it is not sure what tensor parallelism divides; 0 means that they are exact.
	WeightsUpper alloc.Bytes
	Latent       bool // the model has Latent layers, whose CUDA graphs take more in the default of the Fraction
}

// SGLangBudget is how SGLang comes to the memory of its pools.
type SGLangBudget struct {
	Fraction float64 `json:"memory_fraction"`
	// Free is what is free before the model is loaded. The CUDA context and the libraries that are initialized by then take 0.3 to 1.2
	// GiB, with NCCL's buffers of tensor parallelism 0.5 to 2.5 GiB.
	Free    estimate.Value `json:"free_before_loading"`
	Static  estimate.Value `json:"static"` // the Fraction of Free, for weights and pools
	Weights estimate.Value `json:"weights"`
	// Loading is what loading leaves beside the weights: workspaces, and the allocator's unused parts of segments.
	Loading estimate.Value `json:"left_by_loading"`
	Pools   estimate.Value `json:"pools"` // what is left; less than 0 where the fraction is too small
}

// Start estimates how much memory SGLang leaves for its pools on each GPU. The error says which number makes no sense.
func (s SGLang) Start(start SGLangStart) (b SGLangBudget, err error) {
	switch {
	case start.Memory < alloc.GiB || start.Memory > maxBytes:
		return b, fmt.Errorf("start SGLang: a GPU of %v: want the memory of one", start.Memory)
	case !(start.Fraction >= 0 && start.Fraction <= 1):
		return b, fmt.Errorf("start SGLang: a Fraction of %v: want more than 0, and at most 1", start.Fraction)
	case min(start.Weights, start.WeightsUpper) < 0 || max(start.Weights, start.WeightsUpper) > maxBytes:
		return b, errors.New("start SGLang: a size is negative or too large")
	}
	b.Fraction = cmp.Or(start.Fraction, SGLangFraction(start.Memory, s.Tensor, start.Latent))
	taken := estimate.Value{Bytes: 600 * alloc.MiB, Lower: 300 * alloc.MiB, Upper: 1200 * alloc.MiB}
	if s.Tensor > 1 {
		taken = estimate.Value{Bytes: 1200 * alloc.MiB, Lower: 500 * alloc.MiB, Upper: 2500 * alloc.MiB}
	}
	of := func(n alloc.Bytes) alloc.Bytes { return alloc.Bytes(float64(n) * b.Fraction) }
	b.Free = estimate.Value{Bytes: start.Memory - taken.Bytes, Lower: start.Memory - taken.Upper, Upper: start.Memory - taken.Lower}
	b.Static = estimate.Value{Bytes: of(b.Free.Bytes), Lower: of(b.Free.Lower), Upper: of(b.Free.Upper)}
	b.Weights = estimate.Value{Bytes: start.Weights, Lower: start.Weights, Upper: max(start.Weights, start.WeightsUpper)}
	b.Loading = estimate.Value{Bytes: 100 * alloc.MiB, Upper: 512 * alloc.MiB}
	pools := func(free, weights, left alloc.Bytes) alloc.Bytes {
		return s.Budget(free, free-weights-left, b.Fraction)
	}
	b.Pools = estimate.Value{
		Bytes: pools(b.Free.Bytes, b.Weights.Bytes, b.Loading.Bytes),
		Lower: pools(b.Free.Lower, b.Weights.Upper, b.Loading.Upper),
		Upper: pools(b.Free.Upper, b.Weights.Lower, b.Loading.Lower),
	}
	return b, nil
}

// Fraction returns the least --mem-fraction-static that leaves so much for the pools, and its bounds: with the upper one they are
// large enough for sure, as far as activations and CUDA graphs have room beside them. It may be above 1. The errors are those of Start.
func (s SGLang) Fraction(start SGLangStart, pools alloc.Bytes) (fraction, lower, upper float64, err error) {
	b, err := s.Start(start)
	if err != nil {
		return 0, 0, 0, err
	}
	if s.ImagesAndSounds {
		pools += imageCache
	}
	of := func(weights, left, free alloc.Bytes) float64 {
		return ceilThousandth(float64(pools+weights+left) / float64(free))
	}
	return of(b.Weights.Bytes, b.Loading.Bytes, b.Free.Bytes), of(b.Weights.Lower, b.Loading.Lower, b.Free.Upper), of(b.Weights.Upper, b.Loading.Upper, b.Free.Lower), nil
}

// Longest returns the most tokens that a request can have, up to Context, so that this many run at once in pools of this memory on
// each GPU; 0 if not even requests of one token do. The errors are those of Plan for settings.
func (s SGLang) Longest(specs []CacheSpec, budget alloc.Bytes, requests int) (int, error) {
	if _, err := s.Plan(specs, budget); err != nil {
		if _, small := errors.AsType[*TooSmallError](err); !small {
			return 0, err
		}
	}
	return longest(s.Context, func(tokens int) bool {
		shorter := s
		shorter.Context = tokens
		plan, _ := shorter.Plan(specs, budget) // the settings are right
		return plan.Requests >= max(1, requests)
	}), nil
}

// PoolsFor returns the memory of each GPU that the pools need so that this many requests of Context tokens run at once. The
// errors are those of Plan for settings.
func (s SGLang) PoolsFor(specs []CacheSpec, requests int) (alloc.Bytes, error) {
	if requests < 1 || requests > maxSetting {
		return 0, fmt.Errorf("plan SGLang's pools: %d requests: want 1 to %d", requests, maxSetting)
	}
	enough := func(n alloc.Bytes) (bool, error) {
		plan, err := s.Plan(specs, n)
		if _, small := errors.AsType[*TooSmallError](err); err != nil && !small {
			return false, err
		}
		return plan.Requests >= requests, nil
	}
	low, high := alloc.Bytes(0), alloc.Bytes(alloc.GiB)
	for {
		fits, err := enough(high)
		if err != nil {
			return 0, err
		}
		if fits {
			break
		}
		if low, high = high, 2*high; high > maxBytes {
			return 0, fmt.Errorf("plan SGLang's pools: %d requests of %d tokens do not run at once, whatever the memory: MaxRequests, or what SGLang derives from the pool, is fewer", requests, s.Context)
		}
	}
	for high-low > alloc.MiB { // the pools grow by pages, so that a search is exact enough
		mid := low + (high-low)/2
		if fits, _ := enough(mid); fits { // the settings are right
			high = mid
		} else {
			low = mid
		}
	}
	return high, nil
}
