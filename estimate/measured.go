package estimate

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Measured is what a recorded run took, to compare with an estimate of it: see Report.Beside. A
// figure that the recording does not have is zero.
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

// Compared is one figure of an estimate beside the measured one.
type Compared struct {
	// Of says what the figure is: "requested", "allocated" or "reserved" at the most; "weights", "gradients", "optimizer",
	// "input" or "activations" at the peak; or "layer", what a layer allocates.
	Of       string      `json:"of"`
	Path     string      `json:"path,omitempty"` // of the layer
	Estimate Figure      `json:"estimate"`       // without bounds where none are promised
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

// Beside returns figures of the estimate, each beside the measured one: the peaks, then the parts
// of the peak, then the layers in their order. Figures that only one side has are left out.
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
	rest := Compared{Of: "activations", Estimate: Figure{Bytes: m.Saved + m.Transient + m.Cache}}
	for _, n := range measured {
		rest.Measured += n
	}
	for _, p := range parts {
		rest.Measured -= measured[p.kind]
		if p.bytes > 0 || measured[p.kind] > 0 {
			all = append(all, Compared{Of: p.of, Estimate: Figure{Bytes: p.bytes}, Measured: measured[p.kind]})
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
		all = append(all, Compared{Of: "layer", Path: path, Estimate: Figure{Bytes: sums[path].bytes / sums[path].calls}, Measured: measured[path]})
	}
	return all
}
