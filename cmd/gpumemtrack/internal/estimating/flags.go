package estimating

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
	"github.com/gpumemtrack/gpumemtrack/internal/engines"
)

type estimateOptions struct {
	args    []string         // the command's arguments
	flagSet *pflag.FlagSet   // what they were parsed by
	parsed  *estimateOptions // where it puts the values of flags

	batch, seq int
	dtype      string
	optimizer  string
	train      bool
	serve      bool
	fits       alloc.Bytes
	fitsGPU    string // the GPU that --fits names, if it does
	fitsTyped  string // the value of --fits
	detail     bool
	measured   string // the file of a recorded run
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
	autoawq, torchao           string

	chunk          int // tokens of a prompt that run at once
	batched        int // tokens of all prompts that run at once
	microBatch     int
	flashAttention string // one of flashChoices
	quantize       bool
	maxBatch       bool
	maxContext     bool
	weightDecay    bool

	engine     engineOptions
	training   trainingOptions
	parallel   parallelOptions
	loss       lossOptions
	llama      llamaOptions
	pool       poolOptions
	image      int
	decode     estimate.Decoding // of a pipeline's autoencoder
	frames     int
	references int
	images     imageOptions
	sounds     soundOptions
	loading    string
	cpu        bool
}

// flags adds the flags that every kind of model has.
func (o *estimateOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&o.batch, "batch", 0, "`N` inputs in a batch (default 1)")
	flags.IntVar(&o.seq, "seq", 0, "`N` tokens in each text, or samples in each sound")
	flags.StringVar(&o.dtype, "dtype", "", "`TYPE` of the weights (default: as published)")
	flags.BoolVar(&o.json, "json", false, "print JSON")
	flags.BoolVar(&o.detail, "detail", false, "print each part, and what nvidia-smi will show")
	flags.StringVar(&o.measured, "measured", "", "compare with the run that `FILE` recorded: a memory snapshot, a dump, or an engine's log")
	flags.StringVar(&o.gpu, "gpu", "", "`GPU` that it runs on, such as h100 or 4090")
	flags.StringVar(&o.pytorch, "pytorch", "", "`VERSION` of PyTorch, such as 2.4")
	flags.StringVar(&o.transformers, "transformers", "", "`VERSION` of transformers, such as 4.45")
	flags.StringVar(&o.bitsandbytes, "bitsandbytes", "", "`VERSION` of bitsandbytes, such as 0.43.2")
	flags.StringVar(&o.autoawq, "autoawq", "", "`VERSION` of AutoAWQ whose fused modules run the model, such as 0.2.6")
	flags.StringVar(&o.torchao, "torchao", "", "`VERSION` of torchao that quantizes the weights as they are loaded, such as 0.7")
	flags.StringVar(&o.loading, "cuda-loading", "", "`WHEN` CUDA loads its kernels (CUDA_MODULE_LOADING), which decides the size of its context: "+strings.Join(loadings, ", "))
	flags.BoolVar(&o.cpu, "cpu", false, "run on the CPU instead of CUDA")
	flags.IntVar(&o.image, "image", 0, "images of `N` x N pixels")
	flags.IntVar(&o.frames, "frames", 0, "videos of `N` frames, each of --image pixels")
	flags.IntVar(&o.references, "reference-images", 0, "the image that is made refers to `N` others, each of some 1024 x 1024 pixels (FLUX.2, Qwen-Image-Edit)")
	flags.BoolVar(&o.decode.Sliced, "vae-slicing", false, "the autoencoder decodes one image of a batch after another (enable_vae_slicing of diffusers)")
	flags.BoolVar(&o.decode.Tiled, "vae-tiling", false, "it decodes large images in tiles, one after another (enable_vae_tiling)")
}

// trainingFlags adds the flags of training that many need; trainingOptions adds the others.
func (o *estimateOptions) trainingFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.optimizer, "optimizer", "adam", "`OPTIMIZER` for --train: "+strings.Join(optimizers, ", "))
	flags.BoolVar(&o.train, "train", false, "train the model")
	flags.StringVar(&o.form, "optimizer-form", "", "`FORM` of the optimizer's loop: "+strings.Join(forms, ", "))
	flags.BoolVar(&o.inBackward, "optimizer-in-backward", false, "step the optimizer for each gradient as the backward pass computes it, then free the gradient")
	flags.StringVar(&o.offload, "offload", "", "keep `PART` in CPU memory: "+strings.Join(offloads, ", ")+" (bitsandbytes' paged optimizers)")
	flags.BoolVar(&o.weightDecay, "weight-decay", false, "the optimizer uses weight decay, for which SGD and Adam copy the gradients")
	flags.StringVar(&o.zeroGrad, "zero-grad", "", "`WHERE` gradients are cleared: first (before the forward pass), backward (before the backward pass), kept (set to zero, not freed)")
	flags.IntVar(&o.accumulate, "accumulate", 1, "accumulate the gradients of `N` batches before each step")
	flags.StringArrayVar(&o.checkpoints, "checkpoint", nil, "compute the activations of the layers whose paths match `PATTERN` again in the backward pass instead of keeping them: such as 'layers.*', or blocks for all numbered ones")
	flags.IntVar(&o.replicas, "replicas", 1, "data parallel training on `N` devices, each with its own batch")
	flags.IntVar(&o.zero, "zero", 0, "`STAGE` of ZeRO: replicas share the optimizer's states (1), gradients too (2), weights too (3)")
	flags.IntVar(&o.tp, "tp", 1, "tensor parallelism: `N` devices share each layer")
	flags.IntVar(&o.lora, "lora", 0, "train LoRA adapters of rank `R`, as PEFT does, and freeze the rest")
	flags.StringSliceVar(&o.targets, "lora-targets", nil, "with --lora: `NAMES` of the linear layers to adapt, or all-linear (default: PEFT's for the type, or those of the query and the value)")
	flags.StringVar(&o.autocast, "autocast", "", "run under torch.autocast with `TYPE`: bf16 or fp16")
	flags.BoolVar(&o.qlora, "qlora", false, "with --lora: keep the frozen weights in 4 bits (NF4), as --quantize nf4 does")
}

// servingFlags adds the flags for serving a language model.
func (o *estimateOptions) servingFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.BoolVar(&o.serve, "serve", false, "serve a language model: keep keys and values")
	flags.IntVar(&o.chunk, "prefill-chunk", 0, "with --serve: process `N` tokens of each prompt at a time, as transformers' generate can")
	flags.StringVar(&o.kv, "kv", "", "with --serve: element `TYPE` of the KV cache: "+strings.Join(kvTypes, ", ")+", or an element type such as float16; k=q8_0,v=f16 as llama.cpp's --cache-type-k and --cache-type-v")
	flags.IntVar(&o.batched, "max-batched-tokens", 0, "with --serve: process at most `N` tokens of all prompts in a step, as servers do (default 2048; with --engine the engine's)")
	flags.IntVar(&o.microBatch, "ubatch", 512, "llama.cpp with `N` tokens processed at a time")
	flags.StringVar(&o.flashAttention, "flash-attention", "false", "llama.cpp with flash attention, which stores no attention scores; `WHEN` is auto for where the GPU can do it")
	flags.Lookup("flash-attention").NoOptDefVal = "true"
}

// fittingFlags adds the flags that ask what fits.
func (o *estimateOptions) fittingFlags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.Var(newFitsFlag(&o.fits, &o.fitsGPU, &o.fitsTyped), "fits", "exit with 3 if it may need more than `SIZE`, 24GiB or 4090; say what would make it fit")
	flags.BoolVar(&o.weightsOnly, "weights-only", false, "where only the weights are known, let --fits compare them alone")
	flags.BoolVar(&o.quantize, "best-quantization", false, "with --fits: find llama.cpp's widest quantization that fits")
	flags.BoolVar(&o.maxBatch, "max-batch", false, "with --fits: find the largest batch that fits")
	flags.BoolVar(&o.maxContext, "max-context-length", false, "with --fits and --serve: find the largest context length that fits, in tokens")
}

// trainingOptions are settings of training that few need.
type trainingOptions struct {
	attention   string
	output      string
	master      bool
	gradients   string
	frozen      []string
	saves       string
	pipeline    int
	minReplicas bool // find the fewest replicas

	dropout  float64
	adapters string

	noDecay bool
	notes   []string // about flags that have no effect
}

func (o *trainingOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.attention, "attention", "", "`KERNEL` of attention: "+strings.Join(kernels, ", ")+" (default sdpa)")
	flags.StringVar(&o.output, "hold-output", "", "`HOW` long the code keeps the model's output: held (until the next forward pass; the default), in-pass (until the backward pass is over), dropped (once it is used), with-cache (as held, with the keys and values that decoders return)")
	flags.BoolVar(&o.master, "master-weights", false, "with --dtype: keep a float32 copy of the weights too, as Megatron and DeepSpeed do")
	flags.StringVar(&o.gradients, "gradients", "", "element `TYPE` of the gradients (default: that of the weights)")
	flags.StringVar(&o.saves, "checkpoint-saves", "", "with --checkpoint: `WHAT` the layers keep besides their input: products (of matrices), half (of these, as torchtitan's selective op)")
	flags.StringArrayVar(&o.frozen, "freeze", nil, "do not train the layers whose paths match `PATTERN`, such as embed_tokens")
	flags.IntVar(&o.pipeline, "pp", 1, "pipeline parallelism: `N` devices have some of the layers each, and run --accumulate batches one after another")
	flags.BoolVar(&o.minReplicas, "min-replicas", false, "with --fits and --zero: find the fewest replicas with which the model fits")
	flags.Float64Var(&o.dropout, "lora-dropout", 0, "with --lora: dropout `P` of the adapters' input")
	flags.StringVar(&o.adapters, "lora-dtype", "", "with --lora: element `TYPE` of the adapters (default float32, as in PEFT)")
}

// lossOptions are the flags for the loss, and for how frozen linear layers are stored.
type lossOptions struct {
	name   string
	chunks int
	base   string
}

func (o *lossOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringVar(&o.name, "loss", usualLoss, "`LOSS` with which a language model is trained: "+strings.Join(names(losses), ", ")+"; fused is that of torch.compile and Unsloth, cce Apple's cut_cross_entropy, trl that of TRL 1.16, torchtitan chunks whose backward pass follows at once, sum that of all the model returns")
	flags.IntVar(&o.chunks, "loss-chunks", 1, "compute the logits and their loss for `N` parts of the tokens, as torchtune does (with --loss torchtitan 8 unless given)")
	flags.StringVar(&o.base, "quantize", "", "store the weights of linear layers in `FORM`, and do not train them: "+strings.Join(bases, ", ")+" (fp4 takes as much as nf4); of a pipeline PART=FORM,... for some; with --engine llama.cpp that of a GGUF file, such as q4_k_m")
}

// llamaOptions are settings of llama.cpp.
type llamaOptions struct {
	drafts    draftOptions
	layers    int // layers on the GPU
	slots     int // sequences at once, that share the tokens
	maxLayers bool
	projector string
	shares    []float64 // proportions of the GPUs
	oneCache  bool      // one cache for all sequences
	unified   *bool     // the value of oneCache if it was given
}

func (o *llamaOptions) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.IntVar(&o.layers, "gpu-layers", allLayers, "llama.cpp with `N` layers on the GPU and the rest on the CPU, as its --n-gpu-layers: the blocks, and one more for the output")
	flags.BoolVar(&o.maxLayers, "max-gpu-layers", false, "with --fits: find the most of llama.cpp's layers that fit on the GPU")
	flags.IntVar(&o.slots, "slots", 0, "llama.cpp's server with `N` slots, its --parallel, which share the tokens of --ctx-size: here --batch times --seq")
	flags.BoolVar(&o.oneCache, "kv-unified", false, "llama.cpp with one cache for all slots; =false is one for each")
	flags.Float64SliceVar(&o.shares, "tensor-split", nil, "llama.cpp with the layers divided among several GPUs by these `SHARES`, such as 3,1")
	flags.Lookup("gpu-layers").DefValue, flags.Lookup("tensor-split").DefValue = "0", "" // help leaves these out
	o.drafts.flags(cmd)
	flags.StringVar(&o.projector, "mmproj", "", "llama.cpp with the projector in `FILE` too, which turns images into tokens")
}

// completions makes the values of flags known to the shell.
func completions(cmd *cobra.Command) {
	for flag, words := range map[string][]string{
		"engine": engines.Names(), "gpu": gpuNames(), "fits": gpuNames()[:len(gpus)], "cuda-loading": loadings, "sp": sequences, "experts": runs, "sharded-by": sharders, "compute-dtype": usualTypes[1:], "attention": kernels, "hold-output": outputs,
		"optimizer": optimizers, "optimizer-form": forms, "offload": offloads, "zero-grad": zeroGrads, "zero": {"1", "2", "3"},
		"checkpoint": {blocks}, "checkpoint-saves": policies, "loss": names(losses), "quantize": append(slices.Clone(bases), ggufNames()...), "lora-targets": {"all-linear"},
		"dtype": usualTypes, "autocast": usualTypes[1:], "gradients": usualTypes, "lora-dtype": usualTypes, "state-dtype": usualTypes, "kv": slices.Concat(kvTypes, usualTypes),
	} {
		cli.Complete(cmd, flag, words...)
	}
}

// check returns an error for a number that is out of its range.
func (o *estimateOptions) check(given func(flag string) bool) error {
	for name, value := range map[string]int{
		"batch": o.batch, "seq": o.seq, "accumulate": o.accumulate, "ubatch": o.microBatch, "replicas": o.replicas,
		"tp": o.tp, "ep": o.parallel.experts, "pp": o.training.pipeline, "image": o.image, "frames": o.frames, "reference-images": o.references, "images": o.images.count, "sounds": o.sounds.count, "lora": o.lora, "slots": o.llama.slots, "max-batched-tokens": o.batched, "loss-chunks": o.loss.chunks, "prefill-chunk": o.chunk,
	} {
		if given(name) && value < 1 && (name != "images" && name != "sounds" || value < 0) {
			return cli.UsageError("estimate: --%s %d: want 1 or more", name, value)
		}
	}
	if o.zero < 0 || o.zero > 3 {
		return cli.UsageError("estimate: --zero %d: want 1, 2 or 3", o.zero)
	}
	return nil
}

// onlyTraining lists the flags that only training has.
var onlyTraining = []string{
	"optimizer", "optimizer-form", "optimizer-in-backward", "weight-decay", "zero-grad", "hold-output", "accumulate", "checkpoint", "checkpoint-saves",
	"master-weights", "gradients", "freeze", "replicas", "min-replicas", "zero", "lora", "lora-targets", "lora-dropout", "lora-dtype", "qlora", "loss", "loss-chunks", "sp",
	"sharded-by", "shard-ends", "ep", "compute-dtype", "reduce-bucket-size", "overlap-comm", "max-reuse-distance",
}

// onlyServing lists the flags that only serving has.
var onlyServing = append([]string{"kv", "prefill-chunk", "max-batched-tokens", "max-context-length"}, onlyLlama...)

// onlyLlama lists the flags that only llama.cpp has. Giving one selects llama.cpp.
var onlyLlama = append([]string{"ubatch", "flash-attention", "slots", "gpu-layers", "kv-unified", "max-gpu-layers", "mmproj", "tensor-split"}, draftFlags...)

// inferMode chooses training if a flag of training is given, and notes the flags that have no effect.
func (o *estimateOptions) inferMode(given func(flag string) bool) {
	o.training.noDecay = given("weight-decay") && !o.weightDecay
	note := func(text string) { o.training.notes = append(o.training.notes, text) }
	for _, flag := range onlyTraining {
		if !given(flag) {
			continue
		}
		if o.serve {
			note("--" + flag + " has no effect on serving")
		} else {
			o.train = true
		}
	}
	for _, flag := range onlyServing {
		if given(flag) && !o.serve {
			note("--" + flag + " has no effect without --serve")
		}
	}
	if o.train && o.zero > 0 && o.replicas < 2 && !o.training.minReplicas {
		note("--zero has no effect on one replica, which has nothing to share: give --replicas 2 or more")
	}
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

// run is what the engine's defaults depend on.
func (o estimateOptions) run() engines.Run {
	g, _ := gpuNamed(cmp.Or(o.gpu, o.fitsGPU))
	return engines.Run{Mode: o.mode(), GPU: g.name, Memory: cmp.Or(g.memory, o.fits)}
}

// searches returns how many flags are given that search for what fits.
func (o estimateOptions) searches() int {
	n := 0
	for _, asked := range []bool{o.maxBatch, o.maxContext, o.llama.maxLayers, o.training.minReplicas, o.quantize} {
		if asked {
			n++
		}
	}
	return n
}

// budget returns the memory of --fits in words.
func (o estimateOptions) budget() string {
	if g, ok := gpuNamed(o.fitsGPU); ok {
		return fmt.Sprintf("the %v of one %s", o.fits, g.title)
	}
	return o.fits.String()
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

// named returns the choice with this name, in upper or lower case.
func named[T any](choices []choice[T], name string) (value T, ok bool) {
	i := slices.Index(names(choices), strings.ToLower(name))
	if i < 0 {
		return value, false
	}
	return choices[i].value, true
}

// The values of package estimate's settings, which are those of the flags too.
var (
	generations  = []string{"pascal", "volta", "turing", "ampere", "ada", "hopper", "blackwell"}
	forms        = []string{"foreach", "one-by-one", "fused"}
	offloads     = []string{"optimizer", "parameters", "paged"}
	policies     = []string{"products", "half"}
	kernels      = []string{"sdpa", "flash", "eager"}
	outputs      = []string{"held", "in-pass", "dropped", "with-cache"}
	loadings     = []string{"lazy", "eager"}
	flashChoices = []string{"true", "false", flashAuto}
	optimizers   = []string{"adam", "adamw", "adam8bit", "adafactor", "lion", "muon", "sgd", "momentum", "none"}
	zeroGrads    = []string{"first", "backward", "kept"}
)

// parseDType returns an element type by name. It also knows the short names: bf16,
// fp16, fp32.
func parseDType(name string) (alloc.DType, error) {
	if strings.EqualFold(name, "fp8") {
		return alloc.Float8E4M3, nil
	}
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

// usualTypes are the element types that a shell completes; many more are read.
var usualTypes = []string{"float32", "bfloat16", "float16"}

// kvTypes lists the quantized types of keys and values.
var kvTypes = []string{"q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl"}

// flashAuto is llama.cpp's choice: flash attention where the GPU can do it. The upper bound is then without.
const flashAuto = "auto"

// usualLoss is the loss of training unless a flag names one.
const usualLoss = "usual"

// losses lists the values of --loss.
var losses = []choice[nn.NextToken]{
	{usualLoss, nn.NextToken{}}, {"fused", nn.NextToken{Fused: true, Chunks: 1}},
	{"liger", nn.NextToken{InForward: true}}, {"cce", nn.NextToken{NoLogits: true}}, {"trl", nn.NextToken{NoLogits: true, WideGradients: true}},
	{"torchtitan", nn.NextToken{EachBackward: true}}, {sumLoss, nn.NextToken{}}, {"none", nn.NextToken{}},
}

// sumLoss is the sum of the model's output, whose gradient scripts take that only measure time.
const sumLoss = "sum"

var sum = nn.Module{Name: "sum", Run: func(f *nn.Flow, x nn.Tensor) nn.Tensor {
	return f.Op(nn.Op{In: []nn.Tensor{x}, Shape: alloc.Shape{}})
}}

// blocks is the value of --checkpoint for the numbered layers of any model, which hold the most.
const blocks = "blocks"

// pick returns the choice that a flag names, or the zero value if the flag is not given.
func pick[T any](flag, name string, choices []choice[T]) (T, error) {
	value, ok := named(choices, name)
	if name != "" && !ok {
		return value, cli.UsageError("estimate: --%s %s: want one of %s", flag, name, strings.Join(names(choices), ", "))
	}
	return value, nil
}

// oneOf returns the value of a flag, in lower case.
func oneOf(flag, word string, words []string) (string, error) {
	lower := strings.ToLower(word)
	if word != "" && !slices.Contains(words, lower) {
		return "", cli.UsageError("estimate: --%s %s: want one of %s", flag, word, strings.Join(words, ", "))
	}
	return lower, nil
}

// pickType returns the element type that a flag names, or 0 if the flag is not given.
func pickType(flag, name string) (alloc.DType, error) {
	if name == "" {
		return 0, nil
	}
	d, err := parseDType(name)
	if err != nil {
		return 0, cli.UsageError("estimate: --%s: %w", flag, err)
	}
	return d, nil
}

// allLayers is more layers than any model has.
const allLayers = 1 << 20
