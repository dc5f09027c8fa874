package llamacpp

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// BestQuantization returns the widest of the Quantizations with which the model fits into the
// budget, and what Model reports of it. It reports false where none does. The options are those of
// Model; ComputedIn among them says that llama.cpp serves it. The error is that of Model; Train
// is one too, since quantized weights are not trained.
func BestQuantization(layers []nn.Layer, budget alloc.Bytes, opts ...estimate.Option) (Quantization, *estimate.Report, bool, error) {
	if cfg, err := setting.New(estimate.All(opts...)); err == nil && cfg.Training {
		return Quantization{}, nil, false, fmt.Errorf("estimate %s: quantized weights are not trained: leave Train out", cfg.Name)
	}
	for _, q := range slices.Backward(mixtures) {
		stored, err := q.Stored(layers)
		if err != nil {
			return Quantization{}, nil, false, err
		}
		sizes, err := q.Layers(layers)
		if err != nil {
			return Quantization{}, nil, false, err
		}
		r, err := estimate.Model(layers, append(opts[:len(opts):len(opts)], estimate.Stored(stored), StoredIn(sizes))...)
		if err != nil {
			return Quantization{}, nil, false, fmt.Errorf("%v: %w", q, err)
		}
		if r.Fits(budget) {
			return q, r, true, nil
		}
	}
	return Quantization{}, nil, false, nil
}
