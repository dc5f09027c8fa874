package estimating

import (
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/internal/enginelog"
	"github.com/gpumemtrack/gpumemtrack/internal/inputs"
	"github.com/gpumemtrack/gpumemtrack/tracker/export"
	"github.com/gpumemtrack/gpumemtrack/tracker/replay"
	"github.com/gpumemtrack/gpumemtrack/tracker/snapshot"
)

// measured compares a recorded run with the estimate.
type measured struct {
	File   string        `json:"file"`
	Device string        `json:"device"`
	Rows   []measuredRow `json:"rows"`
	Notes  []string      `json:"notes,omitempty"`

	Engine enginelog.Engine `json:"engine,omitempty"` // that wrote the log; "" for a recorded run
}

type measuredRow estimate.Compared

// newMeasured returns what an engine logged; nil if that is nil.
func newMeasured(file string, run *engineRun) *measured {
	if run == nil {
		return nil
	}
	m := &measured{File: file, Device: run.of, Engine: run.engine, Notes: run.notes}
	for _, row := range run.rows {
		m.Rows = append(m.Rows, measuredRow(row))
	}
	return m
}

// MarshalJSON leaves out bounds that do not exist, and the difference to a value of 0.
func (r measuredRow) MarshalJSON() ([]byte, error) {
	if r.Estimate.Upper == estimate.Unbounded {
		r.Estimate.Upper = 0
	}
	return json.Marshal(struct {
		Of       string      `json:"of"`
		Path     string      `json:"path,omitempty"`
		Estimate alloc.Bytes `json:"estimate_bytes"`
		Lower    alloc.Bytes `json:"lower_bytes,omitzero"`
		Upper    alloc.Bytes `json:"upper_bytes,omitzero"`
		Measured alloc.Bytes `json:"measured_bytes"`
		Off      float64     `json:"off,omitzero"`
	}{r.Of, r.Path, r.Estimate.Bytes, r.Estimate.Lower, r.Estimate.Upper, r.Measured, estimate.Compared(r).Off()})
}

// compareRun compares the recorded run in a file with the report.
func (e *estimated) compareRun(a *cli.App) (*measured, error) {
	o, r := e.options, e.Report
	if len(r.Inputs) == 0 {
		return nil, cli.UsageError("estimate: --measured needs the input of the run: --batch and, of a language model, --seq")
	}
	if run, err := besideEngine(a, o.measured, r, e.Context); run != nil || err != nil {
		return newMeasured(o.measured, run), err
	}
	dump, err := cli.OpenDump(a.Reading(inputs.Measured), o.measured, -1)
	if err != nil {
		return nil, err
	}
	m := &measured{File: o.measured, Device: export.Device(dump.Snapshot)}
	peaks, err := m.peaks(dump)
	if err != nil {
		return nil, fmt.Errorf("%s: its peak is not known: %w", o.measured, err)
	}
	peaks.Kinds = kindsAtPeak(dump.Snapshot)
	if o.train {
		peaks.Layers = forwardOf(dump, r)
	}
	for _, c := range r.Beside(peaks) {
		m.Rows = append(m.Rows, measuredRow(c))
	}
	if slices.ContainsFunc(m.Rows, func(r measuredRow) bool { return r.outside() != "" }) {
		m.Notes = append(m.Notes, e.openSettings())
	}
	return m, nil
}

// openSettings says what the command leaves open, which a run outside the bounds may have had otherwise.
func (e *estimated) openSettings() string {
	o, says := e.options, "the run may have had other settings than the command"
	if len(e.Assumed) > 0 {
		says += ", which assumes " + strings.Join(e.Assumed, " ")
	}
	var open []string
	for _, version := range []struct{ flag, given string }{{"--pytorch", o.pytorch}, {"--transformers", o.transformers}, {"--bitsandbytes", o.bitsandbytes}} {
		if version.given == "" {
			open = append(open, version.flag)
		}
	}
	if o.train && o.training.output == "" {
		open = append(open, "--hold-output")
	}
	if len(open) > 0 {
		says += "; it leaves open: " + strings.Join(open, ", ")
	}
	return says
}

var errNoHistory = errors.New("it has no events: call torch.cuda.memory._record_memory_history() at the program's start, or write a dump instead of a snapshot")

// peaks returns the highest values in a dump: from its history, and from what its allocator and
// tracker counted before that.
func (m *measured) peaks(dump *snapshot.Dump) (estimate.Measured, error) {
	s := dump.Snapshot
	peaks := estimate.Measured{Requested: s.Peak.Bytes}
	if s.Cache != nil {
		peaks.Allocated, peaks.Reserved = s.Cache.Allocated.Bytes.Peak, s.Cache.Reserved.Bytes.Peak
	}
	dropped := cli.FirstEvent(dump)
	if dropped < 0 {
		if peaks.Requested <= s.Live.Bytes && peaks.Allocated <= s.Allocated {
			return peaks, errNoHistory
		}
		return peaks, nil
	}
	replayed, err := replay.Run(dump, replay.Recorded(dump))
	if err != nil {
		return peaks, err
	}
	if dropped > 0 {
		m.Notes = append(m.Notes, fmt.Sprintf("the recording begins after %d events: an earlier peak is not in it", dropped))
	}
	peaks.Requested = max(peaks.Requested, replayed.Recorded.PeakRequested)
	peaks.Allocated = max(peaks.Allocated, replayed.Recorded.PeakAllocated)
	peaks.Reserved = max(peaks.Reserved, replayed.Recorded.PeakReserved)
	return peaks, nil
}

// kindsAtPeak returns the bytes of each kind at the peak.
func kindsAtPeak(s *snapshot.Snapshot) map[string]alloc.Bytes {
	kinds := map[string]alloc.Bytes{}
	for site := range s.CallSites() {
		if !site.Memory.OnHost() {
			kinds[string(site.Kind)] += site.Peak.Bytes
		}
	}
	return kinds
}

// forwardOf returns what each layer allocates in a forward pass. It finds a layer's section by the
// end of its path, such as step/forward/layer1.0.conv1, with dots or with a section for each part.
// Sections of a backward pass do not count.
func forwardOf(dump *snapshot.Dump, r *estimate.Report) map[string]alloc.Bytes {
	paths := map[string]string{}
	for _, row := range r.Layers {
		paths[row.Path] = row.Path
		paths[strings.ReplaceAll(row.Path, ".", "/")] = row.Path
	}
	type sum struct{ bytes, calls int64 }
	sums := map[string]sum{}
	for _, section := range dump.Profile {
		parts := strings.Split(section.Path, "/")
		if section.Calls == 0 || slices.ContainsFunc(parts, func(part string) bool { return strings.HasPrefix(part, "backward") }) {
			continue
		}
		for i := range parts {
			if path, ok := paths[strings.Join(parts[i:], "/")]; ok {
				sums[path] = sum{sums[path].bytes + int64(section.Allocated.Bytes), sums[path].calls + section.Calls}
				break
			}
		}
	}
	layers := map[string]alloc.Bytes{}
	for path, of := range sums {
		layers[path] = alloc.Bytes(of.bytes / of.calls)
	}
	return layers
}

// title returns a value's name in the table.
func (r measuredRow) title(indent int) string {
	switch r.Of {
	case "requested":
		return "requested by tensors"
	case "allocated":
		return "allocated in blocks"
	case "reserved":
		return "reserved by the allocator"
	case "layer":
		return r.Path
	}
	return strings.Repeat(" ", indent) + r.Of
}

func (r measuredRow) off() string {
	if r.Estimate.Bytes == 0 {
		return "-"
	}
	return fmt.Sprintf("%+.1f %%", 100*estimate.Compared(r).Off())
}

// outside says whether a measurement is below or above its bounds; "" if it is within.
func (r measuredRow) outside() string {
	switch {
	case r.Estimate.Upper == 0:
		return ""
	case r.Measured > r.Estimate.Upper:
		return "above"
	case r.Measured < r.Estimate.Lower:
		return "below"
	}
	return ""
}

// fewLayers is how many layers are printed without --detail: those with the largest differences.
const fewLayers = 10

// write prints the values side by side.
func (m *measured) write(w io.Writer, detail bool) {
	fmt.Fprintf(w, "Beside %s of %s; off is how much more was measured:\n", m.File, m.Device)
	heading, indent := "At the peak", 2 // the parts of a peak stand below it
	if m.Engine != "" {
		heading, indent = "On a device", 0
	}
	t := cli.NewTable(w, 1, heading, "Estimate", "At most", "Measured", "Off")
	var layers []measuredRow
	for _, r := range m.Rows {
		if r.Of == "layer" {
			layers = append(layers, r)
			continue
		}
		var upper any = ""
		if r.Estimate.Upper > 0 {
			upper = fmt.Sprint(atMost(r.Estimate.Upper))
		}
		t.AppendRow(table.Row{r.title(indent), r.Estimate.Bytes, upper, r.Measured, r.off()})
	}
	t.Render()
	for _, r := range m.Rows {
		if side := r.outside(); side != "" {
			fmt.Fprintf(w, "What is %s is %s the bounds of the estimate.\n", r.Of, side)
		}
	}
	for _, note := range m.Notes {
		fmt.Fprintf(w, "Note: %s\n", note)
	}
	writeLayers(w, layers, detail)
}

func writeLayers(w io.Writer, layers []measuredRow, detail bool) {
	if len(layers) == 0 {
		return
	}
	if hidden := len(layers) - fewLayers; hidden > 0 && !detail {
		far := func(r measuredRow) float64 { return math.Abs(float64(r.Measured - r.Estimate.Bytes)) }
		slices.SortStableFunc(layers, func(a, b measuredRow) int { return cmp.Compare(far(b), far(a)) })
		layers = layers[:fewLayers]
		fmt.Fprintf(w, "The %d layers that are off by most; --detail prints %d more:\n", fewLayers, hidden)
	}
	t := cli.NewTable(w, 1, "A forward pass allocates in", "Estimate", "Measured", "Off")
	for _, r := range layers {
		t.AppendRow(table.Row{r.title(0), r.Estimate.Bytes, r.Measured, r.off()})
	}
	t.Render()
}
