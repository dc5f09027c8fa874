package estimate

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// BestQuantization returns the widest of the Quantizations with which the model fits into the
// budget, and what Model reports of it. It reports false where none does. The options are those of
// Model; ComputedIn among them says that llama.cpp serves it. The error is that of Model; Train
// is one too, since quantized weights are not trained.
func BestQuantization(layers []tape.Layer, budget alloc.Bytes, opts ...tape.Option) (tape.Quantization, *Report, bool, error) {
	for _, q := range slices.Backward(tape.QuantizationsX) {
		stored, err := q.Stored(layers)
		if err != nil {
			return tape.Quantization{}, nil, false, err
		}
		sizes, err := q.Layers(layers)
		if err != nil {
			return tape.Quantization{}, nil, false, err
		}
		r, err := Model(layers, append(opts[:len(opts):len(opts)], tape.Stored(stored), tape.StoredIn(sizes))...)
		if err != nil {
			return tape.Quantization{}, nil, false, fmt.Errorf("%v: %w", q, err)
		}
		if r.training {
			return tape.Quantization{}, nil, false, fmt.Errorf("estimate %s: quantized weights are not trained: leave Train out", r.Name)
		}
		if r.Fits(budget) {
			return q, r, true, nil
		}
	}
	return tape.Quantization{}, nil, false, nil
}
