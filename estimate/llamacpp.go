package estimate

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// llamaCpp puts the compute buffer in place of PyTorch's activations.
func (r *Report) llamaCpp(cfg *setting.Config) {
	m := &r.Inference
	m.Input, m.Transient, m.band = 0, cfg.Compute, llamaCppBand
	more := r.place(cfg)
	m.Weights += cfg.Projector
	m.close("llama.cpp's compute buffer")
	m.band.Above += float64(more) / float64(max(1, m.Peak.Bytes))
	if r.ModelLayers > 0 { // then weights and cache are exact, and newer releases have smaller buffers
		m.band.Below = float64(cfg.Compute) / float64(max(1, m.Peak.Bytes))
	}
	context := contextOf(cfg)
	all := within(m.Peak.Bytes, m.band, 0)
	m.Footprint = Footprint{Allocated: all, Reserved: all, Context: context, Device: all.plus(context), Needed: all.plus(context)}
	r.Notes = append(r.Notes, placed(cfg, r))
	if cfg.Projector > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%v of the weights are those of the projector, whose own compute buffer is not counted: it grows with the images", cfg.Projector))
	}
}

// llamaCppBand is the band of weights, cache and compute buffer together. The first two are exact,
// except for an embedding that stays on the CPU.
var llamaCppBand = band{Below: 0.12, Above: 0.02}

// place leaves to the CPU what is not on the GPU. It returns how much more the GPU may hold: older
// releases have another block there in place of the head, and large batches copy the matrices
// of the CPU's layers to the GPU, one at a time.
func (r *Report) place(cfg *setting.Config) (more alloc.Bytes) {
	s, m := cfg.Sizes, &r.Inference
	if s == nil || cfg.Sharding.Devices() > 1 {
		return 0
	}
	n := s.Layers()
	if cfg.GpuLayers != nil {
		n = max(0, min(*cfg.GpuLayers, n))
	}
	r.GPULayers, r.ModelLayers = n, s.Layers()
	_, m.Host = s.OnGPU(n)
	most := setting.GpuPart{}
	left := m.Cache
	for _, p := range s.Split(n, cfg.Shares) {
		if cfg.Cache != nil && p.Blocks > 0 {
			p.Cache = cfg.Cache.Last(p.Blocks, len(s.Blocks))
			left -= min(left, p.Cache.All())
		}
		if p.Weights+p.Cache.All() > most.Weights+most.Cache.All() {
			most = p
		}
	}
	m.Weights = most.Weights
	m.keep(most.Cache)
	m.Host += left
	if n == s.Layers() {
		return 0
	}
	more = slices.Max(s.Blocks)
	if n == 0 {
		more = max(more, s.Output)
	}
	return more
}

// placed says where the layers are.
func placed(c *setting.Config, r *Report) string {
	switch {
	case r.ModelLayers == 0:
		return "estimated as llama.cpp runs it, with all layers on the GPU, and the token embedding too, which it may leave on the CPU"
	case len(c.Shares) > 1:
		return fmt.Sprintf("estimated as llama.cpp runs it, with %d of %d layers on %d GPUs: the figures are those of the GPU that needs most", r.GPULayers, r.ModelLayers, len(c.Shares))
	case r.GPULayers == r.ModelLayers:
		return fmt.Sprintf("estimated as llama.cpp runs it, with all %d layers on the GPU, and the token embedding in the memory of the CPU", r.ModelLayers)
	}
	return fmt.Sprintf("estimated as llama.cpp runs it, with %d of %d layers on the GPU, the output among them: releases before December 2025 put another block there instead of the output", r.GPULayers, r.ModelLayers)
}
