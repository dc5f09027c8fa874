package estimating

import (
	"cmp"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/cmd/gpumemtrack/internal/cli"
	"github.com/gpumemtrack/gpumemtrack/estimate"
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
	case o.llamaCpp && !o.serve:
		return nil, cli.UsageError("estimate: --llama-cpp is for --serve")
	case o.cpu && o.llamaCpp:
		return nil, cli.UsageError("estimate: --cpu is about PyTorch: --gpu-layers 0 keeps llama.cpp's layers on the CPU")
	case o.searches() > 1:
		return nil, cli.UsageError("estimate: choose one of --max-batch, --max-context-length, --max-gpu-layers, --min-replicas and --best-quantization")
	case o.maxBatch && o.fits == 0:
		return nil, cli.UsageError("estimate: --max-batch needs --fits")
	case o.maxContext && (o.fits == 0 || !o.serve):
		return nil, cli.UsageError("estimate: --max-context-length needs --fits and --serve")
	case o.training.fewest && (o.fits == 0 || o.zero == 0 || !o.train):
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
	for _, part := range []func() ([]estimate.Option, error){o.machine, o.precision, o.quantized, o.loop} {
		more, err := part()
		if err != nil {
			return nil, err
		}
		options = append(options, more...)
	}
	return append(options, o.checkpointed(), estimate.Frozen(o.training.frozen...), o.sharded()), nil
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
	options := []estimate.Option{estimate.Machine{GPU: gpu, Loading: loading}, estimate.Attends(kernel)}
	if o.cpu {
		options = append(options, estimate.OnCPU())
	}
	return options, nil
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

func (o estimateOptions) tokens(usual int) int {
	if o.seq > 0 {
		return o.seq
	}
	return usual
}

// piece is the number of tokens of a prompt that llama.cpp processes at once.
const piece = 512

// prompt returns how many tokens of a prompt run at once: all of them, as in transformers'
// generate, unless --prompt-chunk says otherwise. For llama.cpp its compute buffer replaces their
// activations.
func (o estimateOptions) prompt(tokens int) int {
	switch {
	case o.llamaCpp:
		return min(tokens, piece)
	case o.chunk > 0:
		return min(tokens, o.chunk)
	}
	return tokens
}

// input returns the option for the text that the flags ask for.
func (o estimateOptions) input(usual int) estimate.Option {
	length := o.tokens(usual)
	if o.serve {
		length = o.prompt(length)
	}
	return estimate.Tokens(max(o.batch, 1), length)
}

// cache sets how keys and values are stored, from the flags: --kv names one type for both, or k=TYPE and v=TYPE.
func (o estimateOptions) cache(c *estimate.KVConfig, published alloc.DType) error {
	c.DType = o.cacheType(published)
	c.FixedType = c.DType
	if o.kv == "" {
		return nil
	}
	keys := cmp.Or(c.DType, alloc.Float16).String()
	values := keys
	for _, part := range strings.Split(o.kv, ",") {
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

// generation returns the generation of the GPU that --gpu names or, without it, --fits.
func (o estimateOptions) generation() (string, error) {
	if g, ok := gpuNamed(cmp.Or(o.gpu, o.fitsGPU)); ok {
		return g.generation, nil
	}
	g := strings.ToLower(o.gpu)
	if g != "" && !slices.Contains(generations, g) {
		return "", cli.UsageError("estimate: --gpu %s: want a GPU or a generation, such as 4090 or ada: `gpumemtrack help estimate-machine` lists them", o.gpu)
	}
	return g, nil
}
