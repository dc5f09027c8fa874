package estimating

import (
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// ofTraining lists the flags that only training has.
var ofTraining = []string{
	"optimizer", "optimizer-form", "optimizer-in-backward", "weight-decay", "zero-grad", "hold-output", "accumulate", "checkpoint", "checkpoint-saves",
	"master-weights", "gradients", "freeze", "replicas", "min-replicas", "zero", "lora", "lora-targets", "lora-dropout", "lora-dtype", "qlora", "loss", "loss-chunks",
}

// ofServing lists the flags that only serving has.
var ofServing = []string{"kv", "prompt-chunk", "llama-cpp", "ubatch", "flash-attention", "max-context-length", "gpu-layers", "max-gpu-layers", "mmproj", "tensor-split", "kv-unified"}

// settle chooses training if a flag of training is given, and notes the flags that have no effect.
func (o *estimateOptions) settle(given func(flag string) bool) {
	o.training.noDecay = given("weight-decay") && !o.weightDecay
	if given("kv-unified") {
		o.llama.unified = &o.llama.oneCache
	}
	note := func(text string) { o.training.notes = append(o.training.notes, text) }
	if slices.ContainsFunc(ofLayers, given) && !o.train {
		o.serve, o.llamaCpp = true, true
	}
	for _, flag := range ofTraining {
		if !given(flag) {
			continue
		}
		if o.serve {
			note("--" + flag + " has no effect on serving")
		} else {
			o.train = true
		}
	}
	for _, flag := range ofServing {
		if given(flag) && !o.serve {
			note("--" + flag + " has no effect without --serve")
		}
	}
	if o.train && o.zero > 0 && o.replicas < 2 && !o.training.fewest {
		note("--zero has no effect on one replica, which has nothing to share: give --replicas 2 or more")
	}
}

// adapted returns the option for LoRA adapters, if they are asked for.
func (o estimateOptions) adapted() ([]estimate.Option, error) {
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

// projections lists what model families call the attention projections that get adapters by
// default: query and value, as in PEFT's table; in image models all four, as in the scripts of
// diffusers.
var projections = [][]string{
	{"q_proj", "v_proj"}, {"query", "value"}, {"q", "v"}, {"c_attn"}, {"query_key_value"}, {"q_lin", "v_lin"}, {"qkv_proj"},
	{"to_k", "to_q", "to_v", "to_out.0"},
}

// usualTargets returns the projections that the model's layers have.
func usualTargets(r *estimate.Report) []string {
	has := func(name string) bool {
		return slices.ContainsFunc(r.Layers, func(l estimate.Row) bool {
			return l.Kind == "Linear" && strings.HasSuffix("."+l.Path, "."+name)
		})
	}
	for _, names := range projections {
		if !slices.ContainsFunc(names, func(name string) bool { return !has(name) }) {
			return names
		}
	}
	return projections[0] // the error then lists the layers that the model has
}

// trained returns the options that depend on the model: its usual loss, and layers that the flags
// do not name.
func (o estimateOptions) trained(loss nn.Layer, report func() (*estimate.Report, error)) ([]estimate.Option, error) {
	judged, err := o.judged(loss)
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
	adapted, err := o.adapted()
	return append(judged, adapted...), err
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
	gradients, err := pickType("gradients", o.training.gradients)
	if err != nil {
		return nil, err
	}
	if gradients != 0 && !computes(gradients) {
		return nil, cli.UsageError("estimate: --gradients %s: want one of %s", o.training.gradients, strings.Join(usualTypes, ", "))
	}
	if gradients != 0 {
		options = append(options, estimate.Gradients(gradients))
	}
	return options, nil
}

// numberedLayers is the pattern for the paths of numbered layers.
const numberedLayers = "*.[0-9]*"

// isNumbered reports whether a layer's path has a number in it.
func isNumbered(l estimate.Row) bool {
	ok, _ := path.Match(numberedLayers, l.Path)
	return ok
}

// checkpointed returns the option for the patterns of --checkpoint.
func (o estimateOptions) checkpointed() estimate.Option {
	patterns := make([]string, len(o.checkpoints))
	for i, p := range o.checkpoints {
		if patterns[i] = p; p == blocks {
			patterns[i] = numberedLayers
		}
	}
	return estimate.Checkpointed(patterns...)
}

// sharded returns the option for training on several devices.
func (o estimateOptions) sharded() estimate.Option {
	s := estimate.Sharding{Data: o.replicas, ZeRO: o.zero, Tensor: o.tp, Pipeline: o.training.pipeline}
	if s.Pipeline > 1 {
		s.MicroBatches = o.accumulate
	}
	return s
}

// judged returns the option for the loss with which a language model is trained. usual is the
// model's own, or nil; the flags may choose another.
func (o estimateOptions) judged(usual nn.Layer) ([]estimate.Option, error) {
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
	l.Chunks = max(l.Chunks, o.loss.chunks)
	return []estimate.Option{estimate.WithLoss(l)}, nil
}

// quantized returns the option for quantized weights, if the flags ask for them.
func (o estimateOptions) quantized() ([]estimate.Option, error) {
	base, err := oneOf("quantize", o.loss.base, bases)
	switch {
	case err != nil:
		return nil, err
	case o.loss.base == "" && o.qlora:
		base = "nf4"
	case o.loss.base == "":
		return nil, nil
	case o.qlora || o.quantize || o.llamaCpp:
		return nil, cli.UsageError("estimate: --quantize goes with none of --qlora, --llama-cpp and --best-quantization")
	}
	return []estimate.Option{estimate.Quantized{Base: base}}, nil
}
