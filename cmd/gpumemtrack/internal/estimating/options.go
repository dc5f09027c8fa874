package estimating

import (
	"cmp"
	"errors"
	"fmt"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/checkpoint"
	"github.com/gpumemtrack/gpumemtrack/estimate/llamacpp"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
	"github.com/gpumemtrack/gpumemtrack/estimate/serving"
	"github.com/gpumemtrack/gpumemtrack/internal/text"
)

// options returns the options that every kind of model has. The error says which flags contradict
// each other.
func (o estimateOptions) options() ([]estimate.Option, error) {
	var options []estimate.Option
	switch {
	case o.train && o.serve:
		return nil, cli.UsageError("estimate: choose --train or --serve, not both")
	case o.fits < 0:
		return nil, cli.UsageError("estimate: --fits cannot be negative")
	case o.chunk > 0 && o.batched > 0:
		return nil, cli.UsageError("estimate: choose --prefill-chunk, tokens of each text, or --max-batched-tokens, those of all texts")
	case o.sounds.count > 0 && o.engine.isLlama():
		return nil, cli.UsageError("estimate: --sounds is about PyTorch: --mmproj counts the weights of llama.cpp's projector")
	case o.sounds.count == 0 && o.sounds.seconds != 0:
		return nil, cli.UsageError("estimate: --seconds needs --sounds")
	case o.sounds.count > 0 && o.flagSet.Changed("seconds") && !(o.sounds.seconds > 0):
		return nil, cli.UsageError("estimate: --seconds %v: want more than 0", o.sounds.seconds)
	case o.images.count > 0 && o.engine.isLlama():
		return nil, cli.UsageError("estimate: --images is about PyTorch: --mmproj counts the weights of llama.cpp's projector")
	case o.images.count == 0 && o.images.size != pixels{}:
		return nil, cli.UsageError("estimate: --image-size needs --images; --image is the size of those that a model of images alone reads or makes")
	case o.cpu && o.engine.isLlama():
		return nil, cli.UsageError("estimate: --cpu is about PyTorch: --gpu-layers 0 keeps llama.cpp's layers on the CPU")
	case o.searches() > 1:
		return nil, cli.UsageError("estimate: choose one of --max-batch, --max-context-length, --max-gpu-layers, --min-replicas and --best-quantization")
	case o.maxBatch && o.fits == 0:
		return nil, cli.UsageError("estimate: --max-batch needs --fits")
	case o.maxContext && (o.fits == 0 || !o.serve):
		return nil, cli.UsageError("estimate: --max-context-length needs --fits and --serve")
	case o.training.minReplicas && (o.fits == 0 || o.zero == 0 || !o.train):
		return nil, cli.UsageError("estimate: --min-replicas needs --fits, --train and --zero, the stage by which replicas share")
	case o.llama.maxLayers && o.fits == 0:
		return nil, cli.UsageError("estimate: --max-gpu-layers needs --fits")
	case o.quantize && (o.fits == 0 || o.train || o.dtype != ""):
		return nil, cli.UsageError("estimate: --best-quantization needs --fits, and goes with neither --train nor --dtype")
	case o.train:
		optimizer, err := oneOf("optimizer", o.optimizer, optimizers)
		if err != nil {
			return nil, err
		}
		options = append(options, estimate.Train(optimizer))
	}
	if o.flagSet != nil && (o.flagSet.Changed("images") || o.flagSet.Changed("sounds")) {
		options = append(options, estimate.TextAlone())
	}
	for _, part := range []func() ([]estimate.Option, error){o.machine, o.precision, func() ([]estimate.Option, error) { return computingOf(o) }, o.gradientType, o.quantization, o.loop} {
		more, err := part()
		if err != nil {
			return nil, err
		}
		options = append(options, more...)
	}
	sharding, err := shardingOf(o)
	if err != nil {
		return nil, err
	}
	return append(options, o.checkpointing(), estimate.Frozen(o.training.frozen...), sharding), nil
}

// machine returns the options for where the model runs.
func (o estimateOptions) machine() ([]estimate.Option, error) {
	gpu, err := o.generation()
	if err != nil {
		return nil, err
	}
	loading, err := oneOf("cuda-loading", o.loading, loadings)
	if err != nil {
		return nil, err
	}
	kernel, err := oneOf("attention", o.training.attention, kernels)
	if err != nil {
		return nil, err
	}
	options := []estimate.Option{estimate.Machine{GPU: gpu, Loading: loading}, estimate.Attends(kernel), o.decode}
	if o.cpu {
		options = append(options, estimate.OnCPU())
	}
	return options, nil
}

// generation returns the generation of the GPU that --gpu names or, without it, --fits.
func (o estimateOptions) generation() (string, error) {
	if g, ok := gpuNamed(cmp.Or(o.gpu, o.fitsGPU)); ok {
		return g.generation, nil
	}
	g := strings.ToLower(o.gpu)
	if g != "" && !slices.Contains(generations, g) {
		if near := text.Near(plainGPU(o.gpu), gpuNames()); len(near) > 0 {
			return "", cli.UsageError("estimate: --gpu %s is not known: did you mean %s?", o.gpu, strings.Join(near, " or "))
		}
		return "", cli.UsageError("estimate: --gpu %s: want a GPU or a generation, such as 4090 or ada: `gpumemtrack help estimate-machine` lists them", o.gpu)
	}
	return g, nil
}

// precision returns the options for element types.
func (o estimateOptions) precision() ([]estimate.Option, error) {
	var options []estimate.Option
	autocast, err := pickType("autocast", o.autocast)
	if err != nil {
		return nil, err
	}
	if autocast != 0 {
		options = append(options, estimate.Precision(alloc.Float32), estimate.Autocast(autocast))
	}
	d, err := pickType("dtype", o.dtype)
	if err != nil {
		return nil, err
	}
	switch {
	case o.training.master && (d != alloc.Float16 && d != alloc.BFloat16 || autocast != 0):
		return nil, cli.UsageError("estimate: --master-weights needs --dtype bfloat16 or float16, and goes without --autocast, whose weights are float32")
	case o.training.master:
		options = append(options, estimate.MixedPrecision(d))
	case d == 0:
	case computes(d):
		options = append(options, estimate.Precision(d))
	default: // quantized weights compute in another type
		options = append(options, estimate.Weights(d))
	}
	return options, nil
}

// gradientType returns the option for the type of gradients, if the flags have one.
func (o estimateOptions) gradientType() ([]estimate.Option, error) {
	gradients, err := pickType("gradients", o.training.gradients)
	if err != nil {
		return nil, err
	}
	if gradients != 0 && !computes(gradients) {
		return nil, cli.UsageError("estimate: --gradients %s: want one of %s", o.training.gradients, strings.Join(usualTypes, ", "))
	}
	if gradients != 0 {
		return []estimate.Option{estimate.Gradients(gradients)}, nil
	}
	return nil, nil
}

// quantization returns the option for quantized weights in PyTorch, if the flags ask for them.
func (o estimateOptions) quantization() ([]estimate.Option, error) {
	given := o.loss.base
	switch {
	case given == "" && o.qlora:
		return []estimate.Option{estimate.Quantized{Base: "nf4"}}, nil
	case given == "":
		return nil, nil
	case o.qlora || o.quantize:
		return nil, cli.UsageError("estimate: --quantize goes with neither --qlora nor --best-quantization")
	case o.engine.isLlama() && o.dtype != "":
		return nil, cli.UsageError("estimate: --quantize %s goes without --dtype: both say in what the weights are", given)
	case o.engine.isLlama():
		_, err := ggufNamed(given)
		return nil, err
	}
	q, err := quantizedInPyTorch(given)
	return []estimate.Option{q}, err
}

// loop returns the options for the training loop.
func (o estimateOptions) loop() ([]estimate.Option, error) {
	l := estimate.Loop{MicroBatches: o.accumulate, InBackward: o.inBackward}
	switch {
	case o.weightDecay:
		l.Decay = "used"
	case o.training.noDecay:
		l.Decay = "none"
	}
	var err error
	if l.Form, err = oneOf("optimizer-form", o.form, forms); err != nil {
		return nil, err
	}
	if l.ZeroGrad, err = oneOf("zero-grad", o.zeroGrad, zeroGrads); err != nil {
		return nil, err
	}
	if l.Output, err = oneOf("hold-output", o.training.output, outputs); err != nil {
		return nil, err
	}
	offload, err := oneOf("offload", o.offload, offloads)
	if err != nil {
		return nil, err
	}
	saves, err := oneOf("checkpoint-saves", o.training.saves, policies)
	switch {
	case err != nil:
		return nil, err
	case o.training.saves != "" && len(o.checkpoints) == 0:
		return nil, cli.UsageError("estimate: --checkpoint-saves needs --checkpoint, such as --checkpoint blocks")
	}
	options := []estimate.Option{l, estimate.Offloaded(offload), estimate.CheckpointSaves(saves)}
	for _, of := range []struct{ flag, given, example, name string }{
		{"pytorch", o.pytorch, "2.4", "torch"}, {"transformers", o.transformers, "4.45", "transformers"}, {"bitsandbytes", o.bitsandbytes, "0.43.2", "bitsandbytes"},
		{"autoawq", o.autoawq, "0.2.6", "autoawq"}, {"torchao", o.torchao, "0.7", "torchao"},
	} {
		if of.given == "" {
			continue
		}
		if !isVersion(of.given) {
			return nil, cli.UsageError("estimate: --%s %s: want a version such as %s", of.flag, of.given, of.example)
		}
		options = append(options, estimate.Installed(of.name+"=="+of.given))
	}
	return options, nil
}

// isVersion reports whether text is the numbers of a version, at least two.
func isVersion(text string) bool {
	parts := strings.Split(text, ".")
	some := false
	for _, part := range parts[:min(len(parts), 3)] {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil {
			return false
		}
		some = some || n > 0
	}
	return some && len(parts) > 1
}

// checkpointing returns the option for the patterns of --checkpoint.
func (o estimateOptions) checkpointing() estimate.Option {
	patterns := make([]string, len(o.checkpoints))
	for i, p := range o.checkpoints {
		if patterns[i] = p; p == blocks {
			patterns[i] = numberedLayers
		}
	}
	return estimate.Checkpointed(patterns...)
}

// numberedLayers is the pattern for the paths of numbered layers.
const numberedLayers = "*.[0-9]*"

// isNumbered reports whether a layer's path has a number in it.
func isNumbered(l estimate.Row) bool {
	ok, _ := path.Match(numberedLayers, l.Path)
	return ok
}

// modelOptions returns the options that depend on the model: its usual loss, and layers that the flags
// do not name.
func (o estimateOptions) modelOptions(loss nn.Layer, report func() (*estimate.Report, error)) ([]estimate.Option, error) {
	options, err := o.lossOption(loss)
	if err != nil {
		return nil, err
	}
	targets, numbered := o.lora > 0 && len(o.targets) == 0, slices.Contains(o.checkpoints, blocks)
	if targets || numbered {
		r, err := report()
		if err != nil {
			return nil, err
		}
		if numbered && len(r.Layers) > 0 && !slices.ContainsFunc(r.Layers, isNumbered) {
			return nil, cli.UsageError("estimate: --checkpoint blocks: the layers have no numbers: give a pattern for paths such as %s", r.Layers[len(r.Layers)/2].Path)
		}
		if targets {
			o.targets = usualTargets(r)
		}
	}
	lora, err := o.loraOptions()
	return append(options, lora...), err
}

// lossOption returns the option for the loss with which a language model is trained. usual is the
// model's own, or nil; the flags may choose another.
func (o estimateOptions) lossOption(usual nn.Layer) ([]estimate.Option, error) {
	if o.engine.sets("loss") && usual != nn.Layer(nn.NextToken{}) {
		o.loss.name = usualLoss // the engine's is for models that predict the next token
	}
	l, err := pick("loss", o.loss.name, losses)
	asked := o.loss.name != usualLoss || o.loss.chunks > 1
	switch {
	case err != nil:
		return nil, err
	case !o.train || o.loss.name == "none" || usual == nil && !asked:
		return nil, nil
	case o.loss.name == sumLoss && o.loss.chunks > 1:
		return nil, cli.UsageError("estimate: --loss sum has no chunks: leave --loss-chunks out")
	case o.loss.name == sumLoss:
		return []estimate.Option{estimate.WithLoss(sum)}, nil
	case !asked:
		return []estimate.Option{estimate.WithLoss(usual)}, nil
	case usual != nn.Layer(nn.NextToken{}):
		return nil, cli.UsageError("estimate: --loss and --loss-chunks are for models that predict the next token")
	}
	if o.loss.chunks > 1 {
		l.Chunks = o.loss.chunks
	}
	return []estimate.Option{estimate.WithLoss(l)}, nil
}

// loraOptions returns the option for LoRA adapters, if they are asked for.
func (o estimateOptions) loraOptions() ([]estimate.Option, error) {
	t := o.training
	if o.lora == 0 {
		if o.qlora || t.adapters != "" || t.dropout != 0 {
			return nil, cli.UsageError("estimate: --qlora and --lora-... need the rank of the adapters, such as --lora 16")
		}
		return nil, nil
	}
	d, err := pickType("lora-dtype", t.adapters)
	if err != nil {
		return nil, err
	}
	return []estimate.Option{estimate.LoRA{Rank: o.lora, Targets: o.targets, Dropout: t.dropout, DType: d}}, nil
}

// projections lists what model families call the attention projections that are taken to get adapters where PEFT has no
// default: query and value, as in most of its table; in image models all four, as in the scripts of diffusers.
var projections = [][]string{
	{"q_proj", "v_proj"}, {"query", "value"}, {"q", "v"}, {"c_attn"}, {"query_key_value"}, {"q_lin", "v_lin"}, {"qkv_proj"},
	{"to_k", "to_q", "to_v", "to_out.0"},
}

// fileTargets returns the layers that get adapters if the flags name none: PEFT's for the model's type, or else the usual
// ones. It notes which.
func fileTargets(c *checkpoint.File, e *estimated) ([]string, error) {
	if weightsKnownAlone(c) {
		_, err := c.Architecture()
		return nil, fmt.Errorf("%s: --lora needs the layers of the model, which are unknown: %w", c.Name, errors.Unwrap(err))
	}
	targets, peft := c.LoRATargets()
	if len(targets) > 0 {
		e.notes = append(e.notes, fmt.Sprintf("adapted: %s, as PEFT %s does by default for this type", strings.Join(targets, ", "), peft))
		return targets, nil
	}
	r, err := c.Report()
	if err != nil {
		return nil, err
	}
	if targets = usualTargets(r); !hasLinears(r, targets) {
		return nil, fmt.Errorf("%s: --lora: PEFT %s has no default for this type, nor has the model %s: --lora-targets names layers, such as %s or all-linear", c.Name, peft, strings.Join(targets, " and "), aLinear(r))
	}
	e.notes = append(e.notes, fmt.Sprintf("adapted: %s, which is assumed: PEFT %s has no default for this type, and --lora-targets names others", strings.Join(targets, ", "), peft))
	return targets, nil
}

// usualTargets returns the projections that the model's layers have.
func usualTargets(r *estimate.Report) []string {
	for _, names := range projections {
		if hasLinears(r, names) {
			return names
		}
	}
	return projections[0]
}

// aLinear returns the name of the first linear layer.
func aLinear(r *estimate.Report) string {
	for _, l := range r.Layers {
		if l.Kind == "Linear" {
			return l.Path[strings.LastIndexByte(l.Path, '.')+1:]
		}
	}
	return "those that it has"
}

// hasLinears reports whether the model has a linear layer of each of these names.
func hasLinears(r *estimate.Report, names []string) bool {
	return !slices.ContainsFunc(names, func(name string) bool {
		return !slices.ContainsFunc(r.Layers, func(l estimate.Row) bool {
			return l.Kind == "Linear" && strings.HasSuffix("."+l.Path, "."+name)
		})
	})
}

// piece is the number of tokens of a prompt that llama.cpp processes at once.
const piece = 512

// step returns how many texts, of the batch, and how many tokens of each run at once when their prompts are processed: all,
// as in transformers' generate, unless --prefill-chunk bounds the tokens of each or --max-batched-tokens those of all
// together. For llama.cpp its compute buffer replaces their activations.
func (o estimateOptions) step(tokens int) (texts, each int) {
	texts = max(o.batch, 1)
	switch {
	case o.engine.isLlama():
		return texts, min(tokens, piece)
	case o.chunk > 0:
		return texts, min(tokens, o.chunk)
	case o.batched > 0:
		texts = min(texts, (o.batched-1)/max(1, tokens)+1)
		return texts, min(tokens, (o.batched-1)/texts+1)
	}
	return texts, tokens
}

// cache sets how keys and values are stored, from the flags: --kv names one type for both, or k=TYPE and v=TYPE. Unless
// the engine allocates its cache ahead, tokens are appended as in transformers.
func (o estimateOptions) cache(c *estimate.KVConfig, published alloc.DType) error {
	c.DType = o.cacheType(published)
	c.FixedType = c.DType
	if c.Static = o.engine.Pool; !c.Static {
		_, c.Prompt = o.step(c.ContextLength)
	}
	if o.kv == "" {
		return nil
	}
	keys := cmp.Or(c.DType, alloc.Float16).String()
	values := keys
	for part := range strings.SplitSeq(o.kv, ",") {
		of, name, apart := strings.Cut(part, "=")
		if !apart {
			name = of
		}
		b, err := kvType(name)
		switch {
		case err != nil:
			return cli.UsageError("estimate: --kv %s: want one of %s, or an element type, for both or as k=TYPE,v=TYPE", o.kv, strings.Join(kvTypes, ", "))
		case apart && of == "k":
			keys = b
		case apart && of == "v":
			values = b
		case apart || part != o.kv:
			return cli.UsageError("estimate: --kv %s: want one type, or k=TYPE,v=TYPE", o.kv)
		default:
			keys, values = b, b
		}
	}
	c.Keys, c.Values = keys, values
	return nil
}

// kvType returns the type of keys or values that --kv names.
func kvType(name string) (string, error) {
	if lower := strings.ToLower(name); slices.Contains(kvTypes, lower) {
		return lower, nil
	}
	d, err := parseDType(name)
	return d.String(), err
}

// cacheType returns the element type of keys and values, which is the one in which the model
// computes; 0 means the usual one.
func (o estimateOptions) cacheType(published alloc.DType) alloc.DType {
	for _, name := range []string{o.dtype, o.autocast} {
		if d, err := parseDType(name); err == nil && computes(d) {
			return d
		}
	}
	return published
}

// llamaModel is a model that llama.cpp can serve.
type llamaModel interface {
	Served(estimate.KVConfig, llamacpp.Server) (estimate.Option, error)
	poolSource
}

// servingOptions returns the options for keys and values and, if llama.cpp is selected, its own.
func (o estimateOptions) servingOptions(cache estimate.KVConfig, m llamaModel, e *estimated) ([]estimate.Option, error) {
	e.Context, e.computes, e.pooled = cache.ContextLength, cache.DType, m
	if note := o.longerThan(cache.ContextLength, m.ContextLength()); note != "" {
		e.notes = append(e.notes, note)
	}
	if !o.engine.isLlama() {
		return []estimate.Option{cache}, nil
	}
	projector, err := o.llama.projectorSize()
	if err != nil {
		return nil, err
	}
	flash, err := oneOf("flash-attention", o.flashAttention, flashChoices)
	if err != nil {
		return nil, err
	}
	by := llamacpp.Server{
		Batch: o.microBatch, FlashAttention: flash != "false", Auto: flash == flashAuto, Build: o.engine.build(),
		GPULayers: o.llama.layers, Split: o.llama.shares, Projector: projector,
	}
	if o.gpu != "" || o.fitsGPU != "" { // those with a name are NVIDIA's
		by.Backend = "cuda"
	}
	if by.GPULayers == 0 {
		by.GPULayers = -1
	}
	switch unified := o.llama.unified; {
	case unified == nil && cache.Batch > 1:
		e.notes = append(e.notes, "the values hold with one cache for all sequences and with one for each: --kv-unified and --kv-unified=false say which")
	case unified != nil && *unified:
		by.Slots = "unified"
	case unified != nil:
		by.Slots = "apart"
	}
	if slices.Contains(kvTypes, cache.Values) && !by.FlashAttention {
		e.notes = append(e.notes, "llama.cpp quantizes values only with --flash-attention")
	}
	note, err := o.llama.drafts.apply(&by, cache)
	if err != nil {
		return nil, err
	}
	if note != "" {
		e.notes = append(e.notes, note)
	}
	served, err := m.Served(cache, by)
	switch {
	case err != nil:
		return nil, err
	case o.dtype == "":
		return []estimate.Option{served}, nil
	case o.llama.layers != allLayers || o.llama.maxLayers || o.llama.shares != nil:
		return nil, cli.UsageError("estimate: --gpu-layers, --max-gpu-layers and --tensor-split go by the types of the weights: leave --dtype out")
	}
	again, err := o.precision() // all weights have a type that the file does not have
	return append([]estimate.Option{served}, again...), err
}

// longerThan notes that texts are longer than those for which the model was made; "" if they are not, or if that is not known.
func (o estimateOptions) longerThan(tokens, made int) string {
	if made == 0 || tokens <= made {
		return ""
	}
	note := fmt.Sprintf("the model was made for texts of up to %s tokens, fewer than %s", text.Grouped(made), text.Grouped(tokens))
	switch o.engine.Name {
	case "vllm":
		note += ": vLLM refuses such a --max-model-len unless the environment has VLLM_ALLOW_LONG_MAX_MODEL_LEN=1, or --hf-overrides scales its positions"
	case "sglang":
		note += ": SGLang refuses such a --context-length unless the environment has SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN=1, or --json-model-override-args scales its positions"
	}
	return note
}

// poolSource has what the planners need of a model.
type poolSource interface {
	CacheSpecs() ([]serving.CacheSpec, error)
	StepWidth(tensor int) (int64, error)
	WholeImages() bool
	HasTowers() bool
	ContextLength() int
}

// projectorSize returns the size of the file that --mmproj names, or 0.
func (o llamaOptions) projectorSize() (alloc.Bytes, error) {
	if o.projector == "" {
		return 0, nil
	}
	c, err := checkpoint.ReadFile(o.projector)
	if err != nil {
		return 0, err
	}
	return c.Projector()
}
