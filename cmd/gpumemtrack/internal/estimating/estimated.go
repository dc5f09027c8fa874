package estimating

import (
	"cmp"
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

const estimateSchema = "gpumemtrack.estimate/1"

// estimated is what --json prints.
type estimated struct {
	Schema         string      `json:"schema"`
	Mode           string      `json:"mode"`
	Peak           alloc.Bytes `json:"peak_bytes"`
	Upper          alloc.Bytes `json:"peak_upper_bytes"`
	Allocated      alloc.Bytes `json:"allocated_bytes"`
	AllocatedUpper alloc.Bytes `json:"allocated_upper_bytes"`
	Reserved       alloc.Bytes `json:"reserved_bytes"`
	ReservedUpper  alloc.Bytes `json:"reserved_upper_bytes"`
	Device         alloc.Bytes `json:"device_bytes"`
	DeviceUpper    alloc.Bytes `json:"device_upper_bytes"`
	Needs          alloc.Bytes `json:"needed_upper_bytes"`
	Host           alloc.Bytes `json:"host_bytes"`
	Budget         alloc.Bytes `json:"budget_bytes,omitempty"`
	Fits           *bool       `json:"fits"` // nil if it is not asked or not known
	// Quantization is what --best-quantization chose.
	Quantization string           `json:"quantization,omitempty"`
	Batch        int              `json:"batch,omitempty"`          // found by --max-batch
	Replicas     int              `json:"replicas,omitempty"`       // found by --min-replicas
	GPULayers    int              `json:"gpu_layers,omitempty"`     // of llama.cpp, on the GPU
	Context      int              `json:"context_length,omitempty"` // tokens of each sequence: given with --serve, or found by --max-context-length
	Images       int              `json:"images,omitempty"`         // in each text
	ImageTokens  int              `json:"image_tokens,omitempty"`   // of each text that stand for them
	Sounds       int              `json:"sounds,omitempty"`         // in each text
	SoundTokens  int              `json:"sound_tokens,omitempty"`   // of each text that stand for them
	Frames       int              `json:"frames,omitempty"`         // of the videos that it makes
	Assumed      []string         `json:"assumed,omitempty"`        // the flags that say what was assumed
	Remedies     []remedy         `json:"would_fit,omitempty"`      // changes with which the model would fit
	Nearest      *remedy          `json:"nearest,omitempty"`        // if it never fits, the changes that need the least memory
	Measured     *measured        `json:"measured,omitempty"`       // a recorded run beside the estimate
	Report       *estimate.Report `json:"report"`

	options   estimateOptions
	alone     *checkpoint.File // files of which only the weights are known; else nil
	sized     bool             // the images' size decides how many tokens stand for them
	side      int              // of the images or the frames of videos that it makes, in pixels; 0 if it makes none
	sound     bool             // it reads samples of sounds instead of tokens
	notes     []string
	published string      // element type of a known model's weights
	quantized string      // how they are published, or asked for, if that is no element type
	computes  alloc.DType // in which the model computes; 0 means the usual type
	pooled    poolSource  // nil if what its layers keep is not known
}

// MarshalJSON writes null for upper bounds that do not exist.
func (e estimated) MarshalJSON() ([]byte, error) {
	type fields estimated
	return json.Marshal(struct {
		fields

		Upper          *alloc.Bytes `json:"peak_upper_bytes"`
		AllocatedUpper *alloc.Bytes `json:"allocated_upper_bytes"`
		ReservedUpper  *alloc.Bytes `json:"reserved_upper_bytes"`
		DeviceUpper    *alloc.Bytes `json:"device_upper_bytes"`
		Needs          *alloc.Bytes `json:"needed_upper_bytes"`
	}{fields(e), known(e.Upper), known(e.AllocatedUpper), known(e.ReservedUpper), known(e.DeviceUpper), known(e.Needs)})
}

// judge says whether the model fits into the budget; Fits stays nil if that is not known. weights are compared alone if
// nothing else is known and weightsOnly asks for it.
func (e *estimated) judge() {
	r, o := e.Report, e.options
	fits := r.Fits(o.fits)
	e.Budget = o.fits
	if fits && len(r.Inputs) == 0 && !o.weightsOnly || !fits && e.least() <= o.fits && len(r.Missing) > 0 {
		return
	}
	e.Fits = &fits
}

// least is what a device must have for what is counted.
func (e *estimated) least() alloc.Bytes {
	m := e.Report.Memory()
	return max(m.Peak.Lower, m.Footprint.Needed.Lower)
}

// verdict is the error of a command whose model does not fit, or of which that is not known.
func (e *estimated) verdict(name string) error {
	r, o := e.Report, e.options
	switch {
	case o.fits == 0 || e.Fits != nil && *e.Fits:
		return nil
	case e.Fits == nil && len(r.Missing) > 0:
		return cannotKnow(name, o.budget(), r)
	case e.Fits == nil:
		return cli.Exit(cli.ExitUnknown, fmt.Errorf("%s: only its weights are known, %v, not what it needs to run: --weights-only compares the weights alone", name, r.Memory().Peak.Bytes))
	case e.least() > o.fits:
		return cli.Exit(cli.ExitUnfit, fmt.Errorf("%s does not fit in %s: it needs %v at least", name, o.budget(), e.least()))
	}
	return cli.Exit(cli.ExitUnfit, fmt.Errorf("%s does not fit in %s: it may need %v", name, o.budget(), e.Needs))
}

// flagNames replaces the options that notes of package estimate name by the flags that set them.
var flagNames = strings.NewReplacer(
	"Machine.GPU and Machine.Loading say", "--gpu and --cuda-loading say", "Machine.GPU", "--gpu", "Machine.Loading", "--cuda-loading",
	"Loop.ZeroGrad", "--zero-grad", "Loop.Form", "--optimizer-form", "Loop.Decay", "--weight-decay", "Loop.Output", "--hold-output",
	"Installed", "--bitsandbytes", "unless Precision gives", "unless --dtype gives", "Report.Beside", "--measured",
)

// assumedType ends the note that a file does not give the type of its weights, which --dtype then does.
const assumedType = "unless Precision gives another type"

// note turns the notes of a report into a command's: they name flags, and say what was assumed and
// which flags have no effect.
func (e *estimated) note(name string) {
	notes := e.Report.Notes
	if e.options.dtype != "" {
		notes = slices.DeleteFunc(notes, func(note string) bool { return strings.HasSuffix(note, assumedType) })
	}
	for i, note := range notes {
		notes[i] = flagNames.Replace(note)
	}
	for _, terms := range [][]estimate.Term{e.Report.Inference.Uncertain, e.Report.Training.Uncertain} {
		for i := range terms {
			terms[i].Reason = flagNames.Replace(terms[i].Reason)
		}
	}
	notes = slices.Concat(notes, e.notes, e.options.training.notes, e.idle())
	if decimal := decimalNote(e.options.fitsTyped); decimal != "" {
		notes = append(notes, decimal)
	}
	e.Report.Notes = append(append(notes, e.cacheNotes()...), e.promptNote(name)...)
	e.Assumed = e.assumed()
}

// idle says which flags have no effect on this model, and what an engine does unless it is told otherwise.
func (e *estimated) idle() []string {
	o, r, notes := e.options, e.Report, []string(nil)
	has := func(test func(l estimate.Row) bool) bool { return slices.ContainsFunc(r.Layers, test) }
	if o.parallel.experts > 1 && o.train && !has(func(l estimate.Row) bool { return strings.Contains(l.Kind, "Experts") || l.Kind == "MoE" }) {
		notes = append(notes, "--ep has no effect: the model is no mixture of experts")
	}
	if (o.decode.Sliced || o.decode.Tiled) && !has(func(l estimate.Row) bool { return strings.HasPrefix(l.Path, "vae") }) {
		notes = append(notes, "--vae-slicing and --vae-tiling have no effect: nothing is decoded into images")
	}
	if o.train && o.replicas > 1 && o.zero == 0 && o.engine.sets("sharded-by") {
		notes = append(notes, fmt.Sprintf("each replica holds all states, as in stage 0, %s's default: --zero gives the stage of its configuration", o.engine.Title))
	}
	if o.engine.Pool && !o.engine.isLlama() && len(r.Inputs) > 0 {
		notes = append(notes, fmt.Sprintf("this is what these texts need; %s takes its share of a GPU whatever it serves: --max-model-len N with --gpu says how many requests of N tokens fit", o.engine.Title))
	}
	return notes
}

// cacheNotes says that keys and values take less memory after the next token, if they do.
func (e *estimated) cacheNotes() []string {
	m := e.Report.Inference
	if !e.options.serve || m.CacheNext >= m.Cache {
		return nil
	}
	return []string{fmt.Sprintf("the cache takes %v after the prompt, at most %v during the next token and %v after it: in transformers, layers with a window hold the keys and values of the whole prompt until then",
		m.Cache, m.CachePeak, m.CacheNext)}
}

// promptNote says how prompts are processed, and what a server would need that processes them in
// pieces.
func (e *estimated) promptNote(name string) []string {
	o, r := e.options, e.Report
	if !o.serve || o.engine.isLlama() || len(r.Inputs) == 0 {
		return nil
	}
	shape := e.lastText()
	n := shape[1]
	switch {
	case o.batched > 0:
		return []string{fmt.Sprintf("prompts are processed %s tokens of all texts at a time", text.Grouped(shape[0]*n))}
	case o.chunk > 0:
		return []string{fmt.Sprintf("prompts are processed %s tokens at a time", text.Grouped(n))}
	case n <= piece:
		return nil
	}
	note := fmt.Sprintf("prompts are processed whole, %s tokens at once, as transformers' generate does", text.Grouped(n))
	if o.searches() > 0 {
		return []string{note + ": --prefill-chunk says how servers cut them"}
	}
	cut := o
	cut.chunk = piece
	if less, err := cut.estimate(name); err == nil && less.Needs() < r.Needs() {
		note += fmt.Sprintf("; servers cut them: with --prefill-chunk %d it needs %v at most", piece, less.Needs())
	}
	return []string{note}
}

// assumed returns the flags that say what was assumed.
func (e *estimated) assumed() []string {
	o, r := e.options, e.Report
	if len(r.Inputs) == 0 {
		return nil
	}
	var flags []string
	assume := func(given bool, flag, value string) {
		if !given && value != "" && !slices.Contains(e.engineFlags(), flag) {
			flags = append(flags, flag, value)
		}
	}
	length, image, frames := "", "", ""
	switch shape := e.lastText(); {
	case o.serve:
		length = strconv.Itoa(e.Context)
	case len(shape) == 2:
		length = strconv.Itoa(shape[1])
	case len(shape) == 4 && shape[1] == 3 && shape[2] == shape[3]:
		image = strconv.Itoa(shape[2])
	}
	if e.side > 0 {
		image = strconv.Itoa(e.side)
	}
	if e.Frames > 0 {
		frames = strconv.Itoa(e.Frames)
	}
	assume(o.batch > 0 || o.maxBatch, "--batch", "1")
	assume(o.seq > 0 || o.maxContext, "--seq", length)
	assume(o.image > 0, "--image", image)
	assume(o.frames > 0, "--frames", frames)
	if e.sized {
		assume(o.images.size != pixels{}, "--image-size", usualImage)
	}
	if e.Sounds > 0 {
		assume(o.sounds.seconds > 0, "--seconds", usualSeconds)
	}
	if o.train {
		assume(o.flagSet.Changed("optimizer"), "--optimizer", o.optimizer)
	}
	assume(o.dtype != "" || o.autocast != "" || o.engine.isLlama() || o.quantize, "--dtype", e.published)
	return append(flags, e.engineFlags()...)
}

// engineFlags returns the flags that have the engine's defaults.
func (e *estimated) engineFlags() []string {
	var flags []string
	for _, d := range e.options.engine.defaults {
		flags = append(flags, flagsOf(e.options.flagSet, d.Flag, d.Value)...)
	}
	return flags
}

// assumption lists what was assumed, and says what of it the engine has by default.
func (e *estimated) assumption() string {
	o, by := e.options, e.engineFlags()
	all := strings.Join(e.Assumed[:len(e.Assumed)-len(by)], " ")
	if len(by) == 0 {
		return all
	}
	if o.engine.Name == "" {
		return strings.Join(e.Assumed, " ")
	}
	said := fmt.Sprintf("%s by default of %s %s", strings.Join(by, " "), o.engine.Title, cmp.Or(o.engine.release, o.engine.Latest))
	if all != "" {
		said = all + "; " + said
	}
	return said
}

// lastText returns the shape of what a decoder reads, or of a model's only input.
func (e *estimated) lastText() alloc.Shape {
	if e.Images+e.Sounds > 0 { // the images and sounds follow the text
		return e.Report.Inputs[0]
	}
	return e.Report.Inputs[len(e.Report.Inputs)-1]
}

func (e estimated) write(w io.Writer) {
	r, m := e.Report, e.Report.Memory()
	name := r.Name
	if name == "" {
		name = "model"
	}
	fmt.Fprintf(w, "%s: %s parameters, %v%s%s%s%s\n", name, text.Grouped(r.Params.Count), r.Params.Bytes, e.asPublished(), e.inputOf(), e.videoOf(), promptOf(e))
	e.writeFound(w)
	if e.options.detail {
		e.writeDetail(w, m)
	} else {
		e.writeAnswer(w, m)
	}
	e.writeNotes(w, m)
	e.writeRemedies(w)
	if e.Measured != nil {
		e.Measured.write(w, e.options.detail)
	}
}

// writeFound prints the results of flags that search.
func (e estimated) writeFound(w io.Writer) {
	if e.Batch > 0 {
		fmt.Fprintf(w, "The largest batch that fits is %s.\n", text.Grouped(e.Batch))
	}
	if e.options.maxContext && e.Needs <= e.Budget {
		fmt.Fprintf(w, "The largest context length that fits is %s tokens.\n", text.Grouped(e.Context))
	}
	switch {
	case e.Replicas > 0:
		fmt.Fprintf(w, "The fewest replicas with which it fits are %d.\n", e.Replicas)
	case e.options.training.minReplicas:
		fmt.Fprintf(w, "It fits with no number of replicas: these are the values of one of %d.\n", maxReplicas)
	}
	if e.options.llama.maxLayers && e.Needs <= e.Budget {
		fmt.Fprintf(w, "The most layers that fit on the GPU are %d of %d.\n", e.Report.GPULayers, e.Report.ModelLayers)
	}
	if e.Quantization != "" {
		fmt.Fprintf(w, "Quantized to %s.\n", e.Quantization)
	}
}

// part is something that takes memory.
type part struct {
	name string
	size alloc.Bytes
}

// parts returns what the tensors at the peak are for, without empty parts.
func (e estimated) parts(m estimate.Memory) []part {
	both, keys, values := m.Keys+m.Values, alloc.Bytes(0), alloc.Bytes(0)
	if m.Values > 0 && m.Keys != m.Values {
		both, keys, values = 0, m.Keys, m.Values
	}
	all := []part{
		{"weights", m.Weights}, {"buffers", m.Buffers}, {"master weights", m.Master}, {"gradients", m.Gradients},
		{"optimizer", m.Optimizer}, {"input", m.Input}, {"keys and values", both}, {"keys", keys}, {"values", values}, {"states of fixed size", m.Cache - m.Keys - m.Values}, {"buckets", m.Buckets},
		{"saved for backward", m.Saved}, {e.transient(), m.Transient},
	}
	return slices.DeleteFunc(all, func(p part) bool { return p.size == 0 })
}

// writeAnswer prints what the model needs, the upper bound, the GPU that is enough, and the five
// largest parts.
func (e estimated) writeAnswer(w io.Writer, m estimate.Memory) {
	t := cli.NewTable(w, 1, e.title(), "Size")
	if len(e.Report.Inputs) == 0 { // what runs is unknown, and so is what it needs
		for _, p := range e.parts(m) {
			p.name = strings.Replace(p.name, "weights", "weights alone", 1)
			t.AppendRow(table.Row{p.name, p.size})
		}
		t.Render()
		return
	}
	needs, f := m.Peak.Bytes, m.Footprint
	if f.Needed.Bytes > 0 {
		needs = f.Needed.Bytes
	}
	t.AppendRow(table.Row{"it needs", needs})
	t.AppendRow(table.Row{"  at most", atMost(e.Needs)})
	if f.Needed.Bytes > 0 && e.Needs != estimate.Unbounded {
		e.writeGPU(t)
	}
	if m.Host > 0 {
		t.AppendRow(table.Row{"in the memory of the CPU", m.Host})
	}
	t.AppendSeparator()
	parts := append(e.parts(m), part{"CUDA context", f.Context.Bytes})
	if cached := f.Needed.Bytes - f.Context.Bytes - m.Peak.Bytes; cached > 0 {
		parts = append(parts, part{"rounding, workspaces and cache", cached})
	}
	slices.SortStableFunc(parts, func(a, b part) int { return cmp.Compare(b.size, a.size) })
	const most = 5
	for _, p := range parts[:min(most, len(parts))] {
		if p.size > 0 {
			t.AppendRow(table.Row{p.name, p.size})
		}
	}
	t.Render()
}

// writeGPU adds the GPU that is enough: that of --gpu or --fits, else the smallest usual one.
func (e estimated) writeGPU(t table.Writer) {
	g, ok := gpuNamed(cmp.Or(e.options.gpu, e.options.fitsGPU))
	if ok && e.Needs > g.memory {
		t.AppendRow(table.Row{"  more than " + g.title + " has", g.memory})
		ok = false
	}
	if !ok {
		g, ok = smallestGPU(e.Needs)
	}
	if ok {
		t.AppendRow(table.Row{"  so it runs on " + g.title, g.memory})
	} else {
		t.AppendRow(table.Row{"  more than any usual GPU has", ""})
	}
}

func (e estimated) title() string {
	switch e.Mode {
	case "train":
		return "Training"
	case "serve":
		return "Serving"
	}
	return "Inference"
}

// writeDetail prints what all memory at the peak is for, and what a device then shows as used.
func (e estimated) writeDetail(w io.Writer, m estimate.Memory) {
	t := cli.NewTable(w, 1, "Memory at the peak, "+e.Mode, "Size")
	for _, p := range e.parts(m) {
		t.AppendRow(table.Row{p.name, p.size})
	}
	t.AppendSeparator()
	t.AppendRow(table.Row{"peak", m.Peak.Bytes})
	f := m.Footprint
	if f.Device.Bytes == 0 && m.Peak.Upper > m.Peak.Bytes {
		t.AppendRow(table.Row{"  at most", atMost(e.Upper)})
	}
	if f.Device.Bytes > 0 {
		t.AppendSeparator()
		if !e.options.engine.isLlama() {
			t.AppendRow(table.Row{"allocated: the peak in blocks", f.Allocated.Bytes})
			t.AppendRow(table.Row{"  at most", atMost(f.Allocated.Upper)})
			t.AppendRow(table.Row{"reserved by the allocator", f.Reserved.Bytes})
			t.AppendRow(table.Row{"  at most", atMost(f.Reserved.Upper)})
		}
		t.AppendRow(table.Row{"CUDA context", f.Context.Bytes})
		t.AppendRow(table.Row{"nvidia-smi shows", f.Device.Bytes})
		t.AppendRow(table.Row{"  at least", f.Device.Lower})
		t.AppendRow(table.Row{"  at most", atMost(f.Device.Upper)})
		t.AppendSeparator()
		t.AppendRow(table.Row{"smallest device that it runs on", f.Needed.Bytes})
		t.AppendRow(table.Row{"  at most", atMost(e.Needs)})
	}
	if m.Host > 0 {
		t.AppendRow(table.Row{"memory of the CPU", m.Host})
	}
	t.Render()
}

// writeNotes prints where the peak is, and the notes about the values.
func (e estimated) writeNotes(w io.Writer, m estimate.Memory) {
	if m.PeakAt != "" && !e.options.engine.isLlama() && e.options.detail {
		fmt.Fprintf(w, "The peak is at %s.\n", m.PeakAt)
	}
	if len(e.Assumed) > 0 {
		fmt.Fprintf(w, "Assumed, as not given: %s\n", e.assumption())
	}
	if len(e.Report.NotRead) > 0 {
		fmt.Fprintf(w, "Not read: %s\n", strings.Join(e.Report.NotRead, ", "))
	}
	writeBounds(w, e.Report, m, e.options.detail)
	for _, note := range e.Report.Notes {
		fmt.Fprintf(w, "Note: %s\n", note)
	}
	switch {
	case e.Fits == nil || !*e.Fits:
	case len(e.Report.Inputs) == 0:
		fmt.Fprintf(w, "Its weights fit in %s.\n", e.options.budget())
	default:
		fmt.Fprintf(w, "It fits in %s.\n", e.options.budget())
	}
	if !e.options.detail {
		fmt.Fprintln(w, "--detail prints all parts, and what nvidia-smi will show.")
	}
}

// transient returns the name of the memory that no operation keeps.
func (e estimated) transient() string {
	if e.options.engine.isLlama() {
		return "compute buffer"
	}
	return "transient"
}

// asPublished says in what quantized weights are, if they count so.
func (e estimated) asPublished() string {
	o := e.options
	switch {
	case e.quantized == "":
		return ""
	case o.engine.isLlama() && o.loss.base != "":
		return " (" + e.quantized + ")"
	case o.train || o.dtype != "" || o.autocast != "" || o.loss.base != "" || o.quantize || o.engine.isLlama():
		return ""
	}
	return " (as published: " + e.quantized + ")"
}

// videoOf says which videos the model makes.
func (e estimated) videoOf() string {
	if e.Frames == 0 || len(e.Report.Inputs) == 0 {
		return ""
	}
	frames := "frames"
	if e.Frames == 1 {
		frames = "frame"
	}
	return fmt.Sprintf(", %d %s of %d x %d pixels", e.Frames, frames, e.side, e.side)
}

// imagesOf says how many images the model makes, and of which size.
func (e estimated) imagesOf() string {
	n := e.Report.Inputs[0][0]
	said := fmt.Sprintf(", %s of %s x %s pixels", text.Grouped(n)+many(n, " image", " images"), text.Grouped(e.side), text.Grouped(e.side))
	if e.options.image == 0 {
		said += " (assumed)"
	}
	return said
}

// inputOf says what the model reads: how many texts of how many tokens, and whether that number is assumed.
func (e estimated) inputOf() string {
	o, r := e.options, e.Report
	if len(r.Inputs) == 0 {
		return ", no input: --batch and --seq give its activations"
	}
	if e.side > 0 && e.Frames == 0 {
		return e.imagesOf()
	}
	said := ""
	if shape := r.Inputs[0]; len(shape) != 2 {
		said = fmt.Sprintf(", input %v", shape)
		if ofImages := len(shape) == 3 || len(shape) == 4; ofImages && len(r.Inputs) == 1 && o.image == 0 && e.Frames == 0 {
			said += " (assumed)"
		}
	}
	shape := e.lastText()
	if len(shape) != 2 {
		return said
	}
	texts, length, unit := shape[0], shape[1], "tokens"
	if o.serve {
		texts, length = cmp.Or(e.Batch, max(o.batch, 1)), e.Context
	}
	if e.sound {
		unit = "samples"
	}
	said += fmt.Sprintf(", %s x %s %s", text.Grouped(texts), text.Grouped(length), unit)
	if (o.seq == 0 || o.engine.sets("seq")) && !o.maxContext {
		said += " (assumed)"
	}
	return said
}

// writeRemedies prints what would make the model fit.
func (e estimated) writeRemedies(w io.Writer) {
	if e.Fits == nil || *e.Fits || e.options.searches() > 0 || len(e.Report.Inputs) == 0 {
		return
	}
	budget := e.options.budget()
	if len(e.Remedies) == 0 {
		fmt.Fprintf(w, "None of the usual changes makes it fit in %s, nor do two or three of them together.\n", budget)
		if n := e.Nearest; n != nil {
			fmt.Fprintf(w, "The nearest is at most %v with %s:\n   %s\n", n.Needs, n.Says, n.Command)
		}
		return
	}
	fmt.Fprintf(w, "What would make it fit in %s, the cheapest first:\n", budget)
	for i, r := range e.Remedies {
		fmt.Fprintf(w, "%d. at most %v with %s\n   %s\n", i+1, r.Needs, r.Says, r.Command)
	}
}

// promptOf says how many images and sounds stand in each text, and how many of its tokens they take.
func promptOf(e estimated) string {
	return inEach("image", e.Images, e.ImageTokens) + inEach("sound", e.Sounds, e.SoundTokens)
}

func inEach(what string, count, tokens int) string {
	switch count {
	case 0:
		return ""
	case 1:
		return fmt.Sprintf(", 1 %s of %s tokens", what, text.Grouped(tokens))
	}
	return fmt.Sprintf(", %d %ss of %s tokens together", count, what, text.Grouped(tokens))
}
