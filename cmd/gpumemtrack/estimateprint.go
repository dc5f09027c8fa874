package main

import (
	"fmt"
	"io"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
)

const estimateSchema = "gpumemtrack.estimate/1"

// estimated is what --json prints.
type estimated struct {
	Schema      string      `json:"schema"`
	Mode        string      `json:"mode"`
	Peak        alloc.Bytes `json:"peak_bytes"`
	Upper       alloc.Bytes `json:"peak_upper_bytes"`
	Reserved    alloc.Bytes `json:"reserved_bytes"`
	Device      alloc.Bytes `json:"device_bytes"`
	DeviceUpper alloc.Bytes `json:"device_upper_bytes"`
	Needs       alloc.Bytes `json:"needed_upper_bytes"`
	Host        alloc.Bytes `json:"host_bytes"`
	Budget      alloc.Bytes `json:"budget_bytes,omitempty"`
	Fits        *bool       `json:"fits,omitempty"`
	// Quantization is what --best-quantization took.
	Quantization string           `json:"quantization,omitempty"`
	Batch        int              `json:"batch,omitempty"`   // that --max-batch found
	Context      int              `json:"context,omitempty"` // that --max-context found
	Report       *estimate.Report `json:"report"`
}

func (e estimated) memory() estimate.Memory {
	if e.Mode == "train" {
		return e.Report.Training
	}
	return e.Report.Inference
}

func (e estimated) write(w io.Writer) {
	r, m := e.Report, e.memory()
	name := r.Name
	if name == "" {
		name = "model"
	}
	fmt.Fprintf(w, "%s: %d parameters, %v%s\n", name, r.Params.Count, r.Params.Bytes, inputOf(r))
	if e.Batch > 0 {
		fmt.Fprintf(w, "The largest batch that fits is %d.\n", e.Batch)
	}
	if e.Context > 0 {
		fmt.Fprintf(w, "The most tokens that fit are %d.\n", e.Context)
	}
	if e.Quantization != "" {
		fmt.Fprintf(w, "Quantized to %s.\n", e.Quantization)
	}
	t := newTable(w, 1, "Memory at the peak, "+e.Mode, "Size")
	for _, part := range []struct {
		name string
		size alloc.Bytes
	}{
		{"weights", m.Weights}, {"buffers", m.Buffers}, {"master weights", m.Master}, {"gradients", m.Gradients},
		{"optimizer", m.Optimizer}, {"input", m.Input}, {"keys and values", m.Cache}, {"buckets", m.Buckets},
		{"saved for backward", m.Saved}, {"transient", m.Transient},
	} {
		if part.size != 0 {
			t.AppendRow(table.Row{part.name, part.size})
		}
	}
	t.AppendSeparator()
	t.AppendRow(table.Row{"peak", m.Peak})
	if m.Band.Above > 0 {
		t.AppendRow(table.Row{fmt.Sprintf("at most, by the band of -%.1f%% to +%.1f%%", 100*m.Band.Below, 100*m.Band.Above), e.Upper})
	}
	if f := m.Footprint; f.Device.Bytes > 0 {
		t.AppendSeparator()
		t.AppendRow(table.Row{"reserved by the allocator", f.Reserved.Bytes})
		t.AppendRow(table.Row{"CUDA context", f.Context.Bytes})
		t.AppendRow(table.Row{"nvidia-smi shows", f.Device.Bytes})
		t.AppendRow(table.Row{fmt.Sprintf("between %v and", f.Device.Lower), f.Device.Upper})
		t.AppendRow(table.Row{"needed of the device, at most", e.Needs})
	}
	if m.Host > 0 {
		t.AppendRow(table.Row{"memory of the CPU", m.Host})
	}
	t.Render()
	if m.PeakAt != "" {
		fmt.Fprintf(w, "The peak is at %s.\n", m.PeakAt)
	}
	for _, note := range r.Notes {
		fmt.Fprintf(w, "Note: %s\n", note)
	}
	if e.Fits != nil && *e.Fits {
		fmt.Fprintf(w, "It fits in %v.\n", e.Budget)
	}
}

func inputOf(r *estimate.Report) string {
	if !r.HasInput {
		return ", no input: --batch and --seq give its activations"
	}
	return fmt.Sprintf(", input %v", r.Inputs[0])
}
