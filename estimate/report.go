package estimate

import (
	"encoding/json"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/history"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Report is the result of Model. Inference, Training and the rows are those of one device, the one
// that needs most; the totals above them are those of the whole model. Nothing changes a report:
// several goroutines may read it.
type Report struct {
	Name string `json:"name"`
	// Inputs is empty where no input was given: then the shapes, activations and peaks are unknown and zero.
	Inputs []alloc.Shape `json:"inputs,omitempty"`
	Output alloc.Shape   `json:"output,omitempty"`

	Params    Amount      `json:"params"`          // parameters, each once
	Trained   Amount      `json:"trained"`         // the part of Params that is not frozen
	Buffers   Amount      `json:"buffers"`         // part of the model, not trained
	Gradients alloc.Bytes `json:"gradients_bytes"` // of all parameters of the device
	FLOPs     int64       `json:"flops"`           // of a forward pass, two for a multiplication and addition

	// Retained is what autograd saves for the backward pass, each storage once: activations, tensors
	// that operations keep for themselves, and inputs, but no parameters and buffers. It is what
	// saved-tensor hooks see.
	Retained alloc.Bytes `json:"retained_bytes"`

	// GPULayers of the ModelLayers are on the GPU where llama.cpp serves the model: see package llamacpp.
	GPULayers   int `json:"gpu_layers,omitempty"`
	ModelLayers int `json:"model_layers,omitempty"`

	Inference Memory `json:"inference"`
	Training  Memory `json:"training"`

	Layers []Row    `json:"layers"`
	Notes  []string `json:"notes,omitempty"` // what the estimate leaves out
	// NotRead are the keys of the model's config.json that may bear on sizes and that the estimate does not take into
	// account, such as "vision_config.head_dim"; the upper bounds are higher for them. See checkpoint.File.NotRead.
	NotRead []string `json:"not_read,omitempty"`
	// Missing are parts that run beside the layers and are not counted, such as "the autoencoder". No amount has an upper
	// bound then.
	Missing []string `json:"missing,omitempty"`

	training bool
	doubted  []float64 // of each part of which something was not read, its share of the weights
	// activations is the size of the outputs of all layers without parts. An output with memory of
	// its own counts once.
	activations    Amount
	retainedBounds errorBounds // how far Retained may be off
	// intermediates is Pytorch-Memory-Utils' estimate of the activations: the bytes of what every layer without
	// parts returns, except of a ReLU in place, each output counted anew. It takes no account of what else
	// works in place, of views, or of when a tensor dies: Inference and Training do.
	intermediates alloc.Bytes
}

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
// budget. It is false if there is no upper bound. Without an input, only the weights and what training keeps for them are
// compared, so the model may need more.
func (r *Report) Fits(budget alloc.Bytes) bool {
	return r.Needs() <= budget
}

// Needs returns the memory that a device must have: the upper bound that Fits compares. It is Unbounded if something is
// Missing.
func (r *Report) Needs() alloc.Bytes {
	m := r.Memory()
	return max(m.Peak.Upper, m.Footprint.Needed.Upper)
}

// contextReason says what decides how large the CUDA context is.
func contextReason(c *setting.Config, context Value) string {
	reason := fmt.Sprintf("it takes %v to %v", context.Lower, context.Upper)
	switch gpu, loading := c.Machine.GPU == "", c.Machine.Loading == ""; {
	case gpu && loading:
		reason += ", by the GPU and by when CUDA loads its kernels: Machine.GPU and Machine.Loading say which"
	case gpu:
		reason += ", by the GPU: Machine.GPU says which"
	case loading:
		reason += ", by when CUDA loads its kernels: Machine.Loading says which"
	}
	return reason
}

// Amount is a number of elements and the memory they take.
type Amount struct {
	Count int64       `json:"count"`
	Bytes alloc.Bytes `json:"bytes"`
}

// Memory is what is live on a device at the moment of the peak, by part; the parts add up to Peak.
// Weights, buffers, optimizer, input and cache are counted from shapes. How long each activation
// and gradient lives is modelled, so Peak has bounds.
type Memory struct {
	Weights   alloc.Bytes `json:"weights_bytes"`
	Buffers   alloc.Bytes `json:"buffers_bytes"`
	Master    alloc.Bytes `json:"master_bytes"`    // float32 copy of the weights
	Optimizer alloc.Bytes `json:"optimizer_bytes"` // states
	Input     alloc.Bytes `json:"input_bytes"`
	// Cache has the Keys and Values of tokens, and what does not grow with the context length: states of recurrent layers,
	// and keys and values of an encoder's output.
	Cache  alloc.Bytes `json:"cache_bytes"`
	Keys   alloc.Bytes `json:"cache_keys_bytes"` // also what latent attention keeps
	Values alloc.Bytes `json:"cache_values_bytes"`
	// CacheNext is the Cache after the next token, and CachePeak the most while that token runs, at most. In a cache to
	// which tokens are appended (KVConfig.Prompt), each layer for a moment holds old and new keys and values, and layers
	// with a window hold the whole prompt until then. Otherwise both are the Cache.
	CacheNext alloc.Bytes `json:"cache_next_token_bytes"`
	CachePeak alloc.Bytes `json:"cache_peak_bytes"`
	Buckets   alloc.Bytes `json:"buckets_bytes"`   // copy of the gradients that replicas send each other
	Gradients alloc.Bytes `json:"gradients_bytes"` // of parameters
	Saved     alloc.Bytes `json:"saved_bytes"`     // retained for the backward pass, inputs not counted again
	Transient alloc.Bytes `json:"transient_bytes"` // the rest: activations and their gradients, workspace
	// Host is the memory that the CPU holds instead, which Peak does not include: see Offloaded.
	Host alloc.Bytes `json:"host_bytes"`

	// Peak is the sum. On CUDA its upper bound is that of torch.cuda.max_memory_allocated, which includes rounding to
	// blocks and cuBLAS's workspaces.
	Peak   Value  `json:"-"`
	PeakAt string `json:"peak_at"` // such as "backward of layer1.0.conv1"

	// Footprint is the memory that the process takes on its device; zero on the CPU and without an
	// input.
	Footprint Footprint `json:"footprint"`

	// Uncertain are the reasons why Peak on the CPU, and Footprint.Needed elsewhere, have bounds: the upper one is the
	// estimate and the sum of all More. The largest comes first.
	Uncertain []Term `json:"uncertain,omitempty"`

	terms  []term
	inPass passing // of a peak in training
}

// passing is the highest peak of a training step before the optimizer's: all of it, and what is not exact.
type passing struct{ all, uncertain alloc.Bytes }

// fixed is the part of the cache that does not grow with the context length.
func (m *Memory) fixed() alloc.Bytes { return m.Cache - m.Keys - m.Values }

// resident returns the memory that stays allocated from the time when the model is loaded.
func (m Memory) resident() history.Resident {
	return history.Resident{Weights: m.Weights, Master: m.Master, Buckets: m.Buckets, Cache: setting.CacheBytes{Keys: m.Keys, Values: m.Values, Fixed: m.fixed()}}
}

// MarshalJSON writes the parts, with that of the cache that does not grow with the context length, and of Peak the bytes
// and the fractions by which they may be off.
func (m Memory) MarshalJSON() ([]byte, error) {
	return json.Marshal(struct {
		Weights   alloc.Bytes `json:"weights_bytes"`
		Buffers   alloc.Bytes `json:"buffers_bytes"`
		Master    alloc.Bytes `json:"master_bytes"`
		Optimizer alloc.Bytes `json:"optimizer_bytes"`
		Input     alloc.Bytes `json:"input_bytes"`
		Cache     alloc.Bytes `json:"cache_bytes"`
		Keys      alloc.Bytes `json:"cache_keys_bytes"`
		Values    alloc.Bytes `json:"cache_values_bytes"`
		Fixed     alloc.Bytes `json:"cache_fixed_bytes"`
		Next      alloc.Bytes `json:"cache_next_token_bytes"`
		CachePeak alloc.Bytes `json:"cache_peak_bytes"`
		Buckets   alloc.Bytes `json:"buckets_bytes"`
		Gradients alloc.Bytes `json:"gradients_bytes"`
		Saved     alloc.Bytes `json:"saved_bytes"`
		Transient alloc.Bytes `json:"transient_bytes"`
		Host      alloc.Bytes `json:"host_bytes"`
		Peak      alloc.Bytes `json:"peak_bytes"`
		PeakAt    string      `json:"peak_at"`
		Bounds    errorBounds `json:"bounds"`
		Footprint Footprint   `json:"footprint"`
		Uncertain []Term      `json:"uncertain,omitempty"`
	}{
		m.Weights, m.Buffers, m.Master, m.Optimizer, m.Input, m.Cache, m.Keys, m.Values, m.fixed(), m.CacheNext, m.CachePeak, m.Buckets, m.Gradients,
		m.Saved, m.Transient, m.Host, m.Peak.Bytes, m.PeakAt, m.bounds(), m.Footprint, m.Uncertain,
	})
}

// errorBounds says how far a value may be off, as fractions of it: the true value is expected between
// value x (1 - Below) and value x (1 + Above).
type errorBounds struct {
	Below float64 `json:"below"`
	Above float64 `json:"above"`
}

// String returns the bounds as they are printed after a value: " (-1.2 % to +4.6 %)".
func (b errorBounds) String() string {
	if b == (errorBounds{}) {
		return ""
	}
	return fmt.Sprintf(" (-%.1f %% to +%.1f %%)", 100*b.Below, 100*b.Above)
}

// Row is one call of a layer.
type Row struct {
	Path   string      `json:"path"`
	Kind   string      `json:"kind"`
	Input  alloc.Shape `json:"input,omitempty"`
	Output alloc.Shape `json:"output,omitempty"`
	Params int64       `json:"params"` // its own, not its parts'
	FLOPs  int64       `json:"flops"`  // its own
	// Allocated is the sum of all allocations from the beginning of the layer to its end in a
	// forward pass of training, its parts included, whether freed meanwhile or not: outputs with
	// memory of their own and what operations keep, but no workspace. It can be compared with the
	// measured sections.Row.Allocated.
	Allocated alloc.Bytes `json:"allocated_bytes"`
	// Retained is the memory that the layer is the first to retain for the backward
	// pass.
	Retained alloc.Bytes `json:"retained_bytes"`

	depth int  // 1 for the layers of the list
	leaf  bool // it has no parts
}

// Footprint is the most memory that a process takes of its device: the tensors, and what PyTorch's
// caching allocator and CUDA add to them. A training run counts with two steps, because the first
// leaves blocks behind that the second cannot use.
//
// Allocated is what torch.cuda.max_memory_allocated returns, Reserved is what max_memory_reserved
// returns, and Device is what nvidia-smi shows for the process, on a device that is large enough.
// On a smaller one, the allocator gives inactive memory back, and the run still completes down to
// Needed.
type Footprint struct {
	Allocated Value `json:"allocated"` // blocks of tensors and of cuBLAS's workspaces
	Reserved  Value `json:"reserved"`  // segments: the blocks and what is inactive between them
	Context   Value `json:"context"`   // CUDA's context and the kernels in it, outside the allocator
	Device    Value `json:"device"`    // Reserved and Context
	Needed    Value `json:"needed"`    // the smallest device on which it runs, with Context
}

// Value is an estimated amount of memory, with its bounds. Upper is Unbounded where something is not counted.
type Value struct{ Bytes, Lower, Upper alloc.Bytes }

// String returns the value with its bounds: "15.1 GiB (14.2 GiB to 16.0 GiB)".
func (f Value) String() string {
	if f.Upper == Unbounded {
		return fmt.Sprintf("%v (%v or more)", f.Bytes, f.Lower)
	}
	return fmt.Sprintf("%v (%v to %v)", f.Bytes, f.Lower, f.Upper)
}

// Measured is what a recorded run took, to compare with an estimate of it: see Report.Beside. A
// value that the recording does not have is zero.
type Measured struct {
	Requested alloc.Bytes // by tensors, at the moment when that was most
	Allocated alloc.Bytes // the most in blocks: torch.cuda.max_memory_allocated
	Reserved  alloc.Bytes // the most in segments: torch.cuda.max_memory_reserved
	// Kinds divides Requested by the kinds of PyTorch's memory profiler: Parameter, Gradient,
	// OptimizerState and Input. All other kinds count as activations.
	Kinds map[string]alloc.Bytes
	// Layers is the memory that a forward pass in training allocated within each layer, by the path
	// of its Row.
	Layers map[string]alloc.Bytes
}

// Compared is one value of an estimate beside the measured one.
type Compared struct {
	// Of says what the value is: "requested", "allocated" or "reserved" at the most; "weights", "gradients", "optimizer",
	// "input" or "activations" at the peak; or "layer", what a layer allocates.
	Of       string      `json:"of"`
	Path     string      `json:"path,omitempty"` // of the layer
	Estimate Value       `json:"estimate"`       // without bounds where none are promised
	Measured alloc.Bytes `json:"measured_bytes"`
}

// Off returns how much larger the measurement is than the estimate, as a fraction of the estimate;
// 0 if the estimate is 0.
func (c Compared) Off() float64 {
	if c.Estimate.Bytes == 0 {
		return 0
	}
	return float64(c.Measured-c.Estimate.Bytes) / float64(c.Estimate.Bytes)
}

// Beside returns values of the estimate, each beside the measured one: the peaks, then the parts
// of the peak, then the layers in their order. Values that only one side has are left out.
func (r *Report) Beside(m Measured) []Compared {
	at := r.Memory()
	all := []Compared{
		{Of: "requested", Estimate: at.Peak, Measured: m.Requested}, // with the workspaces of libraries
		{Of: "allocated", Estimate: at.Footprint.Allocated, Measured: m.Allocated},
		{Of: "reserved", Estimate: at.Footprint.Reserved, Measured: m.Reserved},
	}
	known := all[:0]
	for _, c := range all {
		if c.Estimate.Bytes > 0 && c.Measured > 0 {
			known = append(known, c)
		}
	}
	return append(append(known, at.kinds(m.Kinds)...), r.besideLayers(m.Layers)...)
}

// kinds are the parts of the peak beside those measured; nil if the recording did not tell what its tensors were for.
func (m Memory) kinds(measured map[string]alloc.Bytes) []Compared {
	if measured["Parameter"] == 0 {
		return nil
	}
	parts := []struct {
		of, kind string
		bytes    alloc.Bytes
	}{
		{"weights", "Parameter", m.Weights + m.Buffers + m.Master},
		{"gradients", "Gradient", m.Gradients + m.Buckets},
		{"optimizer", "OptimizerState", m.Optimizer},
		{"input", "Input", m.Input},
	}
	var all []Compared
	rest := Compared{Of: "activations", Estimate: Value{Bytes: m.Saved + m.Transient + m.Cache}}
	for _, n := range measured {
		rest.Measured += n
	}
	for _, p := range parts {
		rest.Measured -= measured[p.kind]
		if p.bytes > 0 || measured[p.kind] > 0 {
			all = append(all, Compared{Of: p.of, Estimate: Value{Bytes: p.bytes}, Measured: measured[p.kind]})
		}
	}
	return append(all, rest)
}

// besideLayers compares the layers that a recording has. Each path counts once, with the mean of
// its calls.
func (r *Report) besideLayers(measured map[string]alloc.Bytes) []Compared {
	sums := map[string]struct{ bytes, calls alloc.Bytes }{}
	var order []string
	for _, row := range r.Layers {
		sum := sums[row.Path]
		if _, ok := measured[row.Path]; ok && sum.calls == 0 {
			order = append(order, row.Path)
		}
		sum.bytes, sum.calls = sum.bytes+row.Allocated, sum.calls+1
		sums[row.Path] = sum
	}
	var all []Compared
	for _, path := range order {
		all = append(all, Compared{Of: "layer", Path: path, Estimate: Value{Bytes: sums[path].bytes / sums[path].calls}, Measured: measured[path]})
	}
	return all
}
