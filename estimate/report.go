package estimate

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Report is what Model found. Inference, Training and the rows are about one
// device, the one that needs most; the totals above them are about the whole
// model. Nothing changes a report: several goroutines may read it.
type Report struct {
	Name   string        `json:"name"`
	Inputs []alloc.Shape `json:"inputs,omitempty"`
	// HasInput is false where no input was given: then the shapes,
	// activations and peaks are unknown and zero.
	HasInput bool        `json:"has_input"`
	Output   alloc.Shape `json:"output,omitempty"`

	Params    tape.Amount `json:"params"`          // parameters, each once
	Trained   tape.Amount `json:"trained"`         // those of them that are not frozen
	Buffers   tape.Amount `json:"buffers"`         // part of the model, not trained
	Gradients alloc.Bytes `json:"gradients_bytes"` // of all parameters of the device
	FLOPs     int64       `json:"flops"`           // of a forward pass, two for a multiplication and addition

	// Activations is what the layers without parts return, each output that
	// has memory of its own once.
	Activations tape.Amount `json:"activations"`
	// Kept is what autograd keeps for the backward pass, each storage once:
	// activations, what operations keep of their own, and inputs, but no
	// parameters and buffers. It is what saved-tensor hooks see.
	Kept alloc.Bytes `json:"kept_bytes"`
	// KeptBand is how far Kept may be off.
	KeptBand tape.Band `json:"kept_band"`

	// GPULayers of the ModelLayers are on the GPU where llama.cpp serves the model: see StoredIn.
	GPULayers   int `json:"gpu_layers,omitempty"`
	ModelLayers int `json:"model_layers,omitempty"`

	Inference Memory `json:"inference"`
	Training  Memory `json:"training"`

	Layers []tape.Row `json:"layers"`
	Notes  []string   `json:"notes,omitempty"` // what is not in the figures

	training      bool
	intermediates alloc.Bytes
}

// Memory is what is alive on a device at the moment when it is most, by part; the
// parts add up to Peak. Weights, buffers, optimizer, input and cache are counted
// from shapes. When which activation and gradient is alive is modelled, and so
// Peak has a band.
type Memory struct {
	Weights   alloc.Bytes `json:"weights_bytes"`
	Buffers   alloc.Bytes `json:"buffers_bytes"`
	Master    alloc.Bytes `json:"master_bytes"`    // float32 copy of the weights
	Optimizer alloc.Bytes `json:"optimizer_bytes"` // states
	Input     alloc.Bytes `json:"input_bytes"`
	Cache     alloc.Bytes `json:"cache_bytes"`     // keys and values
	Buckets   alloc.Bytes `json:"buckets_bytes"`   // copy of the gradients that replicas send each other
	Gradients alloc.Bytes `json:"gradients_bytes"` // of parameters
	Saved     alloc.Bytes `json:"saved_bytes"`     // kept for the backward pass, inputs not counted again
	Transient alloc.Bytes `json:"transient_bytes"` // the rest: activations and their gradients, workspace
	// Host is what is held in the memory of the CPU instead, which Peak does not have: see Offload.
	Host alloc.Bytes `json:"host_bytes"`

	Peak   alloc.Bytes `json:"peak_bytes"`
	PeakAt string      `json:"peak_at"` // such as "backward of layer1.0.conv1"
	Band   tape.Band   `json:"band"`    // of Peak

	// Footprint is what the process takes of the device for this; zero on the CPU and without
	// an input.
	Footprint Footprint `json:"footprint"`
}

// Footprint is what a process takes of its device at the most, as PyTorch's caching
// allocator makes it of the tensors. A training run is taken to be two steps long: the first leaves
// blocks behind that the second cannot use.
//
// Allocated is what torch.cuda.max_memory_allocated returns, Reserved is
// max_memory_reserved, and Device is what nvidia-smi shows of a process on a device
// that is large enough. On one that is not, the allocator gives cached memory
// back: then Needed is enough.
type Footprint struct {
	Allocated tape.Figure `json:"allocated"` // blocks of tensors and of cuBLAS's workspaces
	Reserved  tape.Figure `json:"reserved"`  // segments: the blocks and what is cached between them
	Context   tape.Figure `json:"context"`   // CUDA's context and the kernels in it, outside the allocator
	Device    tape.Figure `json:"device"`    // Reserved and Context
	Needed    tape.Figure `json:"needed"`    // the smallest device on which it runs, with Context
}

// plus is the sum of two figures.
func figurePlus(f tape.Figure, g tape.Figure) tape.Figure {
	return tape.Figure{Bytes: f.Bytes + g.Bytes, Lower: f.Lower + g.Lower, Upper: f.Upper + g.Upper}
}

// within is a figure with a band, and more that may come to its upper end.
func within(n alloc.Bytes, b tape.Band, more alloc.Bytes) tape.Figure {
	return tape.Figure{
		Bytes: n,
		Lower: alloc.Bytes(float64(n) * (1 - b.Below)),
		Upper: alloc.Bytes(float64(n)*(1+b.Above)) + more,
	}
}
