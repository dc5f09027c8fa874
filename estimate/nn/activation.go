package nn

// ReLU is torch.nn.ReLU; it keeps its output. InPlace overwrites the input with it.
type ReLU struct{ InPlace bool }

// SiLU is torch.nn.SiLU, with the setting of ReLU. It keeps its input, and in place a copy of it.
type SiLU ReLU

// GELU is torch.nn.GELU, with or without the tanh approximation; it keeps its input.
type GELU struct{}

// Sigmoid is torch.nn.Sigmoid; it keeps its output.
type Sigmoid struct{}

// Tanh is torch.nn.Tanh; it keeps its output.
type Tanh struct{}

// Softmax is torch.nn.Softmax; it keeps its output.
type Softmax struct{}

// Activation is another of torch.nn's functions of single elements, by the name of its class:
//
//   - LeakyReLU and ELU keep their input, and in place their output;
//   - ReLU6, Hardswish, Hardsigmoid and Mish keep their input, and in place a copy of it;
//   - LogSoftmax keeps its output.
type Activation struct {
	Name    string
	InPlace bool // overwrites the input
}

// PReLU is torch.nn.PReLU, with that many slopes, one for all channels or one for each; 0 means 1. It keeps its input.
type PReLU int
