package estimating

import (
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

// ofLayers lists the flags that only llama.cpp has. Giving one selects llama.cpp.
var ofLayers = []string{"gpu-layers", "kv-unified", "max-gpu-layers", "mmproj", "tensor-split"}

// llamaModel has what llama.cpp's memory is computed from.
type llamaModel interface {
	ComputeBuffer(llamacpp.Server) (alloc.Bytes, error)
	LayerSizes() (llamacpp.Sizes, error)
}

// served returns the options for keys and values and, if llama.cpp is selected, its own.
func (o estimateOptions) served(cache estimate.KVConfig, m llamaModel, e *estimated) ([]estimate.Option, error) {
	e.Context = cache.ContextLength
	if !o.llamaCpp {
		return []estimate.Option{cache}, nil
	}
	llama := llamacpp.Server{Batch: o.microBatch, FlashAttention: o.flashAttention, GPUs: len(o.llama.shares)}
	apart := false
	if said := o.llama.unified; said != nil {
		llama.Unified, apart = *said, !*said
	}
	cells := llama.Cells(cache)
	if llama.ContextLength = cells.Batch * cells.ContextLength; apart {
		llama.ContextLength = cells.ContextLength
	}
	if o.llama.unified == nil && cells.Batch > 1 {
		e.notes = append(e.notes, "the figures hold with one cache for all sequences and with one for each: --kv-unified and --kv-unified=false say which")
	}
	options := []estimate.Option{cells}
	if slices.Contains(kvTypes, cache.Values) && !o.flashAttention {
		e.notes = append(e.notes, "llama.cpp quantizes values only with --flash-attention")
	}
	buffer, err := m.ComputeBuffer(llama)
	if err != nil {
		return nil, err
	}
	options = append(options, llamacpp.ComputedIn(buffer), llamacpp.GPULayers(o.llama.layers), llamacpp.SplitOver(o.llama.shares...))
	if o.dtype == "" { // otherwise all weights have a type that the file does not have
		sizes, err := m.LayerSizes()
		if err != nil {
			return nil, err
		}
		options = append(options, llamacpp.StoredIn(sizes))
	} else if o.llama.layers != allLayers || o.llama.maxLayers || o.llama.shares != nil {
		return nil, cli.UsageError("estimate: --gpu-layers, --max-gpu-layers and --tensor-split go by the types of the weights: leave --dtype out")
	}
	size, err := o.llama.projectorSize()
	return append(options, llamacpp.Projector(size)), err
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

// knownModel is a model of package zoo as llama.cpp would run it, converted to float16.
type knownModel struct{ zoo.Model }

func (m knownModel) LayerSizes() (llamacpp.Sizes, error) {
	return llamacpp.Converted(m.Layers)
}
