package estimate

import (
	"math"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
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

// Upper is Peak at the upper end of its band.
func (m Memory) Upper() alloc.Bytes {
	return m.Peak + alloc.Bytes(math.Ceil(float64(m.Peak)*m.Band.Above))
}

// Intermediates is Pytorch-Memory-Utils' estimate of the activations: the bytes of
// what every layer without parts returns, except of a ReLU in place, each
// output counted anew. It takes no account of what else works in place,
// of views, or of when a tensor dies: Inference and Training do.
func (r *Report) Intermediates() alloc.Bytes { return r.intermediates }

// IntermediatesWithBackward is Pytorch-Memory-Utils' estimate for training: twice
// Intermediates.
func (r *Report) IntermediatesWithBackward() alloc.Bytes {
	return alloc.Bytes(setting.AddSat(int64(r.intermediates), int64(r.intermediates)))
}
