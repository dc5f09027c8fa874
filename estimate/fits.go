package estimate

import (
	"fmt"
	"math"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// Peak is the peak that the options asked about: of training if there was a Train
// option, else of inference.
func (r *Report) Peak() alloc.Bytes { return r.memory().Peak }

func (r *Report) memory() Memory {
	if r.training {
		return r.Training
	}
	return r.Inference
}

// Fits reports whether the model runs on a device of the budget, by the upper bound of
// what it needs there with its context, Footprint.Needed; on the CPU by that of
// Peak. Without an input that is a condition and no promise.
func (r *Report) Fits(budget alloc.Bytes) bool {
	return r.Needs() <= budget
}

// Needs is the upper bound that Fits asks about: the least that a device must have.
func (r *Report) Needs() alloc.Bytes {
	m := r.memory()
	return max(m.Upper(), m.Footprint.Needed.Upper)
}

// Footprint is what the process takes of the device for what the options asked about.
func (r *Report) Footprint() Footprint { return r.memory().Footprint }

// Upper is the most that is promised of the tensors: Peak at the upper end of its band or, on CUDA, the upper bound of
// what torch.cuda.max_memory_allocated counts, with the blocks around them and cuBLAS's workspaces.
func (m Memory) Upper() alloc.Bytes {
	return max(m.Peak+alloc.Bytes(math.Ceil(float64(m.Peak)*m.Band.Above)), m.Footprint.Allocated.Upper)
}

// maxBatch is the largest batch that MaxBatch tries, and context length that MaxContextLength does.
const maxBatch = 1 << 30

// MaxBatch returns the largest batch with which the model fits into the budget, at most 1 <<
// 30, and 0 if not even one sample fits. The batch is dimension 0 of each input, and that of
// the key/value cache; what the options give for it does not matter. What fits is what
// Report.Fits says: training if there is a Train option, else inference. The errors are those
// of Model.
func MaxBatch(layers []nn.Layer, budget alloc.Bytes, opts ...Option) (int, error) {
	return largest(layers, budget, opts, withBatch, 1)
}

// MaxContextLength returns the largest context length, in tokens, of the key/value cache that WithKVCache
// describes with which the model fits into the budget, at most 1 << 30, and 0 if the input's own tokens do not. The input, a piece of a prompt, stays as it is. The errors are those of Model; without
// WithKVCache, or with Train, there is one too.
func MaxContextLength(layers []nn.Layer, budget alloc.Bytes, opts ...Option) (int, error) {
	cfg, err := newConfig(opts)
	switch {
	case err != nil:
		return 0, err
	case cfg.Cache == nil || cfg.Training:
		return 0, fmt.Errorf("estimate %s: the largest context length needs WithKVCache and no training", cfg.Name)
	}
	_, length := cfg.Tokens()
	return largest(layers, budget, opts, withContext, max(1, length))
}

// largest is the largest number with which the model fits, from the least on, given the option for a number.
func largest(layers []nn.Layer, budget alloc.Bytes, opts []Option, of func(int) Option, least int) (int, error) {
	fits := func(n int) (bool, error) {
		r, err := Model(layers, append(opts[:len(opts):len(opts)], of(n))...)
		if err != nil {
			return false, err
		}
		return r.Fits(budget), nil
	}
	if ok, err := fits(least); err != nil || !ok {
		return 0, err
	}
	// A number whose sizes overflow is an error, and does not fit either.
	low, high := least, 2*min(least, maxBatch/2) // low fits
	for low < maxBatch {
		if ok, err := fits(high); err != nil || !ok {
			break
		}
		low, high = high, 2*min(high, maxBatch/2)
	}
	for high-low > 1 {
		mid := low + (high-low)/2
		if ok, err := fits(mid); err == nil && ok {
			low = mid
		} else {
			high = mid
		}
	}
	return low, nil
}

// withContext sets the context length of the cache.
func withContext(n int) Option {
	return func(c *setting.Config) {
		c.Searches = true
		cache := *c.Cache
		cache.ContextLength = n
		c.Cache = &cache
	}
}

// withBatch replaces dimension 0 of every input.
func withBatch(n int) Option {
	return func(c *setting.Config) {
		c.NeedsBatch, c.Searches = true, true
		for i := range c.Inputs {
			if shape := slices.Clone(c.Inputs[i].Shape); len(shape) > 0 {
				shape[0] = n
				c.Inputs[i].Shape = shape
			}
		}
		if c.Cache != nil {
			cache := *c.Cache
			cache.Batch = n
			c.Cache = &cache
		}
	}
}
