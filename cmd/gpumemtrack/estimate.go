package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
	"github.com/gpumemtrack/gpumemtrack/estimate/zoo"
)

type estimateOptions struct {
	batch, seq int
	dtype      string
	optimizer  string
	train      bool
	serve      bool
	fits       alloc.Bytes
	json       bool

	gpu         string
	form        string
	accumulate  int
	checkpoints []string
	zero, tp    int
	weightsOnly bool
	lora        int
	targets     []string
	qlora       bool
	autocast    string
	kv          string
	replicas    int
	inBackward  bool
	offload     string
	zeroGrad    string
	pytorch     string

	llamaCpp       bool
	microBatch     int
	flashAttention bool
	quantize       bool
}

func estimateCommand(a *app) *cobra.Command {
	var o estimateOptions
	cmd := &cobra.Command{
		Use:   "estimate FILE|ZOO-NAME",
		Short: "Estimate the GPU memory that a model needs",
		Long: `Estimate the GPU memory that a model needs, from its file (safetensors, GGUF,
config.json, or a directory of them; only headers are read) or by its name.

With --fits the exit code tells whether the model fits: 0 if what it needs of a device
does, CUDA's context too, at the upper end of its error band, 3 if not or if more than
the weights cannot be known. --json prints one object: "schema", "mode" (inference,
serve or train), "peak_bytes" and
"peak_upper_bytes" of tensors, "reserved_bytes" of PyTorch's allocator,
"device_bytes" and "device_upper_bytes" that nvidia-smi would show,
"needed_upper_bytes" that --fits compares, "host_bytes" that --offload holds in the
memory of the CPU, with --fits also "budget_bytes" and
"fits", with --best-quantization "quantization", and "report" with everything that is known, as the fields of estimate.Report in Go.

Known models:
` + text.WrapSoft(strings.Join(zoo.Names(), ", "), 78),
		Example: `  gpumemtrack estimate resnet50 --train --batch 32
  gpumemtrack estimate llama-3-8b --serve --batch 8 --seq 4096 --fits 24GiB
  gpumemtrack estimate llama-3-8b --serve --seq 8192 --llama-cpp --fits 8GiB --best-quantization
  gpumemtrack estimate model.safetensors --json`,
		Args:      exactly(1, "a model's file, or a known model"),
		ValidArgs: zoo.Names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			for name, value := range map[string]int{"batch": o.batch, "seq": o.seq, "accumulate": o.accumulate, "ubatch": o.microBatch, "replicas": o.replicas, "tp": o.tp} {
				if cmd.Flags().Changed(name) && value < 1 {
					return usageError("estimate: --%s %d: say 1 or more", name, value)
				}
			}
			return a.estimate(args[0], o)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&o.batch, "batch", 0, "`N` inputs at once (default 1)")
	flags.IntVar(&o.seq, "seq", 0, "`N` tokens in each input, for models of text")
	flags.StringVar(&o.dtype, "dtype", "", "element `TYPE`, such as bfloat16 (default: that of the published weights)")
	flags.StringVar(&o.optimizer, "optimizer", "adam", "`OPTIMIZER` for --train: "+strings.Join(optimizerNames(), ", "))
	flags.BoolVar(&o.train, "train", false, "estimate training")
	flags.BoolVar(&o.serve, "serve", false, "estimate serving text: with the keys and values of --batch times --seq tokens, prompts read in pieces of 512")
	flags.Var(sizeFlag{&o.fits}, "fits", "exit with 3 if it needs more than this `SIZE`: 24GiB")
	flags.BoolVar(&o.weightsOnly, "weights-only", false, "let --fits judge the weights alone where nothing else is known")
	flags.BoolVar(&o.json, "json", false, "print JSON")
	flags.StringVar(&o.gpu, "gpu", "", "`GENERATION` of the GPU, for its context: "+strings.Join(generationNames(), ", "))
	flags.StringVar(&o.form, "optimizer-form", "", "`FORM` of the optimizer: "+strings.Join(formNames(), ", "))
	flags.BoolVar(&o.inBackward, "optimizer-in-backward", false, "let the optimizer step as soon as a gradient is there, and free it")
	flags.StringVar(&o.offload, "offload", "", "hold `PART` in the memory of the CPU: "+strings.Join(names(offloads), ", "))
	flags.StringVar(&o.zeroGrad, "zero-grad", "", "`WHERE` gradients are cleared: "+strings.Join(names(zeroGrads), ", "))
	flags.StringVar(&o.pytorch, "pytorch", "", "`VERSION` of PyTorch, such as 2.4")
	flags.IntVar(&o.accumulate, "accumulate", 1, "`N` batches whose gradients are added up before a step")
	flags.StringArrayVar(&o.checkpoints, "checkpoint", nil, "checkpoint the layers whose paths match `PATTERN`, such as 'model.layers.*'")
	flags.IntVar(&o.replicas, "replicas", 1, "`N` devices that train on a batch each")
	flags.IntVar(&o.zero, "zero", 0, "`STAGE` of ZeRO by which replicas divide what they hold, 1 to 3")
	flags.IntVar(&o.tp, "tp", 1, "`N` devices that share each layer")
	flags.IntVar(&o.lora, "lora", 0, "train adapters of rank `R`, as PEFT does, and freeze the rest")
	flags.StringSliceVar(&o.targets, "lora-targets", []string{"q_proj", "v_proj"}, "`NAMES` of the linear layers that get adapters")
	flags.StringVar(&o.kv, "kv", "", "`TYPE` of keys and values with --serve: "+strings.Join(names(kvBlocks), ", ")+", or an element type")
	flags.BoolVar(&o.llamaCpp, "llama-cpp", false, "with --serve: llama.cpp serves it, with a compute buffer in place of PyTorch's allocator")
	flags.IntVar(&o.microBatch, "ubatch", 512, "`N` tokens that llama.cpp computes at once")
	flags.BoolVar(&o.flashAttention, "flash-attention", false, "with --llama-cpp: attention that holds no scores")
	flags.BoolVar(&o.quantize, "best-quantization", false, "with --fits: take llama.cpp's widest quantization that fits")
	flags.StringVar(&o.autocast, "autocast", "", "train or run under torch.autocast to this `TYPE`: bf16 or fp16")
	flags.BoolVar(&o.qlora, "qlora", false, "hold what is frozen in 4 bits (NF4); with --lora")
	complete(cmd, "optimizer", optimizerNames()...)
	complete(cmd, "gpu", generationNames()...)
	complete(cmd, "optimizer-form", formNames()...)
	complete(cmd, "offload", names(offloads)...)
	complete(cmd, "zero-grad", names(zeroGrads)...)
	return cmd
}

func (a *app) estimate(name string, o estimateOptions) error {
	options, err := o.options()
	if err != nil {
		return err
	}
	var e estimated
	report, err := o.report(name, options, &e.Quantization)
	if err != nil {
		return err
	}
	e.Schema, e.Mode, e.Report, e.Peak = estimateSchema, o.mode(), report, report.Peak()
	e.Upper = e.memory().Upper()
	shown := report.Footprint()
	e.Reserved, e.Device, e.DeviceUpper, e.Needs = shown.Reserved.Bytes, shown.Device.Bytes, shown.Device.Upper, report.Needs()
	e.Host = e.memory().Host
	if o.fits > 0 {
		fits := report.Fits(o.fits) && (report.HasInput || o.weightsOnly)
		e.Budget, e.Fits = o.fits, &fits
	}
	if o.json {
		err = json.NewEncoder(a.stdout).Encode(e)
	} else {
		e.write(a.stdout)
	}
	if err == nil && e.Fits != nil && !*e.Fits {
		if !report.HasInput && report.Fits(o.fits) {
			return &codedError{exitUnfit, fmt.Errorf("%s: only its weights are known, %v: what it needs to run is not. With --weights-only they alone are judged", name, report.Peak())}
		}
		return &codedError{exitUnfit, fmt.Errorf("%s does not fit: it may need %v, and %v is available", name, e.Needs, o.fits)}
	}
	return err
}

func (o estimateOptions) mode() string {
	switch {
	case o.train:
		return "train"
	case o.serve:
		return "serve"
	}
	return "inference"
}

// options are those that every kind of model takes.
func (o estimateOptions) options() ([]estimate.Option, error) {
	var options []estimate.Option
	switch {
	case o.train && o.serve:
		return nil, usageError("estimate: either --train or --serve")
	case o.fits < 0:
		return nil, usageError("estimate: --fits cannot be negative")
	case o.llamaCpp && !o.serve:
		return nil, usageError("estimate: --llama-cpp is for --serve")
	case o.quantize && (o.fits == 0 || o.train || o.dtype != ""):
		return nil, usageError("estimate: --best-quantization wants --fits, and neither --train nor --dtype")
	case o.train:
		optimizer, ok := named(optimizers, o.optimizer)
		if !ok {
			return nil, usageError("estimate: --optimizer %s: say one of %s", o.optimizer, strings.Join(optimizerNames(), ", "))
		}
		options = append(options, estimate.Train(optimizer))
	}
	if o.gpu != "" {
		gpu, ok := named(generations, o.gpu)
		if !ok {
			return nil, usageError("estimate: --gpu %s: say one of %s", o.gpu, strings.Join(generationNames(), ", "))
		}
		options = append(options, estimate.RunsOn(estimate.Machine{GPU: gpu}))
	}
	switch {
	case o.lora < 0 || o.qlora && o.lora == 0:
		return nil, usageError("estimate: say the rank of the adapters: --lora 16")
	case o.lora > 0:
		l := estimate.LoRA{Rank: o.lora, Targets: o.targets}
		if o.qlora {
			l.Base = estimate.NF4
		}
		options = append(options, estimate.Adapt(l))
	}
	if o.autocast != "" {
		d, err := parseDType(o.autocast)
		if err != nil {
			return nil, usageError("estimate: --autocast: %w", err)
		}
		options = append(options, estimate.Precision(alloc.Float32), estimate.Autocast(d))
	}
	loop, err := o.loop()
	if err != nil {
		return nil, err
	}
	options = append(options, loop...)
	options = append(options, estimate.Checkpointed(o.checkpoints...), estimate.Shard(estimate.Sharding{Data: o.replicas, ZeRO: o.zero, Tensor: o.tp}))
	if o.dtype != "" {
		d, err := parseDType(o.dtype)
		if err != nil {
			return nil, usageError("estimate: --dtype: %w", err)
		}
		if computes(d) {
			options = append(options, estimate.Precision(d))
		} else { // quantized weights are computed with in another type
			options = append(options, estimate.Weights(d))
		}
	}
	return options, nil
}

// loop is what the flags say of the training loop.
func (o estimateOptions) loop() ([]estimate.Option, error) {
	l := estimate.Loop{MicroBatches: o.accumulate, InBackward: o.inBackward}
	offload := estimate.OffloadNone
	var ok bool
	if l.Form, ok = named(forms, o.form); o.form != "" && !ok {
		return nil, usageError("estimate: --optimizer-form %s: say one of %s", o.form, strings.Join(formNames(), ", "))
	}
	if l.ZeroGrad, ok = named(zeroGrads, o.zeroGrad); o.zeroGrad != "" && !ok {
		return nil, usageError("estimate: --zero-grad %s: say one of %s", o.zeroGrad, strings.Join(names(zeroGrads), ", "))
	}
	if offload, ok = named(offloads, o.offload); o.offload != "" && !ok {
		return nil, usageError("estimate: --offload %s: say one of %s", o.offload, strings.Join(names(offloads), ", "))
	}
	options := []estimate.Option{estimate.Loops(l), estimate.Offloaded(offload)}
	if o.pytorch != "" {
		major, minor, found := strings.Cut(o.pytorch, ".")
		a, errA := strconv.ParseUint(major, 10, 8)
		b, errB := strconv.ParseUint(minor, 10, 8)
		if !found || errA != nil || errB != nil || a == 0 {
			return nil, usageError("estimate: --pytorch %s: say its version as 2.4", o.pytorch)
		}
		options = append(options, estimate.PyTorch(int(a), int(b)))
	}
	return options, nil
}

// choice is a value that has a name on the command line.
type choice[T any] struct {
	name  string
	value T
}

func names[T any](choices []choice[T]) []string {
	all := make([]string, len(choices))
	for i, c := range choices {
		all[i] = c.name
	}
	return all
}

// named is the choice of a name, in any case.
func named[T any](choices []choice[T], name string) (value T, ok bool) {
	i := slices.Index(names(choices), strings.ToLower(name))
	if i < 0 {
		return value, false
	}
	return choices[i].value, true
}

var generations = []choice[estimate.Generation]{
	{"pascal", estimate.Pascal}, {"volta", estimate.Volta}, {"turing", estimate.Turing}, {"ampere", estimate.Ampere},
	{"ada", estimate.Ada}, {"hopper", estimate.Hopper}, {"blackwell", estimate.Blackwell},
}

func generationNames() []string { return names(generations) }

var forms = []choice[estimate.Form]{
	{"foreach", estimate.ForEach}, {"one-by-one", estimate.OneByOne}, {"fused", estimate.Fused},
}

func formNames() []string { return names(forms) }

var offloads = []choice[estimate.Offload]{
	{"optimizer", estimate.OffloadOptimizer}, {"parameters", estimate.OffloadParameters},
}

var zeroGrads = []choice[estimate.ZeroGrad]{
	{"first", estimate.ZeroGradFirst}, {"backward", estimate.ZeroGradBackward}, {"kept", estimate.ZeroGradKept},
}

var optimizers = []choice[estimate.Optimizer]{
	{"adam", estimate.Adam}, {"adamw", estimate.AdamW}, {"adam8bit", estimate.Adam8bit}, {"adafactor", estimate.Adafactor},
	{"lion", estimate.Lion}, {"muon", estimate.Muon}, {"sgd", estimate.SGD}, {"momentum", estimate.Momentum}, {"none", estimate.NoOptimizer},
}

func optimizerNames() []string { return names(optimizers) }

// report estimates a file if there is one of this name, else a known model.
func (o estimateOptions) report(name string, options []estimate.Option, chosen *string) (*estimate.Report, error) {
	if _, err := os.Stat(name); err == nil {
		return o.ofFile(name, options, chosen)
	}
	m, err := zoo.ByName(name)
	if err != nil {
		hint := "`gpumemtrack estimate --help` names those"
		if similar := zoo.Similar(name); len(similar) > 0 {
			hint = "did you mean " + strings.Join(similar, ", ") + "?"
		}
		return nil, fmt.Errorf("%s is neither a file here nor a known model: %s", name, hint)
	}
	return o.ofKnown(m, options, chosen)
}

// best is the report of the widest quantization that fits, whose name goes to chosen. Where none
// does it is that of the narrowest.
func (o estimateOptions) best(layers []estimate.Layer, options []estimate.Option, chosen *string) (*estimate.Report, error) {
	q, report, ok, err := estimate.BestQuantization(layers, o.fits, options...)
	if err != nil || ok {
		*chosen = q.Name
		return report, err
	}
	narrowest := estimate.Quantizations()[0]
	stored, err := narrowest.Stored(layers)
	if err != nil {
		return nil, err
	}
	*chosen = narrowest.Name
	return estimate.Model(layers, append(options, estimate.Stored(stored))...)
}

// buffer is the option for llama.cpp's compute buffer, if it is asked for.
func (o estimateOptions) buffer(tokens int, of func(estimate.LlamaCpp) (alloc.Bytes, error)) ([]estimate.Option, error) {
	if !o.llamaCpp {
		return nil, nil
	}
	n, err := of(estimate.LlamaCpp{Context: max(o.batch, 1) * tokens, Batch: o.microBatch, FlashAttention: o.flashAttention})
	return []estimate.Option{estimate.ComputedIn(n)}, err
}

func (o estimateOptions) ofFile(path string, options []estimate.Option, chosen *string) (*estimate.Report, error) {
	c, err := checkpoint.Open(path)
	if err != nil {
		return nil, err
	}
	input, err := o.fileInput(c)
	switch {
	case err == nil:
		options = append(options, input)
	case o.serve && errors.Is(err, checkpoint.ErrUnknownArchitecture): // there may be a cache
	case o.batch > 0 || o.seq > 0 || o.serve:
		return nil, fmt.Errorf("%s: no input for --batch, --seq and --serve: %w", path, err)
	}
	if o.serve {
		cache, err := c.Cache(max(o.batch, 1), o.tokens(defaultTokens))
		if err != nil {
			return nil, err
		}
		if err := o.cache(&cache, 0); err != nil {
			return nil, err
		}
		options = append(options, estimate.WithKVCache(cache))
		buffer, err := o.buffer(o.tokens(defaultTokens), c.ComputeBuffer)
		if err != nil {
			return nil, err
		}
		options = append(options, buffer...)
	}
	if o.quantize {
		layers, err := c.Layers()
		if err != nil {
			return nil, err
		}
		return o.best(layers, append([]estimate.Option{estimate.Name(c.Name), estimate.Precision(alloc.Float16)}, options...), chosen)
	}
	return c.Report(options...)
}

// fileInput is what the flags say of a file's input, or the usual one.
func (o estimateOptions) fileInput(c *checkpoint.File) (estimate.Option, error) {
	length := o.seq
	if o.serve {
		length = min(o.tokens(defaultTokens), piece)
	}
	input, err := c.Input(max(o.batch, 1), length)
	if errors.Is(err, checkpoint.ErrNoArchitecture) {
		err = fmt.Errorf("%w: put its config.json beside it", err)
	}
	return input, err
}

// defaultTokens is the length of a text where nobody says it.
const defaultTokens = 512

func (o estimateOptions) tokens(usual int) int {
	if o.seq > 0 {
		return o.seq
	}
	return usual
}

// piece is how much of a prompt is read at once when text is served.
const piece = 512

// input is text as the flags want it.
func (o estimateOptions) input(usual int) estimate.Option {
	length := o.tokens(usual)
	if o.serve {
		length = min(length, piece)
	}
	return estimate.Tokens(max(o.batch, 1), length)
}

// parseDType also takes the short names that people type: bf16, fp16, fp32.
func parseDType(name string) (alloc.DType, error) {
	if short := strings.Replace(strings.ToUpper(name), "FP", "F", 1); len(name) < 5 {
		if d, err := alloc.ParseDType(short); err == nil {
			return d, nil
		}
	}
	return alloc.ParseDType(name)
}

// computes reports whether kernels compute in the type.
func computes(d alloc.DType) bool {
	return d == alloc.Float16 || d == alloc.BFloat16 || d == alloc.Float32 || d == alloc.Float64
}

var kvBlocks = []choice[estimate.Blocks]{
	{"q8_0", estimate.Q8_0}, {"q5_1", estimate.Q5_1}, {"q5_0", estimate.Q5_0}, {"q4_1", estimate.Q4_1}, {"q4_0", estimate.Q4_0},
}

// cache sets how keys and values are stored.
func (o estimateOptions) cache(c *estimate.KVConfig, published alloc.DType) error {
	c.DType = o.cacheType(published)
	if o.kv == "" {
		return nil
	}
	var ok bool
	if c.Blocks, ok = named(kvBlocks, o.kv); ok {
		return nil
	}
	d, err := parseDType(o.kv)
	if err != nil {
		return usageError("estimate: --kv %s: say one of %s, or an element type", o.kv, strings.Join(names(kvBlocks), ", "))
	}
	c.DType = d
	return nil
}

// cacheType is the type of keys and values: that in which the model computes; 0 is
// the usual one.
func (o estimateOptions) cacheType(published alloc.DType) alloc.DType {
	if d, err := parseDType(o.dtype); err == nil && computes(d) {
		return d
	}
	return published
}

// ofKnown takes the model's usual input, with another batch or length if asked.
func (o estimateOptions) ofKnown(m zoo.Model, options []estimate.Option, chosen *string) (*estimate.Report, error) {
	usual, err := estimate.Model(m.Layers, m.Input)
	if err != nil {
		return nil, err
	}
	shape := usual.Inputs[0].Clone()
	shape[0] = max(o.batch, 1)
	isText := len(shape) == 2
	input := estimate.InputShape(shape...)
	switch {
	case isText:
		input = o.input(shape[1])
	case o.seq > 0 || o.serve:
		return nil, usageError("estimate: %s takes no text: leave --seq and --serve out", m.Name)
	}
	options = append([]estimate.Option{estimate.Name(m.Title), estimate.Precision(m.DType), input}, options...)
	if o.serve {
		if m.Transformer == nil || m.Transformer.Family.Encoder() {
			return nil, usageError("estimate: %s has no keys and values to keep: leave --serve out", m.Name)
		}
		if most := m.Transformer.Positions; most > 0 && o.tokens(shape[1]) > most {
			return nil, usageError("estimate: %s has %d positions: say --seq %d at most", m.Name, most, most)
		}
		cache := m.Transformer.Cache(shape[0], o.tokens(shape[1]), 0)
		if err := o.cache(&cache, m.DType); err != nil {
			return nil, err
		}
		options = append(options, estimate.WithKVCache(cache))
		buffer, err := o.buffer(o.tokens(shape[1]), m.Transformer.ComputeBuffer)
		if err != nil {
			return nil, err
		}
		options = append(options, buffer...)
	}
	// Layers are made anew: some may be used in one model only.
	again, err := zoo.ByName(m.Name)
	if err != nil {
		return nil, err
	}
	if o.quantize {
		return o.best(again.Layers, options, chosen)
	}
	return estimate.Model(again.Layers, options...)
}

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
		return ", no input: say --batch and --seq for its activations"
	}
	return fmt.Sprintf(", input %v", r.Inputs[0])
}
