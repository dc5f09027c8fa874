package estimate

import (
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// String returns a table of the layers, the memory by part, what a device shows, and the three
// lines of Pytorch-Memory-Utils.
func (r *Report) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\n", r.Name)
	r.table(&b)
	b.WriteByte('\n')
	r.parts(&b)
	if len(r.NotRead) > 0 {
		fmt.Fprintf(&b, "not read: %s\n", strings.Join(r.NotRead, ", "))
	}
	for _, note := range r.Notes {
		fmt.Fprintf(&b, "%s\n", note)
	}
	for _, t := range r.Memory().Uncertain {
		fmt.Fprintf(&b, "uncertain: %v\n", t)
	}
	if len(r.Missing) > 0 {
		fmt.Fprintf(&b, "not counted, so that there is no upper bound: %s\n", strings.Join(r.Missing, ", "))
	}
	b.WriteByte('\n')
	r.reference(&b)
	return b.String()
}

// reference writes the lines that Pytorch-Memory-Utils' modelsize_estimate
// prints, with its arithmetic, in units of 10^6 bytes; without an input only the first.
func (r *Report) reference(w io.Writer) {
	fmt.Fprintf(w, "Model %s : params: %.6f MB\n", r.Name, millions(r.Params.Bytes))
	if len(r.Inputs) > 0 {
		fmt.Fprintf(w, "Model %s : intermediate variables: %.6f MB (without backward)\n", r.Name, millions(r.intermediates))
		fmt.Fprintf(w, "Model %s : intermediate variables: %.6f MB (with backward)\n", r.Name, millions(r.withBackward()))
	}
}

func millions(n alloc.Bytes) float64 { return float64(n) / 1e6 }

// column is one column of the table.
type column struct {
	title string
	cell  func(Row) string
}

var columns = []column{
	{"Layer (type)", func(row Row) string {
		name := row.Path[strings.LastIndexByte(row.Path, '.')+1:]
		return strings.Repeat("  ", row.depth-1) + name + " (" + row.Kind + ")"
	}},
	{"Output shape", func(row Row) string {
		if row.Output == nil {
			return "--"
		}
		return row.Output.String()
	}},
	{"Params", func(row Row) string { return grouped(row.Params) }},
	{"FLOPs", func(row Row) string { return scaled(row.FLOPs) }},
	{"Retained for backward", func(row Row) string {
		if row.Retained == 0 {
			return "--"
		}
		return row.Retained.String()
	}},
}

// table writes the rows as torchinfo does, one line a layer.
func (r *Report) table(b *strings.Builder) {
	shown := columns
	if len(r.Inputs) == 0 {
		shown = []column{columns[0], columns[2]}
	}
	width := make([]int, len(shown))
	cells := make([][]string, 0, len(r.Layers))
	for i, c := range shown {
		width[i] = len(c.title)
	}
	for _, row := range r.Layers {
		line := make([]string, len(shown))
		for i, c := range shown {
			line[i] = c.cell(row)
			width[i] = max(width[i], len(line[i]))
		}
		cells = append(cells, line)
	}
	write := func(line []string) {
		var text strings.Builder
		for i, cell := range line {
			pad := strings.Repeat(" ", width[i]-len(cell))
			if i == 0 || len(r.Inputs) > 0 && i == 1 {
				text.WriteString(cell + pad + "  ")
			} else {
				text.WriteString(pad + cell + "  ")
			}
		}
		b.WriteString(strings.TrimRight(text.String(), " ") + "\n")
	}
	titles := make([]string, len(shown))
	total := -2
	for i, c := range shown {
		titles[i] = c.title
		total += width[i] + 2
	}
	write(titles)
	fmt.Fprintln(b, strings.Repeat("=", total))
	for _, line := range cells {
		write(line)
	}
	fmt.Fprintln(b, strings.Repeat("=", total))
}

// parts writes the totals and the memory of inference and training.
func (r *Report) parts(b *strings.Builder) {
	fmt.Fprintf(b, "Parameters: %s (%v)   Buffers: %s (%v)\n", grouped(r.Params.Count), r.Params.Bytes, grouped(r.Buffers.Count), r.Buffers.Bytes)
	if len(r.Inputs) > 0 {
		fmt.Fprintf(b, "FLOPs: %s   Activations: %v   Retained for backward: %v%v\n", scaled(r.FLOPs), r.activations.Bytes, r.Retained, r.retainedBounds)
	}
	b.WriteByte('\n')
	fmt.Fprintf(b, "%-24s %12s %12s\n", "Memory of one device", "inference", "training")
	for _, p := range []struct {
		name string
		of   func(Memory) alloc.Bytes
	}{
		{"weights", func(m Memory) alloc.Bytes { return m.Weights }},
		{"buffers", func(m Memory) alloc.Bytes { return m.Buffers }},
		{"master weights", func(m Memory) alloc.Bytes { return m.Master }},
		{"optimizer", func(m Memory) alloc.Bytes { return m.Optimizer }},
		{"input", func(m Memory) alloc.Bytes { return m.Input }},
		{"buckets", func(m Memory) alloc.Bytes { return m.Buckets }},
		{"keys and values", func(m Memory) alloc.Bytes { return m.Keys + m.Values }},
		{"states of fixed size", func(m Memory) alloc.Bytes { return m.fixed() }},
		{"gradients", func(m Memory) alloc.Bytes { return m.Gradients }},
		{"saved activations", func(m Memory) alloc.Bytes { return m.Saved }},
		{"transient (modelled)", func(m Memory) alloc.Bytes { return m.Transient }},
	} {
		if in, tr := p.of(r.Inference), p.of(r.Training); in != 0 || tr != 0 {
			fmt.Fprintf(b, "  %-22s %12s %12s\n", p.name, dash(in), dash(tr))
		}
	}
	fmt.Fprintf(b, "  %-22s %12v %12v\n", "peak", r.Inference.Peak.Bytes, r.Training.Peak.Bytes)
	if in, tr := r.Inference.Host, r.Training.Host; in != 0 || tr != 0 {
		fmt.Fprintf(b, "  %-22s %12s %12s\n", "memory of the CPU", dash(in), dash(tr))
	}
	fmt.Fprintf(b, "inference peak%v at: %s\n", r.Inference.bounds(), r.Inference.PeakAt)
	fmt.Fprintf(b, "training peak%v at: %s\n", r.Training.bounds(), r.Training.PeakAt)
	r.footprints(b)
}

// footprints writes what the device shows.
func (r *Report) footprints(b *strings.Builder) {
	in, tr := r.Inference.Footprint, r.Training.Footprint
	if in == (Footprint{}) && tr == (Footprint{}) {
		return
	}
	fmt.Fprintf(b, "\n%-24s %12s %12s\n", "Of the device", "inference", "training")
	for _, p := range []struct {
		name string
		of   func(Footprint) alloc.Bytes
	}{
		{"allocated", func(f Footprint) alloc.Bytes { return f.Allocated.Bytes }},
		{"reserved", func(f Footprint) alloc.Bytes { return f.Reserved.Bytes }},
		{"context", func(f Footprint) alloc.Bytes { return f.Context.Bytes }},
		{"nvidia-smi shows", func(f Footprint) alloc.Bytes { return f.Device.Bytes }},
		{"  at most", func(f Footprint) alloc.Bytes { return f.Device.Upper }},
		{"needed", func(f Footprint) alloc.Bytes { return f.Needed.Bytes }},
		{"  at most", func(f Footprint) alloc.Bytes { return f.Needed.Upper }},
	} {
		fmt.Fprintf(b, "  %-22s %12s %12s\n", p.name, dash(p.of(in)), dash(p.of(tr)))
	}
}

func dash(n alloc.Bytes) string {
	switch n {
	case 0:
		return "--"
	case Unbounded:
		return "unknown"
	}
	return n.String()
}

// grouped is a number with commas, "--" for none.
func grouped(n int64) string {
	if n == 0 {
		return "--"
	}
	text := strconv.FormatInt(n, 10)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}

// scaled is a number in units of a thousand: "39.3 G".
func scaled(n int64) string {
	if n == 0 {
		return "--"
	}
	value, unit := float64(n), 0
	for value >= 999.95 && unit < 6 {
		value, unit = value/1000, unit+1
	}
	if unit == 0 {
		return strconv.FormatInt(n, 10)
	}
	return fmt.Sprintf("%.1f %c", value, " KMGTPE"[unit])
}

// withBackward is Pytorch-Memory-Utils' estimate for training.
func (r *Report) withBackward() alloc.Bytes {
	return alloc.Bytes(setting.AddSat(int64(r.intermediates), int64(r.intermediates)))
}

// MarshalJSON writes the report's fields, what String shows besides them, and Pytorch-Memory-Utils' two estimates of the
// activations. Sizes are numbers of bytes, shapes arrays.
func (r Report) MarshalJSON() ([]byte, error) {
	var rows []jsonRow
	if r.Layers != nil {
		rows = make([]jsonRow, len(r.Layers))
	}
	for i, l := range r.Layers {
		rows[i] = jsonRow{l.Path, l.Kind, l.depth, l.leaf, l.Input, l.Output, l.Params, l.FLOPs, l.Allocated, l.Retained}
	}
	return json.Marshal(struct {
		Name                      string        `json:"name"`
		Inputs                    []alloc.Shape `json:"inputs,omitempty"`
		HasInput                  bool          `json:"has_input"`
		Output                    alloc.Shape   `json:"output,omitempty"`
		Params                    Amount        `json:"params"`
		Trained                   Amount        `json:"trained"`
		Buffers                   Amount        `json:"buffers"`
		Gradients                 alloc.Bytes   `json:"gradients_bytes"`
		FLOPs                     int64         `json:"flops"`
		Activations               Amount        `json:"activations"`
		Retained                  alloc.Bytes   `json:"retained_bytes"`
		RetainedBounds            errorBounds   `json:"retained_bounds"`
		GPULayers                 int           `json:"gpu_layers,omitempty"`
		ModelLayers               int           `json:"model_layers,omitempty"`
		Inference                 Memory        `json:"inference"`
		Training                  Memory        `json:"training"`
		Layers                    []jsonRow     `json:"layers"`
		Notes                     []string      `json:"notes,omitempty"`
		NotRead                   []string      `json:"not_read,omitempty"`
		Missing                   []string      `json:"missing,omitempty"`
		Intermediates             alloc.Bytes   `json:"intermediates_bytes"`
		IntermediatesWithBackward alloc.Bytes   `json:"intermediates_with_backward_bytes"`
	}{
		r.Name, r.Inputs, len(r.Inputs) > 0, r.Output, r.Params, r.Trained, r.Buffers, r.Gradients, r.FLOPs, r.activations,
		r.Retained, r.retainedBounds, r.GPULayers, r.ModelLayers, r.Inference, r.Training, rows, r.Notes, r.NotRead, r.Missing, r.intermediates, r.withBackward(),
	})
}

// jsonRow is a Row in a report's JSON.
type jsonRow struct {
	Path      string      `json:"path"`
	Kind      string      `json:"kind"`
	Depth     int         `json:"depth"`
	Leaf      bool        `json:"leaf"`
	Input     alloc.Shape `json:"input,omitempty"`
	Output    alloc.Shape `json:"output,omitempty"`
	Params    int64       `json:"params"`
	FLOPs     int64       `json:"flops"`
	Allocated alloc.Bytes `json:"allocated_bytes"`
	Retained  alloc.Bytes `json:"retained_bytes"`
}
