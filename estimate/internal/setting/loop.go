package setting

import (
	"cmp"
	"strconv"
	"strings"
)

// What checkpointed layers keep besides their input; nothing more without a word.
const (
	SaveProducts = "products" // the outputs of matrix products and of attention kernels
	SaveHalf     = "half"     // the outputs of every second product without a bias, beginning with the first, and of attention kernels
)

// Loop is estimate.Loop. A setting without a word is unknown.
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
		default:
			return wrong("Installed: %q: want a version of torch, transformers or bitsandbytes", p)
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

// LastLogits reports whether the head reads only the last token. A prompt needs no other logits,
// and generate of transformers asks for no others since 4.45
// (github.com/huggingface/transformers/pull/31292).
func (c *Config) LastLogits() bool {
	return c.Cache != nil && !c.Training && !c.Libraries.Transformers.Before(4, 45)
}

// WidensLogits reports whether models convert their logits to float32 themselves, as they did
// before 4.46 (github.com/huggingface/transformers/pull/34191).
func (c *Config) WidensLogits() bool { return c.Libraries.Transformers.Before(4, 46) }

// maxMicroBatches bounds Loop.MicroBatches.
const maxMicroBatches = 1 << 20

// doubt is a setting that is not known, the option that says it, and the loop in which it is at its worst.
type doubt struct {
	What, Says string
	Worst      Loop
}

// Doubts returns the settings that are not known, the loop with the worst of all of them, and the
// loop with the best, for the lower bound. The figures of best assume that the output is held.
func (l Loop) Doubts(o Optimizer) (each []doubt, worst, best Loop) {
	worst, best = l, l
	best.Output = Or(l.Output, OutputDropped)
	if l.ZeroGrad == "" && !l.InBackward {
		worst.ZeroGrad = ZeroGradKept
		one := l
		one.ZeroGrad = ZeroGradKept
		each = append(each, doubt{"where gradients are cleared", "Loop.ZeroGrad", one})
	}
	if l.Form == "" {
		worst.Form = ForEach
		one := l
		one.Form = ForEach
		each = append(each, doubt{"how the optimizer goes through the parameters", "Loop.Form", one})
	}
	if l.Decay == "" && (o == SGD || o == Momentum) { // most loops with these have a decay
		worst.Decay = DecayUsed
		one := l
		one.Decay = DecayUsed
		each = append(each, doubt{"whether the optimizer has a weight decay", "Loop.Decay", one})
	}
	return each, worst, best
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
