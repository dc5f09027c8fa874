package nn

// ReLU is torch.nn.ReLU; it keeps its output.
type ReLU struct{ InPlace bool }

// ReLU6 is torch.nn.ReLU6. It keeps its input, and in place a copy of it.
type ReLU6 struct{ InPlace bool }

// LeakyReLU is torch.nn.LeakyReLU. It keeps its input, and in place its output.
type LeakyReLU struct{ InPlace bool }

// ELU is torch.nn.ELU. It keeps its input, and in place its output.
type ELU struct{ InPlace bool }

// SiLU is torch.nn.SiLU. It keeps its input, and in place a copy of it.
type SiLU struct{ InPlace bool }

// GELU is torch.nn.GELU, with or without the tanh approximation; it keeps its input.
type GELU struct{}

// Mish is torch.nn.Mish; it keeps its input.
type Mish struct{}

// PReLU is torch.nn.PReLU, with a slope for all channels or for each; it keeps its input.
type PReLU struct {
	Num int // of slopes; 0 means 1
}

// Hardswish is torch.nn.Hardswish. It keeps its input, and in place a copy of it.
type Hardswish struct{ InPlace bool }

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
