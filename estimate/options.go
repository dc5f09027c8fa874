package estimate

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Option says what to estimate. Later options win over earlier ones.
type Option func(*config)

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
	cache       *CacheConfig
	needsBatch  bool // of MaxBatch
}

type input struct {
	shape alloc.Shape
	dtype alloc.DType // the zero value is that of activations
}

// Input gives the model an input of the type of activations: batch first, and
// for images channels before height and width. Given again, it adds a further
// input, which layers reach by Tape.Input; one that no layer reads is an error.
func Input(dims ...int) Option { return InputOf(0, dims...) }

// Tokens gives the model an input of token numbers, (batch, length) of int64.
func Tokens(batch, length int) Option { return InputOf(alloc.Int64, batch, length) }

// InputOf is Input with an element type.
func InputOf(d alloc.DType, dims ...int) Option {
	return func(c *config) { c.inputs = append(c.inputs, input{append(alloc.Shape{}, dims...), d}) }
}

// Name names the model in the report; without it the name is "Sequential".
func Name(name string) Option { return func(c *config) { c.name = name } }

// DType sets the type of weights, activations and gradients, without a master
// copy; without it that is float32.
func DType(d alloc.DType) Option {
	return func(c *config) { c.weights, c.activations, c.gradients, c.master = d, d, d, false }
}

// Weights sets the type of weights and buffers.
func Weights(d alloc.DType) Option { return func(c *config) { c.weights = d } }

// Activations sets the type of activations and of their gradients.
func Activations(d alloc.DType) Option { return func(c *config) { c.activations = d } }

// Gradients sets the type of the parameters' gradients.
func Gradients(d alloc.DType) Option { return func(c *config) { c.gradients = d } }

// MixedPrecision sets weights, activations and gradients to d and lets the
// optimizer hold a master copy of weights that are not float32 besides its states,
// as Megatron and DeepSpeed do: 16 bytes a parameter with Adam ("ZeRO: Memory
// Optimizations Toward Training Trillion Parameter Models", arXiv:1910.02054,
// section 3.1). torch.autocast is something else: there weights and gradients stay in
// float32, which Activations(d) alone gives, and copies of the weights in d come to it.
func MixedPrecision(d alloc.DType) Option {
	return func(c *config) {
		DType(d)(c)
		c.master = true
	}
}

// Train makes training with the optimizer what Peak, Fits and MaxBatch are about.
// Without it they are about inference; the report tells both either way.
func Train(o Optimizer) Option { return func(c *config) { c.training, c.optimizer = true, o } }

// Checkpointed makes the layers whose paths match one of the patterns (those of
// path.Match, such as "model.layers.*") keep only their input and compute the
// rest again in the backward pass, as torch.utils.checkpoint does. A pattern that
// matches none is an error.
func Checkpointed(patterns ...string) Option {
	return func(c *config) { c.checkpoints = append(c.checkpoints, patterns...) }
}

// Shard divides the model among devices; the report is then about one of them,
// that which needs most.
func Shard(s Sharding) Option { return func(c *config) { c.sharding = s } }

// WithKVCache adds a key/value cache to the memory of inference.
func WithKVCache(cache CacheConfig) Option { return func(c *config) { c.cache = &cache } }

// Backend is where the model runs: kernels differ in what they keep.
type Backend uint8

// The backends. On the CPU, PyTorch's dropout keeps a mask of the type of the
// activations; on CUDA one of a byte an element.
const (
	CUDA Backend = iota
	CPU
)

// On says where the model runs; without it, on CUDA.
func On(b Backend) Option { return func(c *config) { c.backend = b } }

// String is the name of the backend.
func (b Backend) String() string {
	if b == CPU {
		return "CPU"
	}
	return "CUDA"
}
