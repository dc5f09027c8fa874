package estimate

import (
	"fmt"
	"path"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// config is what the options say.
type config struct {
	name        string
	inputs      []input
	weights     alloc.DType
	activations alloc.DType
	gradients   alloc.DType
	master      bool
	training    bool
	optimizer   Optimizer
	checkpoints []string
	sharding    Sharding
	backend     Backend
	cache       *KVConfig
	stored      Amount
	compute     alloc.Bytes // llama.cpp's buffer; 0 for PyTorch
	sizes       *LayerSizes // of llama.cpp's weights; nil where they are not known
	gpuLayers   *int        // of them, on the GPU; nil for all
	shares      []float64   // of the layers, by GPU
	projector   alloc.Bytes
	loop        Loop
	offload     Offload
	machine     Machine
	release     release
	lora        *LoRA
	quantized   *Quantized
	held        Base  // of the weights in their files
	loss        Layer // that training adds; nil for none
	frozen      []string
	autocast    alloc.DType
	kernel      Kernel
	needsBatch  bool // of MaxBatch
	searches    bool // one of many models that are asked about
}

type input struct {
	shape alloc.Shape
	dtype alloc.DType // the zero value is that of activations
}

// newConfig applies the options to the defaults and checks them.
func newConfig(opts []Option) (*config, error) {
	c := &config{name: "Sequential", weights: alloc.Float32, activations: alloc.Float32, gradients: alloc.Float32}
	c.apply(opts)
	if l := c.lora; l != nil && l.Base != WholeBase && c.quantized == nil {
		Quantize(Quantized{Base: l.Base})(c)
	}
	if c.training && c.quantized == nil && c.held != WholeBase {
		Quantize(Quantized{Base: c.held})(c)
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("estimate %s: %w", c.name, err)
	}
	return c, c.sharding.check()
}

// apply applies options, of which some may be nil.
func (c *config) apply(opts []Option) {
	for _, o := range opts {
		if o != nil {
			o(c)
		}
	}
}

// check reports an option that makes no sense, by its name.
func (c *config) check() error {
	for _, err := range []error{
		elementType("Weights", c.weights), elementType("Activations", c.activations), elementType("Gradients", c.gradients),
		constant("Train: Optimizer", c.optimizer, Muon, "from NoOptimizer to Muon"),
		constant("On: Backend", c.backend, CPU, "CUDA and CPU"),
		constant("Offloaded: Offload", c.offload, OffloadParameters, "from OffloadNone to OffloadParameters"),
		constant("RunsOn: GPU", c.machine.GPU, Blackwell, "from UnknownGPU to Blackwell"),
		constant("RunsOn: Loading", c.machine.Loading, EagerLoading, "from LoadingUnknown to EagerLoading"),
		constant("Attends: Kernel", c.kernel, EagerAttention, "from KernelUnknown to EagerAttention"),
		c.loop.check(), checkShares(c.shares),
		patterns("Checkpointed", c.checkpoints), patterns("Frozen", c.frozen),
		c.lora.check(), c.quantized.check(),
	} {
		if err != nil {
			return err
		}
	}
	switch d := c.autocast; {
	case d != 0 && d != alloc.Float16 && d != alloc.BFloat16:
		return fmt.Errorf("Autocast to %v: want float16 or bfloat16", d)
	case c.release.major < 0 || c.release.minor < 0 || c.release.major == 0 && c.release.minor > 0:
		return fmt.Errorf("PyTorch %d.%d is not known: want a version from 1.0 on", c.release.major, c.release.minor)
	case c.stored.Count < 0 || c.stored.Bytes < 0:
		return fmt.Errorf("Stored: %d parameters in %d bytes: want 0 or more of both", c.stored.Count, c.stored.Bytes)
	case c.projector < 0:
		return fmt.Errorf("Projector: weights of %d bytes: want 0 or more", c.projector)
	case c.compute < 0:
		return fmt.Errorf("ComputedIn: a buffer of %d bytes: want 0 or more", c.compute)
	case c.needsBatch && !slices.ContainsFunc(c.inputs, func(in input) bool { return len(in.shape) > 0 }):
		return fmt.Errorf("the largest batch needs an input with a batch, such as InputShape or Tokens give")
	}
	return nil
}

// tokens are the batch and the length of the last input of tokens, which a decoder reads; 0 where there is none.
func (c *config) tokens() (batch, length int) {
	for _, in := range slices.Backward(c.inputs) {
		if in.dtype == alloc.Int64 && len(in.shape) == 2 {
			return in.shape[0], in.shape[1]
		}
	}
	return 0, 0
}

// checkCache reports a key/value cache that does not hold the input.
func (c *config) checkCache() error {
	batch, length := c.tokens()
	if kv := c.cache; kv != nil && (kv.Batch < batch || kv.Context < length) {
		return fmt.Errorf("estimate %s: WithKVCache: a Batch of %d and a Context of %d do not hold the input, %d sequences of %d tokens: want as many or more",
			c.name, kv.Batch, kv.Context, batch, length)
	}
	return nil
}

// elementType reports a type that is none.
func elementType(option string, d alloc.DType) error {
	if !d.Valid() {
		return fmt.Errorf("%s: %v is not an element type: want one of package alloc's, such as Float32", option, d)
	}
	return nil
}

// constant reports a value beyond the last of its constants.
func constant[T ~uint8](name string, v, last T, names string) error {
	if v > last {
		return fmt.Errorf("%s is %d: want one of the constants, %s", name, v, names)
	}
	return nil
}

// patterns reports one that path.Match does not take.
func patterns(option string, all []string) error {
	for _, p := range all {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("%s: pattern %q: %w", option, p, err)
		}
	}
	return nil
}

// usual is a loop with what is not known filled in.
func (c *config) usual(l Loop) Loop {
	zero, form := ZeroGradFirst, ForEach
	if c.release.before(2, 0) {
		zero, form = ZeroGradKept, OneByOne
	}
	switch {
	case c.master: // Megatron and DeepSpeed have kernels of their own
		form = Fused
	case c.backend == CPU:
		form = OneByOne
	}
	if c.optimizer == Lion && !c.master { // as lion_pytorch.Lion goes
		form = OneByOne
	}
	if l.Output == OutputWithCache {
		l.Output = OutputHeld
	}
	l.ZeroGrad, l.Output, l.Form = or(l.ZeroGrad, zero), or(l.Output, OutputHeld), or(l.Form, form)
	l.MicroBatches = or(l.MicroBatches, 1)
	return l
}

// workspace is the size of cuBLAS's, and how much more it may be.
func (c *config) workspace() (size, more alloc.Bytes) {
	m := c.machine
	switch {
	case c.release.before(1, 11):
		return 0, 0
	case m.GPU >= Hopper:
		return cublasWorkspaceHopper, 0
	case m.GPU == UnknownGPU:
		return cublasWorkspace, cublasWorkspaceHopper - cublasWorkspace
	default:
		return cublasWorkspace, 0
	}
}
