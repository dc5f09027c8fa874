package setting

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// What checkpointed layers keep besides their input; nothing more if it is empty.
const (
	SaveProducts = "products" // the outputs of matrix products and of attention kernels
	SaveHalf     = "half"     // the outputs of every second product without a bias, beginning with the first, and of attention kernels
)

// Loop is estimate.Loop. An empty setting is unknown.
type Loop struct {
	ZeroGrad     string
	Output       string
	Form         string
	Decay        string
	InBackward   bool
	MicroBatches int
}

// Where gradients are cleared; unknown is taken to be before the forward pass. To clear them is to free them, as
// zero_grad(set_to_none=True) does, PyTorch's default since 2.0.
const (
	ZeroGradFirst    = "first"    // before the forward pass, or after the optimizer's step
	ZeroGradBackward = "backward" // between the forward and the backward pass
	ZeroGradKept     = "kept"     // nowhere: they are set to zero in place
)

// How long the model's output lives, and with it what the loss read; unknown is taken to be OutputHeld.
const (
	OutputHeld      = "held"       // a variable holds it until the next forward pass returns
	OutputInPass    = "in-pass"    // held until the backward pass is over
	OutputDropped   = "dropped"    // it dies when the backward pass has used it
	OutputWithCache = "with-cache" // OutputHeld, and also the keys and values that decoders of transformers return, unless use_cache is off
)

// The ways in which torch.optim goes through the parameters; its documentation calls them
// implementations. Unknown is ForEach on CUDA and OneByOne on the CPU, as in torch.optim. The sizes of their temporary
// tensors are those of Adam (torch/optim/adam.py).
const (
	ForEach  = "foreach"    // all parameters at once, with a temporary tensor for each
	OneByOne = "one-by-one" // one after another, with two temporary tensors for the current one
	Fused    = "fused"      // in one kernel, without temporary tensors
)

// Whether there is a weight decay; unknown is taken to be none. An optimizer with one copies all gradients if its Form is
// ForEach (torch/optim/sgd.py and adam.py, _multi_tensor_sgd and _multi_tensor_adam).
const (
	DecayNone = "none"
	DecayUsed = "used"
)

// check returns an error for a word that a setting does not have, and for two settings that exclude each other.
func (l Loop) check() error {
	if err := cmp.Or(
		word("Loop: ZeroGrad", l.ZeroGrad, ZeroGradFirst, ZeroGradBackward, ZeroGradKept),
		word("Loop: Output", l.Output, OutputHeld, OutputInPass, OutputDropped, OutputWithCache),
		word("Loop: Form", l.Form, ForEach, OneByOne, Fused),
		word("Loop: Decay", l.Decay, DecayNone, DecayUsed),
	); err != nil {
		return err
	}
	switch {
	case l.MicroBatches < 0 || l.MicroBatches > maxMicroBatches:
		return wrong("Loop: MicroBatches is %d: want 0 to %d", l.MicroBatches, maxMicroBatches)
	case l.InBackward && l.MicroBatches > 1:
		return wrong("Loop: an optimizer that steps in backward cannot add up %d micro-batches: leave one of them out", l.MicroBatches)
	}
	return nil
}

// Release is a version of PyTorch. The zero value means unknown, and counts as new.
type Release struct{ Major, Minor int }

// Before reports whether the version is known and older than major.minor.
func (r Release) Before(major, minor int) bool {
	return r.Major > 0 && (r.Major < major || r.Major == major && r.Minor < minor)
}

// KeepsMeans reports whether the mean over some dimensions keeps its input for the backward pass.
// It does from 1.13 until github.com/pytorch/pytorch/pull/109935; the gradients of a recording with
// 2.1 show it.
func (r Release) KeepsMeans() bool { return r.Before(2, 2) && !r.Before(1, 13) }

// Libraries holds the versions of the libraries that run the model on PyTorch. A zero value means
// unknown, and counts as new.
type Libraries struct {
	Transformers Release
	Bitsandbytes [3]int
	AutoAWQ      [3]int
	TorchAO      [3]int
}

// installed reads the versions of the packages.
func (c *Config) installed() error {
	for _, p := range c.Installed {
		name, version, _ := strings.Cut(p, "==")
		var v [3]int
		parts := strings.SplitN(version, ".", 4)
		ok := len(parts) > 1
		for i, part := range parts[:min(len(parts), 3)] {
			digits := len(part) - len(strings.TrimLeft(part, "0123456789")) // what follows, as in 1+cu121, says nothing
			n, err := strconv.ParseUint(part[:digits], 10, 16)
			v[i], ok = int(n), ok && (err == nil || i == 2)
		}
		switch release := (Release{v[0], v[1]}); {
		case !ok || v == [3]int{} || name == "torch" && v[0] == 0:
			return wrong("Installed: %q: want a package and its version, such as torch==2.4", p)
		case name == "torch":
			c.Release = release
		case name == "transformers":
			c.Libraries.Transformers = release
		case name == "bitsandbytes":
			c.Libraries.Bitsandbytes = v
		case name == "torchao":
			c.Libraries.TorchAO = v
		case name == "autoawq":
			c.Libraries.AutoAWQ = v
			if version == "0.2.7.post3" {
				c.Libraries.AutoAWQ = flashOfAWQ
			}
		default:
			return wrong("Installed: %q: want a version of torch, transformers, bitsandbytes, torchao or autoawq", p)
		}
	}
	return nil
}

// BeforeBitsandbytes reports whether the version of bitsandbytes is known and older than
// 0.minor.patch.
func (l Libraries) BeforeBitsandbytes(minor, patch int) bool {
	v := l.Bitsandbytes
	return v != [3]int{} && v[0] == 0 && (v[1] < minor || v[1] == minor && v[2] < patch)
}

// flashOfAWQ is the first version of AutoAWQ whose fused attention is flash attention, but for 0.2.7.post3.
var flashOfAWQ = [3]int{0, 2, 8}

// fusesEagerly reports whether AutoAWQ's fused attention serves the model, of a version that made the scores and their softmax
// in float32 (awq/modules/fused/attn.py, QuantAttentionFused.forward; in 0.1.0 to 0.2.7.post2).
func (c *Config) fusesEagerly() bool {
	v := c.Libraries.AutoAWQ
	if c.Training || v == [3]int{} || slices.Compare(v[:], flashOfAWQ[:]) >= 0 {
		return false
	}
	return c.Held == AWQ || c.Quantized != nil && c.Quantized.Base == AWQ
}

// LastLogits reports whether the head reads only the last token. A prompt needs no other logits,
// and generate of transformers asks for no others since 4.45
// (github.com/huggingface/transformers/pull/31292).
func (c *Config) LastLogits() bool {
	return c.Cache != nil && !c.Training && !c.Libraries.Transformers.Before(4, 45)
}

// WidensLogits reports whether models convert their logits to float32 themselves, as they did
// before 4.46 (github.com/huggingface/transformers/pull/34191).
func (c *Config) WidensLogits() bool { return c.Libraries.Transformers.Before(4, 46) }

// ShiftsLogits reports whether the loss of the next token copies the logits of all tokens but each text's last. Since 4.49 it
// shifts the labels instead, and runs over all tokens (loss/loss_utils.py, ForCausalLMLoss).
func (c *Config) ShiftsLogits() bool { return c.Libraries.Transformers.Before(4, 49) }

// maxMicroBatches bounds Loop.MicroBatches.
const maxMicroBatches = 1 << 20

// Doubt is a setting that is not known: what depends on it, the option that says it, and the loop in which it and all before
// it are at their worst.
type Doubt struct {
	Of, What, Says string
	Worst          Loop
}

// Doubts returns the settings that are not known, and the loop with the best, for the lower bound. The values of best assume
// that the output is held.
func (l Loop) Doubts(o Optimizer) (each []Doubt, best Loop) {
	worst := l
	if best = l; l.Output == "" {
		best.Output = OutputDropped
	}
	doubt := func(of, what, says string) { each = append(each, Doubt{of, what, says, worst}) }
	if l.ZeroGrad == "" && !l.InBackward {
		worst.ZeroGrad = ZeroGradKept
		doubt("gradients", "where they are cleared", "Loop.ZeroGrad")
	}
	if l.Form == "" {
		worst.Form = ForEach
		doubt("the optimizer's step", "how it goes through the parameters", "Loop.Form")
	}
	if l.Decay == "" && (o == SGD || o == Momentum) { // most loops with these have a decay
		worst.Decay = DecayUsed
		doubt("the optimizer's step", "whether there is a weight decay", "Loop.Decay")
	}
	return each, best
}

// Passes returns the different states of the parameters' gradients at the beginning of the passes
// of a step. It is nil if gradients leave the device as soon as they are made. The first state is
// one in which gradients are made anew, if there is one.
func (l Loop) Passes(all int64, passing bool) []GradientsAt {
	var first GradientsAt
	if passing {
		return []GradientsAt{first}
	}
	switch l.ZeroGrad {
	case ZeroGradBackward:
		first = GradientsAt{Forward: all}
	case ZeroGradKept:
		return []GradientsAt{{all, all}}
	}
	if l.MicroBatches > 1 {
		return []GradientsAt{first, {all, all}}
	}
	return []GradientsAt{first}
}

// GradientsAt says how many bytes of parameters' gradients exist when a forward and when a backward
// pass begins. If any exist when a backward pass begins, all do, and the pass adds to them.
type GradientsAt struct{ Forward, Backward int64 }

// Optimizer is an optimizer, as far as its memory goes: the states that it holds for each
// parameter, which estimate.Train lists. The zero value is NoOptimizer.
type Optimizer string

// The optimizers, as estimate.Train and the command line name them.
const (
	Adam        Optimizer = "adam"
	AdamW       Optimizer = "adamw"
	Adam8bit    Optimizer = "adam8bit"
	Adafactor   Optimizer = "adafactor"
	Lion        Optimizer = "lion"
	Muon        Optimizer = "muon"
	SGD         Optimizer = "sgd"
	Momentum    Optimizer = "momentum"
	NoOptimizer Optimizer = "none"
)

// check returns an error unless o is one of the constants.
func (o Optimizer) check(name string) error {
	return word(name, o, Adam, AdamW, Adam8bit, Adafactor, Lion, Muon, SGD, Momentum, NoOptimizer)
}

// State returns the memory of the states of one parameter. The element type d is the one in which
// the optimizer computes: that of the weights, or float32 with master weights. A matrix is taken
// for one of a hidden layer, not for an embedding or the head. A shape that is not valid is
// alloc.ErrShape; an amount out of range is an error too.
func (o Optimizer) State(shape alloc.Shape, d alloc.DType) (alloc.Bytes, error) {
	n, err := shape.Elements()
	if err != nil {
		return 0, err
	}
	if err := o.check("Optimizer"); err != nil {
		return 0, fmt.Errorf("estimate the states of an optimizer: %w", err)
	}
	if d.Bits() == 0 || n > MaxTotal/16 {
		return 0, fmt.Errorf("estimate the states of %v: %v elements of %v: want at most %d, of an element type of package alloc", o, n, d, int64(MaxTotal/16))
	}
	size := func(n int64) alloc.Bytes { return alloc.Bytes((n*int64(d.Bits()) + 7) / 8) }
	switch o {
	case Momentum, Lion:
		return size(n), nil
	case Adam, AdamW:
		return 2 * size(n), nil
	case Muon:
		if len(shape) == 2 {
			return size(n), nil
		}
		return 2 * size(n), nil
	case Adam8bit:
		if n < 4096 {
			return alloc.Bytes(2 * 4 * n), nil
		}
		return alloc.Bytes(2*n + 2*4*((n+255)/256)), nil
	case Adafactor:
		if len(shape) < 2 || n == 0 {
			return size(n), nil
		}
		rows := n / int64(shape[len(shape)-1])
		columns := n / int64(shape[len(shape)-2])
		return size(rows) + size(columns), nil
	default:
		return 0, nil
	}
}

// Work is the memory that a step of an optimizer needs besides its states.
type Work struct {
	Alone    int64 // for the current parameter, whatever the Form
	Single   int64 // for the current parameter, with OneByOne
	Together int64 // for all parameters at once, with ForEach
	Decay    int64 // in addition, if a weight decay is added to the gradients
}

// Work returns what a step needs for one parameter. Adam with ForEach makes a temporary tensor for
// every parameter at once ("uses ~ sizeof(params) more peak memory", documentation of
// torch.optim.Adam), with OneByOne two for the current parameter. Lion does the same
// (lion_pytorch). Muon makes each matrix's copy in bfloat16 orthogonal (torch/optim/_muon.py).
func (o Optimizer) Work(shape alloc.Shape, n int64, d alloc.DType) Work {
	size := n * int64(d.Bits()) / 8
	switch {
	case o == Adafactor: // the update, and its square
		return Work{Alone: 2 * size}
	case o == Muon && len(shape) == 2:
		small := int64(min(shape[0], shape[1]))
		return Work{Alone: size + 2*2*n + 2*2*small*small}
	case o == Adam:
		return Work{Single: 2 * size, Together: size, Decay: size}
	case o == SGD || o == Momentum:
		return Work{Decay: size}
	case o == AdamW || o == Lion || o == Muon:
		return Work{Single: 2 * size, Together: size}
	}
	return Work{}
}

func (w *Work) Add(v Work) {
	w.Alone, w.Single, w.Together = max(w.Alone, v.Alone), max(w.Single, v.Single), w.Together+v.Together
	w.Decay += v.Decay
}

// Temporary returns the most memory that the work takes at once.
func (w Work) Temporary(form, decay string) int64 {
	switch form {
	case ForEach:
		if decay == DecayUsed {
			return w.Together + w.Decay
		}
		return max(w.Alone, w.Together)
	case OneByOne:
		return max(w.Alone, w.Single)
	}
	return w.Alone
}

// States returns the number of tensors in which the optimizer holds its state, from the bytes of
// the state and of the parameter.
func (o Optimizer) States(state, parameter int64) int64 {
	switch o {
	case Momentum, Lion:
		return 1
	case Muon:
		return max(1, min(2, state/max(1, parameter)))
	case Adam, AdamW, Adam8bit, Adafactor:
		return 2
	default:
		return 0
	}
}

// IsHead reports whether the Linear at this path is the model's output head.
func IsHead(at string) bool { return at == "lm_head" || strings.HasSuffix(at, ".lm_head") }

// Sharding is estimate.Sharding.
type Sharding struct {
	Data         int
	ZeRO         int
	Tensor       int
	Pipeline     int
	MicroBatches int
	Sequence     string
	By           string
	Ends         bool
	Experts      int
	Bucket       int
	Overlap      bool
	Reuse        int
}

// Who divides what replicas hold; with the code of DeepSpeed and FSDP in mind if it is empty.
const (
	FSDP2     = "fsdp2"     // torch.distributed.fsdp.fully_shard
	DeepSpeed = "deepspeed" // deepspeed/runtime/zero
)

// What DeepSpeed has unless its configuration says otherwise, in elements (deepspeed/runtime/zero/config.py,
// DeepSpeedZeroConfig, of 0.19.8).
const (
	reduceBucket   = 500_000_000   // reduce_bucket_size
	maxReuse       = 1_000_000_000 // stage3_max_reuse_distance
	prefetchBucket = 50_000_000    // stage3_prefetch_bucket_size
	subGroup       = 1_000_000_000 // sub_group_size
)

// Buckets returns the elements of the buffers in which DeepSpeed collects gradients to reduce them: one, or two where it
// does so while the backward pass goes on and weights are whole. They are as long whatever the model's size
// (stage_1_and_2.py, setup_buckets; stage3.py, __init__).
func (s Sharding) Buckets() int64 {
	n := int64(Or(s.Bucket, reduceBucket))
	if s.Overlap && s.ZeRO < 3 {
		n *= 2
	}
	return n
}

// Live returns the elements of parameters that are whole at a time when DeepSpeed divides them: those of the current layer,
// those that are prefetched, and at the end of the forward pass those that the backward pass needs again before it has
// gone through as many as Reuse (partitioned_param_coordinator.py, __params_to_release).
func (s Sharding) Live(all, layer int64) int64 {
	return min(all, int64(Or(s.Reuse, maxReuse))/2+prefetchBucket+layer)
}

// Widened returns how many elements of n gradients DeepSpeed copies to float32 at a time, as it steps: all that a device
// has, or with ZeRO 3 those of a group.
func (s Sharding) Widened(n int64) int64 {
	if s.ZeRO >= 3 {
		return min(n, subGroup)
	}
	return n
}

// DeepSpeed reports whether DeepSpeed divides what replicas hold.
func (c *Config) DeepSpeed() bool {
	return c.Sharding.By == DeepSpeed && c.Sharding.ZeRO >= 1 && c.Sharding.Data > 1
}

// Gathers reports whether devices gather the parameters of a unit of layers at a time, as FSDP2 does.
func (c *Config) Gathers() bool {
	s := c.Sharding
	return s.By == FSDP2 && s.ZeRO >= 3 && s.Data > 1 && !c.Passing()
}

// How layers that tensor parallelism splits read inputs of which each device holds its part of the tokens; there is no
// sequence parallelism if it is empty.
const (
	SequenceKept  = "kept"  // the backward pass keeps the gathered input
	SequenceAgain = "again" // the backward pass gathers the input again
)

// maxDevices bounds the number of devices in each kind of sharding.
const maxDevices = 1 << 20

// check fills in the defaults and returns an error if settings make no sense.
func (s *Sharding) check() error {
	if s.ZeRO < 0 || s.ZeRO > 3 {
		return fmt.Errorf("estimate sharding: ZeRO is %d: want a stage from 0 to 3", s.ZeRO)
	}
	if err := cmp.Or(word("estimate sharding: Sequence", s.Sequence, SequenceKept, SequenceAgain), word("estimate sharding: By", s.By, FSDP2, DeepSpeed)); err != nil {
		return err
	}
	s.Data, s.Tensor, s.Pipeline, s.Experts = Or(s.Data, 1), Or(s.Tensor, 1), Or(s.Pipeline, 1), Or(s.Experts, 1)
	s.MicroBatches = Or(s.MicroBatches, s.Pipeline)
	for _, f := range []struct {
		name  string
		value int
	}{{"Data", s.Data}, {"Tensor", s.Tensor}, {"Pipeline", s.Pipeline}, {"Experts", s.Experts}, {"MicroBatches", s.MicroBatches}} {
		if f.value < 1 || f.value > maxDevices {
			return fmt.Errorf("estimate sharding: %s is %d: want 1 or more, and at most %d", f.name, f.value, maxDevices)
		}
	}
	if s.Bucket < 0 || s.Bucket > MaxField || s.Reuse < 0 || s.Reuse > MaxField {
		return fmt.Errorf("estimate sharding: Bucket is %d and Reuse is %d: want 0 to %d elements", s.Bucket, s.Reuse, MaxField)
	}
	if s.Data > 1 && s.Data%s.Experts != 0 {
		return fmt.Errorf("estimate sharding: %d replicas do not divide into groups of %d that share experts", s.Data, s.Experts)
	}
	if s.Tensor == 1 {
		s.Sequence = "" // nothing is split
	}
	return nil
}

// Own returns n bytes of a parameter of experts, or of what belongs to it, as one device has it before replicas divide it from
// a stage of ZeRO on. Devices that share experts are replicas of all else, so that those which divide the rest anyway leave
// each device the same.
func (s Sharding) Own(n int64, stage int) int64 {
	if s.ZeRO >= stage && s.Data > 1 {
		return n
	}
	return Part(n, max(1, s.Experts))
}

// Devices returns the number of devices that share the weights or the layers.
func (s Sharding) Devices() int {
	n := s.Tensor * s.Pipeline
	if s.ZeRO >= 3 {
		n *= s.Data
	}
	return n
}

// What is held in the memory of the CPU instead of the device; nothing if it is empty. The optimizer then runs there.
// Memory.Host says how much it is.
const (
	// OffloadOptimizer holds the optimizer's states and the master weights on the CPU, with a copy
	// of weights and gradients for the optimizer to work on, as torchao's CPUOffloadOptimizer and
	// DeepSpeed's ZeRO-Offload (arXiv:2101.06840) do. Gradients stay on the device until the step.
	OffloadOptimizer = "optimizer"
	// OffloadParameters also holds the weights on the CPU, as FSDP's CPUOffload, ZeRO-Infinity
	// (arXiv:2104.07857) and accelerate's cpu_offload do. A layer's weights are on the device while
	// it runs, together with the next layer's; gradients leave as soon as they are made.
	OffloadParameters = "parameters"
	// OffloadPaged keeps the optimizer's states in memory that the driver moves between device and
	// CPU, as the paged optimizers of bitsandbytes do (functional.py, get_paged). They are not in PyTorch's allocator; the
	// device holds as much of them as there is room for.
	OffloadPaged = "paged"
)

// How the experts of a mixture run; as transformers runs them if it is empty.
const (
	GroupedExperts = "grouped" // all at once, on the tokens that are routed to them
	LoopedExperts  = "loop"    // one after another
)

// Loops reports whether experts run one after another, as in transformers before 5.0.
func (c *Config) Loops() bool {
	return c.Experts == LoopedExperts || c.Experts == "" && c.Libraries.Transformers.Before(5, 0)
}

// LeavesWide reports whether quantization leaves the experts at this path as they are. Libraries replace each nn.Linear
// (transformers 5.24, integrations/bitsandbytes.py, replace_with_bnb_linear). Experts whose parameters PEFT adapts are in no
// nn.Linear.
func (c *Config) LeavesWide(at string) bool {
	for param := range c.AdaptedParams {
		if c.AdaptedParam(at+"."+param[strings.LastIndexByte(param, '.')+1:]) > 0 {
			return true
		}
	}
	return false
}
