package estimate

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// llamaCpp puts the compute buffer in place of PyTorch's activations.
func (r *Report) llamaCpp(cfg *setting.Config) {
	m := &r.Inference
	m.Input, m.Transient, m.Band = 0, cfg.Compute, llamaCppBand
	more := r.place(cfg)
	m.Weights += cfg.Projector
	m.close("llama.cpp's compute buffer")
	m.Band.Above += float64(more) / float64(max(1, m.Peak))
	if r.ModelLayers > 0 { // then weights and cache are exact, and newer releases have smaller buffers
		m.Band.Below = float64(cfg.Compute) / float64(max(1, m.Peak))
	}
	context := contextOf(cfg)
	all := within(m.Peak, m.Band, 0)
	m.Footprint = Footprint{Allocated: all, Reserved: all, Context: context, Device: all.plus(context), Needed: all.plus(context)}
	r.Notes = append(r.Notes, placed(cfg, r))
	if cfg.Projector > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("the weights have %v of a projector, whose own compute buffer is not counted: it grows with the images", cfg.Projector))
	}
}

// llamaCppBand is that of weights, cache and compute buffer together: the first two are exact, but
// for an embedding that stays on the CPU.
var llamaCppBand = Band{Below: 0.12, Above: 0.02}
