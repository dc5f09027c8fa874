// Package estimating has the command that estimates what a model needs. It turns flags into options of
// package estimate and prints the report; the figures are all that package's.
package estimating

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jedib0t/go-pretty/v6/text"
	"github.com/spf13/cobra"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
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

	gpu                        string
	form                       string
	accumulate                 int
	checkpoints                []string
	zero, tp                   int
	weightsOnly                bool
	lora                       int
	targets                    []string
	qlora                      bool
	autocast                   string
	kv                         string
	replicas                   int
	inBackward                 bool
	offload                    string
	zeroGrad                   string
	pytorch                    string
	transformers, bitsandbytes string

	chunk          int // of a prompt
	llamaCpp       bool
	microBatch     int
	flashAttention bool
	quantize       bool
	maxBatch       bool
	maxContext     bool
	weightDecay    bool

	training trainingOptions
	loss     lossOptions
	llama    llamaOptions
	image    int
	loading  string
	cpu      bool
}

// Command is gpumemtrack estimate.
func Command(a *cli.App) *cobra.Command {
	var o estimateOptions
	cmd := &cobra.Command{
		Use:   "estimate FILE|MODEL",
		Short: "Estimate the GPU memory that a model needs",
		Long:  help(),
		Example: `  gpumemtrack estimate resnet50 --train --batch 32
  gpumemtrack estimate llama-3-8b --serve --batch 8 --seq 4096 --fits 24GiB
  gpumemtrack estimate llama-3-8b --serve --llama-cpp --fits 8GiB \
    --best-quantization
  gpumemtrack estimate model.safetensors --json`,
		Args: cli.Exactly(1, "a model's file, or a known model"),
		ValidArgsFunction: func(_ *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
			others := func(name string) bool { return !strings.HasPrefix(name, begun) }
			return slices.DeleteFunc(zoo.Names(), others), cobra.ShellCompDirectiveDefault
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := o.check(cmd.Flags().Changed); err != nil {
				return err
			}
			o.settle(cmd.Flags().Changed)
			return runEstimate(a, args[0], o)
		},
	}
	o.flags(cmd)
	o.trainingFlags(cmd)
	o.servingFlags(cmd)
	o.fittingFlags(cmd)
	o.training.flags(cmd)
	o.loss.flags(cmd)
	o.llama.flags(cmd)
	cmd.AddCommand(listCommand(a))
	cli.Heading(cmd, "Flags of training; each of them chooses it", append(ofTraining, "train")...)
	cli.Heading(cmd, "Flags of serving", "serve", "kv", "prompt-chunk")
	cli.Heading(cmd, "Flags of llama.cpp", "llama-cpp", "ubatch", "flash-attention", "gpu-layers", "tensor-split", "mmproj")
	cli.Heading(cmd, "Flags of what fits", "fits", "weights-only", "max-batch", "max-context", "max-gpu-layers", "min-replicas", "best-quantization")
	return cmd
}

// help is the description of the command, with all models and families that are known.
func help() string {
	return `Estimate the GPU memory that a model needs, by its name or from its files
(safetensors, GGUF, config.json, diffusers' model_index.json, or a directory of
them). Of the weights only headers are read.

With --fits the exit code says whether the model fits: 0 if the upper bound of
what it needs, with the CUDA context, is at most that size; 3 if it is more, or
if only the weights are known.

--json prints one object:
  schema              gpumemtrack.estimate/1
  mode                inference, serve or train
  peak_bytes          tensors at the peak
  peak_upper_bytes    the upper bound of that
  allocated_bytes     what torch.cuda.max_memory_allocated would return
  allocated_upper_bytes
                      the upper bound of that
  reserved_bytes      what PyTorch's allocator reserves
  reserved_upper_bytes
                      the upper bound of that
  device_bytes        what nvidia-smi would show
  device_upper_bytes  the upper bound of that
  needed_upper_bytes  what --fits compares
  host_bytes          what --offload and --gpu-layers leave in CPU memory
  budget_bytes, fits  with --fits: the size, and whether the model fits
  quantization        with --best-quantization: its name
  batch               with --max-batch: the largest batch
  context             with --serve: tokens of each sequence; with
                      --max-context the most that fit
  replicas            with --min-replicas: the fewest with which it fits
  gpu_layers          of llama.cpp: its layers on the GPU; with
                      --max-gpu-layers the most that fit
  report              all details, as the fields of estimate.Report in Go
Of a family that is not known, --serve with the config.json alone prints
cache_bytes, what its keys and values take, and no figures of the rest.

gpumemtrack estimate list prints the models that are known by name.

Known families of a config.json (model_type, or _class_name of diffusers); of
others, --serve tells the size of the keys and values alone:
` + wrapped(checkpoint.Families())
}

// check says which number is out of its range.
func (o *estimateOptions) check(given func(flag string) bool) error {
	for name, value := range map[string]int{
		"batch": o.batch, "seq": o.seq, "accumulate": o.accumulate, "ubatch": o.microBatch, "replicas": o.replicas,
		"tp": o.tp, "pp": o.training.pipeline, "image": o.image, "lora": o.lora, "loss-chunks": o.loss.chunks, "prompt-chunk": o.chunk,
	} {
		if given(name) && value < 1 {
			return cli.UsageError("estimate: --%s %d: want 1 or more", name, value)
		}
	}
	if o.zero < 0 || o.zero > 3 {
		return cli.UsageError("estimate: --zero %d: want 1, 2 or 3", o.zero)
	}
	return nil
}

// flags adds the flags that every kind of model takes.
func (o *estimateOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&o.batch, "batch", 0, "`N` inputs in a batch (default 1)")
	flags.IntVar(&o.seq, "seq", 0, "`N` tokens in each input of a language model")
	flags.StringVar(&o.dtype, "dtype", "", "element `TYPE`, such as bfloat16 (default: the published weights' type)")
	flags.BoolVar(&o.json, "json", false, "print JSON")
	flags.StringVar(&o.gpu, "gpu", "", "`GENERATION` of the GPU, which decides the size of the CUDA context: "+strings.Join(names(generations), ", "))
	flags.StringVar(&o.pytorch, "pytorch", "", "`VERSION` of PyTorch, such as 2.4")
	flags.StringVar(&o.transformers, "transformers", "", "`VERSION` of transformers, such as 4.45")
	flags.StringVar(&o.bitsandbytes, "bitsandbytes", "", "`VERSION` of bitsandbytes, such as 0.43.2")
	flags.StringVar(&o.loading, "cuda-loading", "", "`WHEN` CUDA loads its kernels, which decides the size of its context: "+strings.Join(names(loadings), ", "))
	flags.BoolVar(&o.cpu, "cpu", false, "run on the CPU instead of CUDA")
	flags.IntVar(&o.image, "image", 0, "images of `N` x N pixels, which a convolutional model reads or a diffusion model makes")
	cli.Complete(cmd, "gpu", names(generations)...)
	cli.Complete(cmd, "cuda-loading", names(loadings)...)
	cli.Complete(cmd, "dtype", usualTypes...)
}

// trainingFlags adds those of training that many need; trainingOptions has the others.
func (o *estimateOptions) trainingFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.optimizer, "optimizer", "adam", "`OPTIMIZER` for --train: "+strings.Join(names(optimizers), ", "))
	flags.BoolVar(&o.train, "train", false, "estimate training, as flags that are about training alone also do")
	flags.StringVar(&o.form, "optimizer-form", "", "`FORM` of the optimizer's loop: "+strings.Join(names(forms), ", "))
	flags.BoolVar(&o.inBackward, "optimizer-in-backward", false, "step the optimizer for each gradient as the backward pass computes it, then free the gradient")
	flags.StringVar(&o.offload, "offload", "", "keep `PART` in CPU memory: "+strings.Join(names(offloads), ", "))
	flags.BoolVar(&o.weightDecay, "weight-decay", false, "the optimizer uses weight decay, for which SGD and Adam copy the gradients")
	flags.StringVar(&o.zeroGrad, "zero-grad", "", "`WHERE` gradients are cleared: "+strings.Join(names(zeroGrads), ", "))
	flags.IntVar(&o.accumulate, "accumulate", 1, "accumulate the gradients of `N` batches before each step")
	flags.StringArrayVar(&o.checkpoints, "checkpoint", nil, "compute the activations of the layers whose paths match `PATTERN` again in the backward pass instead of keeping them: such as 'layers.*', or blocks for all numbered ones")
	flags.IntVar(&o.replicas, "replicas", 1, "data parallel training on `N` devices, each with its own batch")
	flags.IntVar(&o.zero, "zero", 0, "`STAGE` of ZeRO, 1 to 3: what the replicas share instead of each keeping a copy")
	flags.IntVar(&o.tp, "tp", 1, "tensor parallelism: `N` devices share each layer")
	flags.IntVar(&o.lora, "lora", 0, "train LoRA adapters of rank `R`, as PEFT does, and freeze the rest")
	flags.StringSliceVar(&o.targets, "lora-targets", nil, "with --lora: `NAMES` of the linear layers to adapt, or all-linear (default: those of the query and the value, as in PEFT)")
	flags.StringVar(&o.autocast, "autocast", "", "run under torch.autocast with `TYPE`: bf16 or fp16")
	flags.BoolVar(&o.qlora, "qlora", false, "with --lora: keep the frozen weights in 4 bits (NF4)")
	cli.Complete(cmd, "optimizer", names(optimizers)...)
	cli.Complete(cmd, "optimizer-form", names(forms)...)
	cli.Complete(cmd, "offload", names(offloads)...)
	cli.Complete(cmd, "checkpoint", blocks)
	cli.Complete(cmd, "lora-targets", estimate.AllLinear)
	cli.Complete(cmd, "zero-grad", names(zeroGrads)...)
	cli.Complete(cmd, "autocast", usualTypes[1:]...)
	cli.Complete(cmd, "zero", "1", "2", "3")
}

// servingFlags adds those of serving a language model.
func (o *estimateOptions) servingFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&o.serve, "serve", false, "estimate serving a language model: a KV cache for --batch times --seq tokens, and prompts of as many")
	flags.IntVar(&o.chunk, "prompt-chunk", 0, "with --serve: process prompts `N` tokens at a time, as servers do; without it whole, as transformers' generate does")
	flags.StringVar(&o.kv, "kv", "", "with --serve: element `TYPE` of the KV cache: "+strings.Join(names(kvBlocks), ", ")+", or an element type such as float16")
	flags.BoolVar(&o.llamaCpp, "llama-cpp", false, "with --serve: estimate llama.cpp, which has a compute buffer instead of PyTorch's allocator")
	flags.IntVar(&o.microBatch, "ubatch", 512, "with --llama-cpp: process `N` tokens at a time")
	flags.BoolVar(&o.flashAttention, "flash-attention", false, "with --llama-cpp: use flash attention, which stores no attention scores: the default of releases since September 2025")
	cli.Complete(cmd, "kv", append(names(kvBlocks), usualTypes...)...)
}

// fittingFlags adds those that ask what fits.
func (o *estimateOptions) fittingFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(cli.SizeFlag(&o.fits), "fits", "exit with 3 if the model needs more than `SIZE`, such as 24GiB")
	flags.BoolVar(&o.weightsOnly, "weights-only", false, "let --fits compare the weights alone if only they are known")
	flags.BoolVar(&o.quantize, "best-quantization", false, "with --fits: find llama.cpp's widest quantization that fits")
	flags.BoolVar(&o.maxBatch, "max-batch", false, "with --fits: find the largest batch that fits")
	flags.BoolVar(&o.maxContext, "max-context", false, "with --fits and --serve: find the longest context that fits")
}

func runEstimate(a *cli.App, name string, o estimateOptions) error {
	options, err := o.options()
	if err != nil {
		return err
	}
	e := estimated{options: o}
	report, err := o.report(name, options, &e)
	if alone, ok := errors.AsType[*cacheAlone](err); ok {
		return writeCacheAlone(a, alone, o)
	}
	switch {
	case err != nil:
	case o.maxBatch || o.maxContext:
		report, err = o.largest(name, options, report, &e)
	case o.training.fewest:
		report, e.Replicas, err = o.fewest(name, options)
	case o.llama.maxLayers:
		report, err = o.mostLayers(name, options, report)
	}
	if err != nil {
		return err
	}
	e.Schema, e.Mode, e.Report, e.Peak = estimateSchema, o.mode(), report, report.Peak()
	report.Notes = slices.Concat(report.Notes, e.notes, o.training.notes, o.promptNote(report), e.contextNote())
	e.Upper = e.memory().Upper()
	shown := report.Footprint()
	e.Allocated, e.AllocatedUpper, e.ReservedUpper = shown.Allocated.Bytes, shown.Allocated.Upper, shown.Reserved.Upper
	e.Reserved, e.Device, e.DeviceUpper, e.Needs = shown.Reserved.Bytes, shown.Device.Bytes, shown.Device.Upper, report.Needs()
	e.Host, e.GPULayers = e.memory().Host, report.GPULayers
	if o.fits > 0 {
		fits := report.Fits(o.fits) && (report.HasInput || o.weightsOnly)
		e.Budget, e.Fits = o.fits, &fits
	}
	if o.json {
		err = json.NewEncoder(a.Stdout).Encode(e)
	} else {
		e.write(a.Stdout)
	}
	if err == nil && e.Fits != nil && !*e.Fits {
		if !report.HasInput && report.Fits(o.fits) {
			return cli.Exit(cli.ExitUnfit, fmt.Errorf("%s: only its weights are known, %v, not what it needs to run: --weights-only compares the weights alone", name, report.Peak()))
		}
		return cli.Exit(cli.ExitUnfit, fmt.Errorf("%s does not fit: it may need %v, and %v is available", name, e.Needs, o.fits))
	}
	return err
}

// wrapped is names in lines of 78 columns.
func wrapped(names []string) string {
	lines := strings.Split(text.WrapSoft(strings.Join(names, ", "), 78), "\n")
	for i, line := range lines {
		lines[i] = strings.TrimRight(line, " ")
	}
	return strings.Join(lines, "\n")
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
