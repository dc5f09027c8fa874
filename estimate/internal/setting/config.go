// Package setting holds what the options of package estimate say: how a model is stored, trained
// and served, and on what machine. It knows neither layers nor tapes, and computes only what
// follows from the settings alone, such as the states of an optimizer or the size of a key/value
// cache.
package setting

import (
	"fmt"
	"math"
	"path"
	"slices"
	"strconv"
	"strings"

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
	Buffer      ComputeBuffer
	Sizes       *LayerSizes // layers of llama.cpp's weights; nil if not known
	// Packed are the sizes of weights that inference holds packed, with their scales, by their paths.
	Packed     map[string]alloc.Bytes
	GpuLayers  *int      // how many of these layers are on the GPU; nil means all
	Shares     []float64 // proportions by which the GPUs share the layers
	Projector  alloc.Bytes
	Draft      alloc.Bytes // what a model that drafts takes
	Loop       Loop
	Expandable bool   // the allocator has expandable segments
	Experts    string // how those of mixtures run
	Offload    string
	Machine    Machine
	Release    Release // of PyTorch
	Libraries  Libraries
	Lora       *LoRA
	Fused      FusedLayers // of the model's type; nil means that its layers are as LoRA names them
	// AdaptedParams holds the fused parameters that get adapters, by the ends of their paths.
	AdaptedParams map[string]int
	Quantized     *Quantized
	Float32       Float32Parts
	Held          string // how files store the weights
	Loss          any    // the layer that training adds; nil means none
	Frozen        []string
	Autocast      alloc.DType
	Kernel        string
	Unread        Unread
	Missing       []string // parts that run and are not counted
	TextAlone     bool     // no text has images or sound
	Decode        Decoding
	Installed     []string // packages with their versions, of which Release and Libraries are made
	NeedsBatch    bool     // some input must have a batch, as MaxBatch needs
	Searches      bool     // the call is one of many in a search
}

// Decoding is how a pipeline's autoencoder decodes.
type Decoding struct {
	Sliced bool // one image of a batch after another
	Tiled  bool // one tile of an image after another
}

// Unread says what of a model's settings was not read though it may bear on sizes.
type Unread struct {
	Keys    []string
	Foreign []string // of these, the keys that no code of transformers reads
	Growth           // of the whole model
	Parts   []UnreadPart
}

// Growth is what upper bounds grow by, as a multiple of the memory of what is meant: 0.5 is a half.
type Growth struct{ Inference, Training float64 }

// Add adds a growth.
func (g *Growth) Add(more Growth) {
	g.Inference += more.Inference
	g.Training += more.Training
}

// UnreadPart is what was not read of a part of the model, and changes no other part.
type UnreadPart struct {
	Name    string   // of the part
	Modules []string // by what their paths contain; nil means the whole model
	Others  bool     // the part is all modules but these
	Growth
}

// Part returns what was not read of the part with a name. It adds the part when the name is new.
func (u *Unread) Part(name string) *UnreadPart {
	for i := range u.Parts {
		if u.Parts[i].Name == name {
			return &u.Parts[i]
		}
	}
	u.Parts = append(u.Parts, UnreadPart{Name: name})
	return &u.Parts[len(u.Parts)-1]
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
	err := c.check()
	if c.Kernel == "" && (c.Release.Before(2, 0) || c.fusesEagerly()) { // before 2.0 there was no scaled_dot_product_attention
		c.Kernel = EagerAttention
	}
	if err == nil {
		err = c.adapt()
	}
	if err != nil {
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
		word("Experts", c.Experts, GroupedExperts, LoopedExperts),
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
	case c.Draft < 0:
		return wrong("Draft: %d bytes of a model that drafts: want 0 or more", c.Draft)
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

// PromptOfInput makes the input the prompt of a cache to which tokens are appended, if that has none.
func (c *Config) PromptOfInput() {
	_, length := c.Tokens()
	if c.Cache == nil || c.Cache.Static || c.Cache.Prompt > 0 || c.Compute > 0 || length == 0 {
		return
	}
	cache := *c.Cache
	cache.Prompt = length
	c.Cache = &cache
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

// PackedSize returns the memory of a weight that inference holds packed: on one device, and the whole.
func (c *Config) PackedSize(path, name string, split bool) (part, whole int64, ok bool) {
	if len(c.Packed) == 0 {
		return 0, 0, false
	}
	size, ok := c.Packed[path+"."+name]
	devices := 1
	if split {
		devices = c.Sharding.Tensor
	}
	return Part(int64(size), devices), int64(size), ok
}

// Quantize stores weights as q says, whatever size their file has.
func (c *Config) Quantize(q Quantized) { c.Quantized, c.Stored, c.Packed = &q, Amount{}, nil }

// Passing reports whether gradients of parameters leave the device, or are used up, as soon as they
// are made.
func (c *Config) Passing() bool { return c.Offload == OffloadParameters || c.Loop.InBackward }

// Machine is estimate.Machine. An empty setting is unknown.
type Machine struct {
	GPU     string
	Loading string
}

// The generations of NVIDIA's GPUs.
const (
	Pascal    = "pascal"    // GTX 10, P100
	Volta     = "volta"     // V100
	Turing    = "turing"    // RTX 20, T4
	Ampere    = "ampere"    // RTX 30, A100, A10
	Ada       = "ada"       // RTX 40, L4, L40S
	Hopper    = "hopper"    // H100, H200
	Blackwell = "blackwell" // RTX 50, B200
)

// When a process loads its kernels into the CUDA context.
const (
	LazyLoading  = "lazy"  // each kernel when it is first needed: the default since CUDA 11.7
	EagerLoading = "eager" // all at the start, the default before
)

// Context is a measured size of a CUDA context with PyTorch's kernels.
type Context struct {
	GPU     string // "" if the source does not say
	Loading string
	Bytes   alloc.Bytes
	Card    string // the card, and versions
	Source  string
}

// Contexts returns the measured sizes that the estimate rests on.
func Contexts() []Context { return slices.Clone(contexts) }

var contexts = []Context{
	{Pascal, EagerLoading, 721 * alloc.MiB, "GTX 1080, PyTorch 1.8, CUDA 10.1", "github.com/pytorch/pytorch/issues/55277"},
	{Volta, EagerLoading, 1006 * alloc.MiB, "Titan V, PyTorch 1.3", "github.com/pytorch/pytorch/issues/28394"},
	{Volta, EagerLoading, 1343 * alloc.MiB, "V100, CUDA 11.2", "huggingface/transformers, docs/source/en/perf_train_gpu_one.mdx at 0016acf7"},
	{Ampere, EagerLoading, 1687 * alloc.MiB, "RTX 3090, PyTorch 1.8, CUDA 11.1", "github.com/pytorch/pytorch/issues/55277"},
	{Ampere, LazyLoading, 256 * alloc.MiB, "RTX 3090, PyTorch 2.7, CUDA 12.8", "github.com/invoke-ai/InvokeAI/issues/9413"},
	{"", LazyLoading, 300 * alloc.MiB, "CUDA 11.7 and later", "github.com/pytorch/pytorch/issues/107667"},
	{"", LazyLoading, 400 * alloc.MiB, "CUDA 11.7 and later", "github.com/pytorch/pytorch/issues/109888"},
	{Ada, LazyLoading, 426 * alloc.MiB, "RTX 6000 Ada, PyTorch 2.10, CUDA 13.0", "github.com/unslothai/unsloth-zoo/pull/1053"},
	{Hopper, LazyLoading, 1833 * alloc.MiB, "H100, vLLM: everything except PyTorch's allocator, NCCL included", "github.com/vllm-project/vllm/pull/10511"},
}

// Context returns the size of the CUDA context: the median of what was measured on such machines,
// and the least and most that it may be. If Loading is unknown, the median is that of LazyLoading.
func (m Machine) Context() (bytes, least, most alloc.Bytes) {
	fits := func(c Context, l string) bool {
		return (m.GPU == "" || c.GPU == "" || c.GPU == m.GPU) && (l == "" || c.Loading == l)
	}
	usual, all := sizes(func(c Context) bool { return fits(c, Or(m.Loading, LazyLoading)) }), sizes(func(c Context) bool { return fits(c, m.Loading) })
	if len(all) == 0 {
		all = sizes(func(Context) bool { return true })
	}
	if len(usual) == 0 {
		usual = all
	}
	return usual[len(usual)/2], all[0], all[len(all)-1]
}

// sizes returns the sizes of the contexts for which want is true, in ascending order.
func sizes(want func(Context) bool) []alloc.Bytes {
	var n []alloc.Bytes
	for _, c := range contexts {
		if want(c) {
			n = append(n, c.Bytes)
		}
	}
	slices.Sort(n)
	return n
}

// The workspaces that cuBLAS has in PyTorch's cache, one for each thread that runs a forward or a
// backward pass. PyTorch chooses their size (aten/src/ATen/cuda/CublasHandlePool.cpp,
// parseChosenWorkspaceSize).
const (
	cublasWorkspace       = 8320 * alloc.KiB // :4096:2:16:8
	cublasWorkspaceHopper = 32 * alloc.MiB
)

// Backend says where the model runs, as kernels differ in what they keep.
type Backend uint8

// The backends. PyTorch's dropout keeps a mask: on the CPU in the type of the activations, on CUDA
// with one byte for each element.
const (
	CUDA Backend = iota
	CPU
)

// String is the name of the backend.
func (b Backend) String() string {
	if b == CPU {
		return "CPU"
	}
	return "CUDA"
}

// OneDNNThreads is the number of CPU threads with which the peaks were measured. The workspaces of
// oneDNN grow with it.
const OneDNNThreads = 2

// How attention computes its scores, by the names that transformers gives it (attn_implementation). If empty, it
// is SDPA, unless the layers say otherwise. Attention that none of these kernels can compute
// ignores the setting, such as with capped scores or sinks, which only flash attention has, and only in serving.
const (
	SDPA           = "sdpa"  // scaled_dot_product_attention, whose kernels hold no scores
	FlashAttention = "flash" // "flash_attention_2": like SDPA, but needs no masks for its windows
	EagerAttention = "eager" // elementary operations, which hold the scores
)

// Or returns v, or otherwise if v is zero.
func Or[T comparable](v, otherwise T) T {
	var zero T
	if v == zero {
		return otherwise
	}
	return v
}

// Flops returns the product of a shape's dimensions and further factors: see FLOPs.
func Flops(shape alloc.Shape, factors ...int) int64 { return Times(FLOPs(factors...), shape) }

// FLOPs multiplies its factors. The largest int64 stands for any larger product; the result is 0 if
// a factor is not positive.
func FLOPs(factors ...int) int64 { return Times(1, factors) }

// Product multiplies numbers of a model. MaxField stands for any larger product; the result is 0 if a
// factor is not positive.
func Product(factors ...int) int { return int(min(FLOPs(factors...), MaxField)) }

func Times(n int64, factors []int) int64 {
	for _, f := range factors {
		if f <= 0 {
			return 0
		}
		if n > math.MaxInt64/int64(f) {
			return math.MaxInt64
		}
		n *= int64(f)
	}
	return n
}

func AddSat(a, b int64) int64 {
	if a > math.MaxInt64-b {
		return math.MaxInt64
	}
	return a + b
}

// MaxTotal bounds the sum of all tensors, so that no later sum can overflow.
const MaxTotal = 1 << 56

// MaxField bounds every setting of a layer, so that the product of two cannot
// overflow 64 bits.
const MaxField = math.MaxInt32

// Part returns one device's share of n bytes, rounded up.
func Part(n int64, devices int) int64 {
	return (n + int64(devices) - 1) / int64(devices)
}

// NumberIn returns the first number in a path.
func NumberIn(at string) (n int, ok bool) {
	for part := range strings.SplitSeq(at, ".") {
		if n, err := strconv.Atoi(part); err == nil && n >= 0 {
			return n, true
		}
	}
	return 0, false
}

func IsFloat(d alloc.DType) bool {
	return d == alloc.Float16 || d == alloc.BFloat16 || d == alloc.Float32 || d == alloc.Float64
}

// elementType returns an error if d is not an element type.
func elementType(option string, d alloc.DType) error {
	if d.Bits() == 0 {
		return fmt.Errorf("%s: %v is not an element type: want one of package alloc's, such as Float32", option, d)
	}
	return nil
}

// word returns an error if w is neither empty nor one of the words of a setting.
func word[W ~string](name string, w W, words ...W) error {
	if w == "" || slices.Contains(words, w) {
		return nil
	}
	all := make([]string, len(words))
	for i, w := range words {
		all[i] = string(w)
	}
	return fmt.Errorf("%s is %q: want one of %s", name, w, strings.Join(all, ", "))
}

// patterns returns an error for the first pattern that path.Match does not accept.
func patterns(option string, all []string) error {
	for _, p := range all {
		if _, err := path.Match(p, ""); err != nil {
			return fmt.Errorf("%s: pattern %q: %w", option, p, err)
		}
	}
	return nil
}

// wrong makes the error of an option that makes no sense. Its text begins with the option's name.
func wrong(format string, args ...any) error { return fmt.Errorf(format, args...) }

// ComputeBuffer is llama.cpp's compute buffer: its size, and between what it is where settings leave something open. The zero
// value leaves nothing open.
type ComputeBuffer struct {
	Bytes, Least, Most alloc.Bytes
	Open               []string // what is open
}

// Reason says between what the buffer is, and why.
func (b ComputeBuffer) Reason() string {
	return strings.Join(append([]string{fmt.Sprintf("it takes %v to %v", b.Least, b.Most)}, b.Open...), "; ")
}
