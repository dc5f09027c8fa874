package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/table"
	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
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
}

func estimateCommand(a *app) *cobra.Command {
	var o estimateOptions
	cmd := &cobra.Command{
		Use:   "estimate FILE|ZOO-NAME",
		Short: "Estimate the GPU memory that a model needs",
		Long: `Estimate the GPU memory that a model needs, from its file (safetensors, GGUF,
config.json, or a directory of them; only headers are read) or by its name.

With --fits the exit code tells whether the model fits: 0 if its peak does, at the
upper end of its error band, 3 if not. --json prints one object: "schema", "mode"
(inference, serve or train), "peak_bytes", "peak_upper_bytes", with --fits also
"budget_bytes" and "fits", and "report" with everything that is known, as the
fields of estimate.Report in Go.

Known models:
` + text.WrapSoft(strings.Join(zoo.Names(), ", "), 78),
		Example: `  gpumemtrack estimate resnet50 --train --batch 32
  gpumemtrack estimate llama-3-8b --serve --batch 8 --seq 4096 --fits 24GiB
  gpumemtrack estimate model.safetensors --json`,
		Args:      exactly(1, "a model's file, or a known model"),
		ValidArgs: zoo.Names(),
		RunE: func(cmd *cobra.Command, args []string) error {
			for name, value := range map[string]int{"batch": o.batch, "seq": o.seq} {
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
	flags.BoolVar(&o.json, "json", false, "print JSON")
	complete(cmd, "optimizer", optimizerNames()...)
	return cmd
}

// sizeFlag makes alloc.Bytes a flag.
type sizeFlag struct{ *alloc.Bytes }

func (sizeFlag) Type() string { return "size" }

func (s sizeFlag) String() string {
	if s.Bytes == nil || *s.Bytes == 0 {
		return ""
	}
	return s.Bytes.String()
}

func (a *app) estimate(name string, o estimateOptions) error {
	options, err := o.options()
	if err != nil {
		return err
	}
	report, err := o.report(name, options)
	if err != nil {
		return err
	}
	e := estimated{Schema: estimateSchema, Mode: o.mode(), Report: report, Peak: report.Peak()}
	e.Upper = e.memory().Upper()
	if o.fits > 0 {
		fits := report.Fits(o.fits)
		e.Budget, e.Fits = o.fits, &fits
	}
	if o.json {
		err = json.NewEncoder(a.stdout).Encode(e)
	} else {
		e.write(a.stdout)
	}
	if err == nil && e.Fits != nil && !*e.Fits {
		return &codedError{exitUnfit, fmt.Errorf("%s does not fit: it may need %v, and %v are to be had", name, e.Upper, o.fits)}
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
	case o.train:
		optimizer, ok := optimizerNamed(o.optimizer)
		if !ok {
			return nil, usageError("estimate: --optimizer %s: say one of %s", o.optimizer, strings.Join(optimizerNames(), ", "))
		}
		options = append(options, estimate.Train(optimizer))
	}
	if o.dtype != "" {
		d, err := parseDType(o.dtype)
		if err != nil {
			return nil, usageError("estimate: --dtype: %w", err)
		}
		if computes(d) {
			options = append(options, estimate.DType(d))
		} else { // quantized weights are computed with in another type
			options = append(options, estimate.Weights(d))
		}
	}
	return options, nil
}

var optimizers = []struct {
	name      string
	optimizer estimate.Optimizer
}{
	{"adam", estimate.Adam}, {"adamw", estimate.AdamW}, {"adam8bit", estimate.Adam8bit}, {"adafactor", estimate.Adafactor},
	{"sgd", estimate.SGD}, {"momentum", estimate.Momentum}, {"none", estimate.NoOptimizer},
}

func optimizerNames() []string {
	names := make([]string, len(optimizers))
	for i, o := range optimizers {
		names[i] = o.name
	}
	return names
}

func optimizerNamed(name string) (estimate.Optimizer, bool) {
	i := slices.Index(optimizerNames(), strings.ToLower(name))
	if i < 0 {
		return 0, false
	}
	return optimizers[i].optimizer, true
}

// report estimates a file if there is one of this name, else a known model.
func (o estimateOptions) report(name string, options []estimate.Option) (*estimate.Report, error) {
	if _, err := os.Stat(name); err == nil {
		return o.ofFile(name, options)
	}
	m, err := zoo.ByName(name)
	if err != nil {
		hint := "`gpumemtrack estimate --help` names those"
		if similar := zoo.Similar(name); len(similar) > 0 {
			hint = "did you mean " + strings.Join(similar, ", ") + "?"
		}
		return nil, fmt.Errorf("%s is neither a file here nor a known model: %s", name, hint)
	}
	return o.ofKnown(m, options)
}

func (o estimateOptions) ofFile(path string, options []estimate.Option) (*estimate.Report, error) {
	c, err := estimate.Open(path)
	if err != nil {
		return nil, err
	}
	input, err := o.fileInput(c)
	switch {
	case err == nil:
		options = append(options, input)
	case o.batch > 0 || o.seq > 0 || o.serve:
		return nil, fmt.Errorf("%s: no input for --batch, --seq and --serve: %w", path, err)
	}
	if o.serve {
		cache, err := c.Cache(max(o.batch, 1), o.tokens(defaultTokens))
		if err != nil {
			return nil, err
		}
		cache.DType = o.cacheType(0)
		options = append(options, estimate.WithKVCache(cache))
	}
	return c.Report(options...)
}

// fileInput is what the flags say of a file's input, or the usual one.
func (o estimateOptions) fileInput(c *estimate.Checkpoint) (estimate.Option, error) {
	length := o.seq
	if o.serve {
		length = min(o.tokens(defaultTokens), piece)
	}
	input, err := c.Input(max(o.batch, 1), length)
	if errors.Is(err, estimate.ErrNoArchitecture) {
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

// cacheType is the type of keys and values: that in which the model computes; 0 is
// the usual one.
func (o estimateOptions) cacheType(published alloc.DType) alloc.DType {
	if d, err := parseDType(o.dtype); err == nil && computes(d) {
		return d
	}
	return published
}

// ofKnown takes the model's usual input, with another batch or length if asked.
func (o estimateOptions) ofKnown(m zoo.Model, options []estimate.Option) (*estimate.Report, error) {
	usual, err := estimate.Model(m.Layers, m.Input)
	if err != nil {
		return nil, err
	}
	shape := usual.Inputs[0].Clone()
	shape[0] = max(o.batch, 1)
	isText := len(shape) == 2
	input := estimate.Input(shape...)
	switch {
	case isText:
		input = o.input(shape[1])
	case o.seq > 0 || o.serve:
		return nil, usageError("estimate: %s takes no text: leave --seq and --serve out", m.Name)
	}
	options = append([]estimate.Option{estimate.Name(m.Title), estimate.DType(m.DType), input}, options...)
	if o.serve {
		if m.Transformer == nil || m.Transformer.Family == estimate.BERT {
			return nil, usageError("estimate: %s has no keys and values to keep: leave --serve out", m.Name)
		}
		if most := m.Transformer.Positions; most > 0 && o.tokens(shape[1]) > most {
			return nil, usageError("estimate: %s has %d positions: say --seq %d at most", m.Name, most, most)
		}
		cache := m.Transformer.Cache(shape[0], o.tokens(shape[1]), o.cacheType(m.DType))
		options = append(options, estimate.WithKVCache(cache))
	}
	// Layers are made anew: some may be used in one model only.
	again, err := zoo.ByName(m.Name)
	if err != nil {
		return nil, err
	}
	return estimate.Model(again.Layers, options...)
}

const estimateSchema = "gpumemtrack.estimate/1"

// estimated is what --json prints.
type estimated struct {
	Schema string           `json:"schema"`
	Mode   string           `json:"mode"`
	Peak   alloc.Bytes      `json:"peak_bytes"`
	Upper  alloc.Bytes      `json:"peak_upper_bytes"`
	Budget alloc.Bytes      `json:"budget_bytes,omitempty"`
	Fits   *bool            `json:"fits,omitempty"`
	Report *estimate.Report `json:"report"`
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
	t := newTable(w, 1, "Memory at the peak, "+e.Mode, "Size")
	for _, part := range []struct {
		name string
		size alloc.Bytes
	}{
		{"weights", m.Weights}, {"buffers", m.Buffers}, {"master weights", m.Master}, {"gradients", m.Gradients},
		{"optimizer", m.Optimizer}, {"input", m.Input}, {"keys and values", m.Cache},
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
