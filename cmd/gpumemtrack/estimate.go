package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
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
	maxBatch       bool
	maxContext     bool
	weightDecay    bool
}

func estimateCommand(a *app) *cobra.Command {
	var o estimateOptions
	cmd := &cobra.Command{
		Use:   "estimate FILE|ZOO-NAME",
		Short: "Estimate the GPU memory that a model needs",
		Long: `Estimate the GPU memory that a model needs, from its file (safetensors, GGUF,
config.json, or a directory of them; only headers are read) or by its name.

With --fits the exit code says whether the model fits: 0 if the upper bound of what it
needs of a device, with CUDA's context, fits; 3 if it does not, or if only the weights
are known. --json prints one object: "schema", "mode" (inference,
serve or train), "peak_bytes" and
"peak_upper_bytes" of tensors, "reserved_bytes" of PyTorch's allocator,
"device_bytes" and "device_upper_bytes" that nvidia-smi would show,
"needed_upper_bytes" that --fits compares, "host_bytes" that --offload holds in the
memory of the CPU, with --fits also "budget_bytes" and
"fits", with --best-quantization "quantization", with --max-batch "batch", with
--max-context "context", and "report" with everything that is known, as the fields of estimate.Report in Go.

Known models:
` + text.WrapSoft(strings.Join(zoo.Names(), ", "), 78) + `

Known families of a config.json (model_type):
` + text.WrapSoft(strings.Join(checkpoint.Families(), ", "), 78) + `
Of other families --serve tells the keys and values alone, by the config's own numbers.`,
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
	flags.BoolVar(&o.weightDecay, "weight-decay", false, "the optimizer has a weight decay, for which SGD and Adam copy the gradients")
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
	flags.BoolVar(&o.maxBatch, "max-batch", false, "with --fits: take the largest batch that fits")
	flags.BoolVar(&o.maxContext, "max-context", false, "with --fits and --serve: take the most tokens that fit")
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
	if alone, ok := errors.AsType[*cacheAlone](err); ok {
		return a.cacheAlone(alone, o)
	}
	if err == nil && (o.maxBatch || o.maxContext) {
		report, err = o.largest(name, options, report, &e)
	}
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
