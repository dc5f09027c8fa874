package estimate

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// Memory returns what the options asked about: Training if there was a Train option, otherwise
// Inference.
func (r *Report) Memory() Memory {
	if r.training {
		return r.Training
	}
	return r.Inference
}

// Fits reports whether the model fits into the budget of a device: the upper bound of what it
// needs, with its context (Footprint.Needed), or on the CPU the upper bound of Peak, is at most the
// budget. Without an input, only the weights and what training keeps for them are compared, so the
// model may need more.
func (r *Report) Fits(budget alloc.Bytes) bool {
	return r.Needs() <= budget
}

// Needs returns the memory that a device must have: the upper bound that Fits compares.
func (r *Report) Needs() alloc.Bytes {
	m := r.Memory()
	return max(m.Peak.Upper, m.Footprint.Needed.Upper)
}

// maxBatch is the largest batch that MaxBatch tries, and context length that MaxContextLength does.
const maxBatch = 1 << 30

// MaxBatch returns the largest batch with which the model fits into the budget, at most 1 << 30; 0
// if not even one sample fits. The batch is dimension 0 of each input and of the key/value cache;
// its value in the options is ignored. Whether it fits is decided as in Report.Fits, for training
// if there is a Train option, otherwise for inference. The errors are those of Model.
func MaxBatch(layers []nn.Layer, budget alloc.Bytes, opts ...Option) (int, error) {
	return largest(layers, budget, opts, withBatch, 1)
}

// MaxContextLength returns the largest context length, in tokens, with which the model fits into
// the budget, at most 1 << 30; 0 if not even the input's own tokens fit. It is the length of the
// key/value cache that a KVConfig describes. The input, a piece of a prompt, stays as it is. The
// errors are those of Model; it is also an error to call it without a KVConfig, or with Train.
func MaxContextLength(layers []nn.Layer, budget alloc.Bytes, opts ...Option) (int, error) {
	cfg, err := newConfig(opts)
	switch {
	case err != nil:
		return 0, err
	case cfg.Cache == nil || cfg.Training:
		return 0, fmt.Errorf("estimate %s: the largest context length needs a KVConfig and no training", cfg.Name)
	}
	_, length := cfg.Tokens()
	return largest(layers, budget, opts, withContext, max(1, length))
}

// largest returns the largest number, counted from the least on, with which the model fits. of
// gives the option for a number.
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
	return option(func(c *setting.Config) {
		c.Searches = true
		cache := *c.Cache
		cache.ContextLength = n
		c.Cache = &cache
	})
}

// withBatch replaces dimension 0 of every input.
func withBatch(n int) Option {
	return option(func(c *setting.Config) {
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
	})
}
