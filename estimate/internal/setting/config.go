// Package setting holds what the options of package estimate say: how a model is stored, trained
// and served, and on what machine. It knows neither layers nor tapes, and computes only what
// follows from the settings alone, such as the states of an optimizer or the size of a key/value
// cache.
package setting

import (
	"fmt"
	"path"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Config holds what the options say.
type Config struct {
	Name        string
	Inputs      []Input
	Weights     alloc.DType
	Activations alloc.DType
	Gradients   alloc.DType
	Master      bool
	Training    bool
	Optimizer   Optimizer
	Checkpoints []string
	Saves       string // what checkpointed layers keep besides their input
	Sharding    Sharding
	Backend     Backend
	Cache       *KVConfig
	Stored      Amount
	Compute     alloc.Bytes // llama.cpp's buffer; 0 for PyTorch
	Sizes       *LayerSizes // layers of llama.cpp's weights; nil if not known
	GpuLayers   *int        // how many of these layers are on the GPU; nil means all
	Shares      []float64   // proportions by which the GPUs share the layers
	Projector   alloc.Bytes
	Loop        Loop
	Offload     string
	Machine     Machine
	Release     Release // of PyTorch
	Libraries   Libraries
	Lora        *LoRA
	Quantized   *Quantized
	Held        string // how files store the weights
	Loss        any    // the layer that training adds; nil means none
	Frozen      []string
	Autocast    alloc.DType
	Kernel      string
	Installed   []string // packages with their versions, of which Release and Libraries are made
	NeedsBatch  bool     // some input must have a batch, as MaxBatch needs
	Searches    bool     // the call is one of many in a search
}

type Input struct {
	Shape alloc.Shape
	Dtype alloc.DType // the zero value means that of activations
}

// Func is an estimate.Option that calls a function.
type Func func(*Config)

// Apply calls f.
func (f Func) Apply(c *Config) { f(c) }

// New is the defaults with what apply changes of them; the error names an option that makes no sense.
func New(apply func(*Config)) (*Config, error) {
	c := &Config{Name: "Sequential", Weights: alloc.Float32, Activations: alloc.Float32, Gradients: alloc.Float32}
	apply(c)
	if c.Training && c.Quantized == nil && c.Held != "" {
		c.Quantize(Quantized{Base: c.Held})
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("estimate %s: %w", c.Name, err)
	}
	return c, c.Sharding.check()
}

// check returns an error that names the first option that makes no sense.
func (c *Config) check() error {
	for _, err := range []error{
		c.installed(),
		elementType("Weights", c.Weights), elementType("Activations", c.Activations), elementType("Gradients", c.Gradients),
		c.Optimizer.check("Train"),
		word("Offloaded", c.Offload, OffloadOptimizer, OffloadParameters, OffloadPaged),
		word("Machine: GPU", c.Machine.GPU, Pascal, Volta, Turing, Ampere, Ada, Hopper, Blackwell),
		word("Machine: Loading", c.Machine.Loading, LazyLoading, EagerLoading),
		word("Attends", c.Kernel, SDPA, FlashAttention, EagerAttention),
		word("CheckpointSaves", c.Saves, SaveProducts, SaveHalf),
		c.Loop.check(), checkShares(c.Shares),
		patterns("Checkpointed", c.Checkpoints), patterns("Frozen", c.Frozen),
		c.Lora.check(), c.Quantized.check(),
	} {
		if err != nil {
			return err
		}
	}
	switch d := c.Autocast; {
	case d != 0 && d != alloc.Float16 && d != alloc.BFloat16:
		return wrong("Autocast to %v: want float16 or bfloat16", d)
	case c.Stored.Count < 0 || c.Stored.Bytes < 0:
		return wrong("Stored: %d parameters in %d bytes: want 0 or more of both", c.Stored.Count, c.Stored.Bytes)
	case c.Projector < 0:
		return wrong("Projector: weights of %d bytes: want 0 or more", c.Projector)
	case c.Compute < 0:
		return wrong("a compute buffer of %d bytes: want 0 or more", c.Compute)
	case c.Training && c.Lora == nil && c.Quantized == nil && len(c.Frozen) == 0 && !IsFloat(c.Weights):
		return wrong("Train: PyTorch does not train weights of %v: give them a type such as bfloat16 with Precision (--dtype), or train adapters on quantized weights with LoRA and Quantized (--lora N --qlora)", c.Weights)
	case c.NeedsBatch && !slices.ContainsFunc(c.Inputs, func(in Input) bool { return len(in.Shape) > 0 }):
		return fmt.Errorf("the largest batch needs an input with a batch, such as InputShape or Tokens give")
	}
	return nil
}

// Tokens returns the batch and length of the last input of tokens, which a decoder reads, or 0 and
// 0 if there is none.
func (c *Config) Tokens() (batch, length int) {
	for _, in := range slices.Backward(c.Inputs) {
		if in.Dtype == alloc.Int64 && len(in.Shape) == 2 {
			return in.Shape[0], in.Shape[1]
		}
	}
	return 0, 0
}

// CheckCache returns an error if the key/value cache is too small for the input.
func (c *Config) CheckCache() error {
	batch, length := c.Tokens()
	kv := c.Cache
	if kv != nil && c.Compute > 0 && kv.Batch == 1 && batch > 1 && int64(kv.ContextLength) >= int64(batch)*int64(length) {
		return nil // llama.cpp's unified cache
	}
	if kv != nil && (kv.Batch < batch || kv.ContextLength < length) {
		return fmt.Errorf("estimate %s: KVConfig: a Batch of %d and a Context of %d do not hold the input, %d sequences of %d tokens: want as many or more",
			c.Name, kv.Batch, kv.ContextLength, batch, length)
	}
	return nil
}

// Usual returns l with the usual setting in place of each unknown one.
func (c *Config) Usual(l Loop) Loop {
	zero, form := ZeroGradFirst, ForEach
	if c.Release.Before(2, 0) {
		zero, form = ZeroGradKept, OneByOne
	}
	switch {
	case c.Master: // Megatron and DeepSpeed have kernels of their own
		form = Fused
	case c.Backend == CPU:
		form = OneByOne
	}
	if c.Optimizer == Lion && !c.Master { // as lion_pytorch.Lion does
		form = OneByOne
	}
	if l.Output == OutputWithCache {
		l.Output = OutputHeld
	}
	l.ZeroGrad, l.Output, l.Form = Or(l.ZeroGrad, zero), Or(l.Output, OutputHeld), Or(l.Form, form)
	l.MicroBatches = Or(l.MicroBatches, 1)
	return l
}

// Workspace returns the size of cuBLAS's workspace, and by how much it may be larger.
func (c *Config) Workspace() (size, more alloc.Bytes) {
	m := c.Machine
	switch {
	case c.Release.Before(1, 11):
		return 0, 0
	case m.GPU == Hopper || m.GPU == Blackwell:
		return cublasWorkspaceHopper, 0
	case m.GPU == "":
		return cublasWorkspace, cublasWorkspaceHopper - cublasWorkspace
	default:
		return cublasWorkspace, 0
	}
}

// Amount is a number of elements and the memory that they take.
type Amount struct {
	Count int64
	Bytes alloc.Bytes
}

// Excludes reports whether Frozen names the layer at this path, or a layer that holds it. Such a
// layer gets no adapter.
func (c *Config) Excludes(at string) bool {
	for end := range len(at) + 1 {
		if end < len(at) && at[end] != '.' {
			continue
		}
		for _, p := range c.Frozen {
			whole, _ := path.Match(p, at[:end])
			after, _ := path.Match("*."+p, at[:end])
			if whole || after {
				return true
			}
		}
	}
	return false
}

// Quantize stores weights as q says, whatever size their file has.
func (c *Config) Quantize(q Quantized) { c.Quantized, c.Stored = &q, Amount{} }

// Passing reports whether gradients of parameters leave the device, or are used up, as soon as they
// are made.
func (c *Config) Passing() bool { return c.Offload == OffloadParameters || c.Loop.InBackward }
