package nn

// ReLU is torch.nn.ReLU; it keeps its output. InPlace overwrites the input with it.
type ReLU struct{ InPlace bool }

// ReLU6 is torch.nn.ReLU6, with the setting of ReLU. It keeps its input, and in place a copy of it.
type ReLU6 ReLU

// LeakyReLU is torch.nn.LeakyReLU, with the setting of ReLU. It keeps its input, and in place its output.
type LeakyReLU ReLU

// ELU is torch.nn.ELU, with the setting of ReLU. It keeps its input, and in place its output.
type ELU ReLU

// SiLU is torch.nn.SiLU, with the setting of ReLU. It keeps its input, and in place a copy of it.
type SiLU ReLU

// GELU is torch.nn.GELU, with or without the tanh approximation; it keeps its input.
type GELU struct{}

// Mish is torch.nn.Mish; it keeps its input.
type Mish struct{}

// PReLU is torch.nn.PReLU, with a slope for all channels or for each; it keeps its input.
type PReLU struct {
	Num int // of slopes; 0 means 1
}

// Hardswish is torch.nn.Hardswish, with the setting of ReLU. It keeps its input, and in place a copy of it.
type Hardswish ReLU

// Hardsigmoid is torch.nn.Hardsigmoid; it keeps its input.
type Hardsigmoid struct{}

// Sigmoid is torch.nn.Sigmoid; it keeps its output.
type Sigmoid struct{}

// Tanh is torch.nn.Tanh; it keeps its output.
type Tanh struct{}

// Softmax is torch.nn.Softmax; it keeps its output.
type Softmax struct{}

// LogSoftmax is torch.nn.LogSoftmax; it keeps its output.
type LogSoftmax struct{}
