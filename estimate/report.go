package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// Report is what Model found. Inference, Training and the rows are about one
// device, that which needs most; the totals above them are about the whole
// model. Nothing changes a report: several goroutines may read it.
type Report struct {
	Name   string        `json:"name"`
	Inputs []alloc.Shape `json:"inputs,omitempty"`
	// HasInput is false where no Input was given: then the shapes,
	// activations and peaks are unknown and zero.
	HasInput bool        `json:"has_input"`
	Output   alloc.Shape `json:"output,omitempty"`

	Params    Amount      `json:"params"`          // trained parameters, each once
	Buffers   Amount      `json:"buffers"`         // part of the model, not trained
	Gradients alloc.Bytes `json:"gradients_bytes"` // of all parameters of the device
	FLOPs     int64       `json:"flops"`           // of a forward pass, two for a multiplication and addition

	// Activations is what the layers without parts return, each output that
	// has memory of its own once.
	Activations Amount `json:"activations"`
	// Kept is what autograd keeps for the backward pass, each storage once:
	// activations, what operations keep of their own, and inputs, but no
	// parameters and buffers. It is what saved-tensor hooks see.
	Kept alloc.Bytes `json:"kept_bytes"`
	// KeptBand is how far Kept may be off.
	KeptBand Band `json:"kept_band"`

	Inference Memory `json:"inference"`
	Training  Memory `json:"training"`

	Layers []Row    `json:"layers"`
	Notes  []string `json:"notes,omitempty"` // what is not in the figures

	training      bool
	intermediates alloc.Bytes
}

// Amount is a number of elements and the memory they take.
type Amount struct {
	Count int64       `json:"count"`
	Bytes alloc.Bytes `json:"bytes"`
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
	Gradients alloc.Bytes `json:"gradients_bytes"` // of parameters
	Saved     alloc.Bytes `json:"saved_bytes"`     // kept for the backward pass, inputs not counted again
	Transient alloc.Bytes `json:"transient_bytes"` // the rest: activations and their gradients, workspace

	Peak   alloc.Bytes `json:"peak_bytes"`
	PeakAt string      `json:"peak_at"` // such as "backward of layer1.0.conv1"
	Band   Band        `json:"band"`    // of Peak
}

// Band is how far a figure may be off, as fractions of it: the truth is
// expected between figure x (1 - Below) and figure x (1 + Above).
type Band struct {
	Below float64 `json:"below"`
	Above float64 `json:"above"`
}

// Row is one call of a layer.
type Row struct {
	Path   string      `json:"path"`
	Kind   string      `json:"kind"`
	Depth  int         `json:"depth"` // 1 for the layers of the list
	Leaf   bool        `json:"leaf"`  // it has no parts
	Input  alloc.Shape `json:"input,omitempty"`
	Output alloc.Shape `json:"output,omitempty"`
	Params int64       `json:"params"` // its own, not its parts'
	FLOPs  int64       `json:"flops"`  // its own
	// Allocated is what a forward pass in training takes from the layer's
	// beginning to its end, its parts' included, freed meanwhile or not:
	// outputs that have memory of their own and what operations keep, but no
	// workspace. tracker.ProfileRow.Allocated is that, measured.
	Allocated alloc.Bytes `json:"allocated_bytes"`
	// Kept is the memory that the layer is the first to keep for the backward
	// pass.
	Kept alloc.Bytes `json:"kept_bytes"`

	inPlace bool
	module  int // of the declaration; -1 where it had a row before
	owner   int // module whose parameters it reads: another's where it is Shared
}
