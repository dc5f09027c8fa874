package estimate

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Loop is how a training loop goes about what the layers do not say. The zero value
// of each setting means that it is not known: the figures are then those of what
// PyTorch's tutorials do today, and their bands reach up to the worst of the settings.
type Loop struct {
	ZeroGrad ZeroGrad
	Output   Output
	Form     Form
	// Decay is whether the optimizer has a weight decay, which SGD, Momentum and Adam
	// add to a copy of the gradients; AdamW needs none.
	Decay Decay
	// InBackward lets the optimizer step through each parameter as soon as its gradient is
	// there, which it then frees (torch.Tensor.register_post_accumulate_grad_hook). Micro-batches
	// cannot be added up then.
	InBackward bool
	// MicroBatches is the number of batches of the input's size whose gradients
	// are added up before the optimizer steps; 0 means 1.
	MicroBatches int
}

// ZeroGrad is where a loop clears the parameters' gradients.
type ZeroGrad = setting.ZeroGrad

// Where gradients are cleared. Those that are cleared are freed, as
// zero_grad(set_to_none=True) does, PyTorch's default since 2.0.
const (
	ZeroGradUnknown  = setting.ZeroGradUnknown  // before the forward pass, if nothing is said
	ZeroGradFirst    = setting.ZeroGradFirst    // before the forward pass, or after the optimizer's step
	ZeroGradBackward = setting.ZeroGradBackward // between the forward and the backward pass
	ZeroGradKept     = setting.ZeroGradKept     // nowhere: they are set to zero and keep their memory
)

// Output is whether the loop's code holds what the model returned.
type Output = setting.Output

// What becomes of the model's output, and of what its loss read.
const (
	OutputUnknown   = setting.OutputUnknown   // held, if nothing is said
	OutputHeld      = setting.OutputHeld      // a variable holds it until the next forward pass returns
	OutputInPass    = setting.OutputInPass    // held until the backward pass is over
	OutputDropped   = setting.OutputDropped   // it dies when the backward pass has used it
	OutputWithCache = setting.OutputWithCache // OutputHeld, with the keys and values that decoders of transformers return too, unless use_cache is off
)

// Form is how an optimizer goes through the parameters.
type Form = setting.Form

// The forms of torch.optim, which its documentation calls implementations. The sizes
// of their temporaries are those of Adam (torch/optim/adam.py).
const (
	FormUnknown = setting.FormUnknown // ForEach on CUDA and OneByOne on the CPU, as torch.optim
	ForEach     = setting.ForEach     // all parameters at once, with a temporary of all of them
	OneByOne    = setting.OneByOne    // one after another, with two temporaries of one
	Fused       = setting.Fused       // in one kernel, without temporaries
)

// Decay is whether an optimizer has a weight decay.
type Decay = setting.Decay

// Whether there is a weight decay. With ForEach it copies all gradients (torch/optim/sgd.py and
// adam.py, _multi_tensor_sgd and _multi_tensor_adam).
const (
	DecayUnknown = setting.DecayUnknown // none, if nothing is said
	DecayNone    = setting.DecayNone
	DecayUsed    = setting.DecayUsed
)
