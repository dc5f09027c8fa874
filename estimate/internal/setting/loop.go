package setting

// Policy is estimate.Policy.
type Policy uint8

// What checkpointed layers keep besides their input.
const (
	SaveNothing  Policy = iota
	SaveProducts        // the outputs of matrix products, and of the kernels of attention
	SaveHalf            // of every other product without a bias, the first among them, and of the kernels of attention
)

// Loop is estimate.Loop.
type Loop struct {
	ZeroGrad     ZeroGrad
	Output       Output
	Form         Form
	Decay        Decay
	InBackward   bool
	MicroBatches int
}

// ZeroGrad is where a loop clears the parameters' gradients.
type ZeroGrad uint8

// Where gradients are cleared. Those that are cleared are freed, as
// zero_grad(set_to_none=True) does, PyTorch's default since 2.0.
const (
	ZeroGradUnknown  ZeroGrad = iota // before the forward pass, if nothing is said
	ZeroGradFirst                    // before the forward pass, or after the optimizer's step
	ZeroGradBackward                 // between the forward and the backward pass
	ZeroGradKept                     // nowhere: they are set to zero and keep their memory
)

// Output is whether the loop's code holds what the model returned.
type Output uint8

// What becomes of the model's output, and of what its loss read.
const (
	OutputUnknown   Output = iota // held, if nothing is said
	OutputHeld                    // a variable holds it until the next forward pass returns
	OutputInPass                  // held until the backward pass is over
	OutputDropped                 // it dies when the backward pass has used it
	OutputWithCache               // OutputHeld, with the keys and values that decoders of transformers return too, unless use_cache is off
)

// Form is how an optimizer goes through the parameters.
type Form uint8

// The forms of torch.optim, which its documentation calls implementations. The sizes
// of their temporaries are those of Adam (torch/optim/adam.py).
const (
	FormUnknown Form = iota // ForEach on CUDA and OneByOne on the CPU, as torch.optim
	ForEach                 // all parameters at once, with a temporary of all of them
	OneByOne                // one after another, with two temporaries of one
	Fused                   // in one kernel, without temporaries
)

// Decay is whether an optimizer has a weight decay.
type Decay uint8

// Whether there is a weight decay. With ForEach it copies all gradients (torch/optim/sgd.py and
// adam.py, _multi_tensor_sgd and _multi_tensor_adam).
const (
	DecayUnknown Decay = iota // none, if nothing is said
	DecayNone
	DecayUsed
)

// check returns an error for a setting that is none of the constants of its type, and for two that exclude each other.
func (l Loop) check() error {
	for _, err := range []error{
		constant("Loop: ZeroGrad", l.ZeroGrad, ZeroGradKept, "from ZeroGradUnknown to ZeroGradKept"),
		constant("Loop: Output", l.Output, OutputWithCache, "from OutputUnknown to OutputWithCache"),
		constant("Loop: Form", l.Form, Fused, "from FormUnknown to Fused"),
		constant("Loop: Decay", l.Decay, DecayUsed, "from DecayUnknown to DecayUsed"),
	} {
		if err != nil {
			return err
		}
	}
	switch {
	case l.MicroBatches < 0 || l.MicroBatches > maxMicroBatches:
		return wrong("Loop: MicroBatches is %d: want 0 to %d", l.MicroBatches, maxMicroBatches)
	case l.InBackward && l.MicroBatches > 1:
		return wrong("Loop: an optimizer that steps in backward cannot add up %d micro-batches: leave one of them out", l.MicroBatches)
	}
	return nil
}

// Release is a version of PyTorch; the zero value is not known, and taken for a new one.
type Release struct{ Major, Minor int }

// Before reports whether the version is known and earlier.
func (r Release) Before(major, minor int) bool {
	return r.Major > 0 && (r.Major < major || r.Major == major && r.Minor < minor)
}

// KeepsMeans reports whether the mean over some dimensions keeps its input, as it did from 1.13 on
// (github.com/pytorch/pytorch/pull/109935 put an end to it, and the gradients of a recording of 2.1 show it).
func (r Release) KeepsMeans() bool { return r.Before(2, 2) && !r.Before(1, 13) }

// Libraries are the versions of what runs the model on PyTorch; a zero value is not known, and taken for a new one.
type Libraries struct {
	Transformers Release
	Bitsandbytes [3]int
}

func (l Libraries) valid() bool {
	return l.Transformers.Major >= 0 && l.Transformers.Minor >= 0 && min(l.Bitsandbytes[0], l.Bitsandbytes[1], l.Bitsandbytes[2]) >= 0
}

// BeforeBitsandbytes reports whether its version is known and earlier than 0.minor.patch.
func (l Libraries) BeforeBitsandbytes(minor, patch int) bool {
	v := l.Bitsandbytes
	return v != [3]int{} && v[0] == 0 && (v[1] < minor || v[1] == minor && v[2] < patch)
}

// LastLogits reports whether the head reads the last token alone: of a prompt no others are needed, and generate of
// transformers has asked for them since 4.45 (github.com/huggingface/transformers/pull/31292).
func (c *Config) LastLogits() bool {
	return c.Cache != nil && !c.Training && !c.Libraries.Transformers.Before(4, 45)
}

// WidensLogits reports whether models made their logits float32 themselves, as they did before 4.46
// (github.com/huggingface/transformers/pull/34191).
func (c *Config) WidensLogits() bool { return c.Libraries.Transformers.Before(4, 46) }

// RotatesByTables reports whether each block had tables of all positions: releases before 4.41 did
// (modeling_llama.py, LlamaRotaryEmbedding), and some families longer. Runs of April 2024 show them in Llama, Mistral and Phi
// (docs/estimate-heldout.csv).
func (c *Config) RotatesByTables() bool { return c.Libraries.Transformers.Before(4, 41) }

// MasksContext reports whether Llama and Gemma had a mask of all positions, which 4.38 brought and 4.40 took away
// (modeling_llama.py, causal_mask).
func (c *Config) MasksContext() bool {
	return c.Libraries.Transformers.Before(4, 40) && !c.Libraries.Transformers.Before(4, 38)
}

// maxMicroBatches bounds Loop.MicroBatches.
const maxMicroBatches = 1 << 20

// doubt is a setting that is not known, the option that says it, and the loop in which it is at its worst.
type doubt struct {
	What, Says string
	Worst      Loop
}

// Doubts are the settings that are not known, the worst of all together, and the best, which
// bears on the lower bound: the figures are those of an output that is held.
func (l Loop) Doubts(o Optimizer) (each []doubt, worst, best Loop) {
	worst, best = l, l
	best.Output = Or(l.Output, OutputDropped)
	if l.ZeroGrad == ZeroGradUnknown && !l.InBackward {
		worst.ZeroGrad = ZeroGradKept
		one := l
		one.ZeroGrad = ZeroGradKept
		each = append(each, doubt{"where gradients are cleared", "Loop.ZeroGrad", one})
	}
	if l.Form == FormUnknown {
		worst.Form = ForEach
		one := l
		one.Form = ForEach
		each = append(each, doubt{"how the optimizer goes through the parameters", "Loop.Form", one})
	}
	if l.Decay == DecayUnknown && (o == SGD || o == Momentum) { // which mostly have one
		worst.Decay = DecayUsed
		one := l
		one.Decay = DecayUsed
		each = append(each, doubt{"whether the optimizer has a weight decay", "Loop.Decay", one})
	}
	return each, worst, best
}

// Passes are what there is of the parameters' gradients when the passes of a step begin,
// of those passes that differ; none if they are passing on. The first is one in which they are made, if there is one.
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

// GradientsAt says how many bytes of parameters' gradients there are when a forward and when a
// backward pass begins. Where there are some in the backward pass, all are there, and
// what it makes is added to them.
type GradientsAt struct{ Forward, Backward int64 }
