package estimating

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
)

// ofLayers lists the flags that only llama.cpp has. Giving one selects llama.cpp.
var ofLayers = []string{"gpu-layers", "kv-unified", "max-gpu-layers", "mmproj", "tensor-split"}

// llamaModel is a model that llama.cpp can serve.
type llamaModel interface {
	Served(estimate.KVConfig, llamacpp.Server) (estimate.Option, error)
}

// served returns the options for keys and values and, if llama.cpp is selected, its own.
func (o estimateOptions) served(cache estimate.KVConfig, m llamaModel, e *estimated) ([]estimate.Option, error) {
	e.Context = cache.ContextLength
	if !o.llamaCpp {
		return []estimate.Option{cache}, nil
	}
	projector, err := o.llama.projectorSize()
	if err != nil {
		return nil, err
	}
	by := llamacpp.Server{Batch: o.microBatch, FlashAttention: o.flashAttention, GPULayers: o.llama.layers, Split: o.llama.shares, Projector: projector}
	if by.GPULayers == 0 {
		by.GPULayers = -1
	}
	switch unified := o.llama.unified; {
	case unified == nil && cache.Batch > 1:
		e.notes = append(e.notes, "the figures hold with one cache for all sequences and with one for each: --kv-unified and --kv-unified=false say which")
	case unified != nil && *unified:
		by.Slots = "unified"
	case unified != nil:
		by.Slots = "apart"
	}
	if slices.Contains(kvTypes, cache.Values) && !o.flashAttention {
		e.notes = append(e.notes, "llama.cpp quantizes values only with --flash-attention")
	}
	served, err := m.Served(cache, by)
	switch {
	case err != nil:
		return nil, err
	case o.dtype == "":
		return []estimate.Option{served}, nil
	case o.llama.layers != allLayers || o.llama.maxLayers || o.llama.shares != nil:
		return nil, cli.UsageError("estimate: --gpu-layers, --max-gpu-layers and --tensor-split go by the types of the weights: leave --dtype out")
	}
	again, err := o.precision() // all weights have a type that the file does not have
	return append([]estimate.Option{served}, again...), err
}

// projectorSize returns the size of the file that --mmproj names, or 0.
func (o llamaOptions) projectorSize() (alloc.Bytes, error) {
	if o.projector == "" {
		return 0, nil
	}
	c, err := checkpoint.ReadFile(o.projector)
	if err != nil {
		return 0, err
	}
	return c.Projector()
}

// mostLayers returns the report with the most layers on the GPU that fit. If not even one layer
// fits, it is the report with one.
func (o estimateOptions) mostLayers(name string, options []estimate.Option, all *estimate.Report) (*estimate.Report, error) {
	report := all
	for n := all.ModelLayers; n > 0; n-- {
		var err error
		o.llama.layers = n
		if report, err = o.report(name, options, &estimated{}); err != nil || report.Fits(o.fits) {
			return report, err
		}
	}
	return report, nil
}

// searches returns how many flags are given that search for what fits.
func (o estimateOptions) searches() int {
	n := 0
	for _, asked := range []bool{o.maxBatch, o.maxContext, o.llama.maxLayers, o.training.fewest, o.quantize} {
		if asked {
			n++
		}
	}
	return n
}
