package setting

// Offload is what is held in the memory of the CPU in place of the device's. The optimizer then
// steps there. Memory.Host says how much it is.
type Offload uint8

// What is offloaded.
const (
	OffloadNone Offload = iota
	// OffloadOptimizer holds the optimizer's states and the master weights on the CPU, and beside
	// them a copy of weights and gradients for the optimizer to work on, as
	// torchao's CPUOffloadOptimizer and DeepSpeed's ZeRO-Offload (arXiv:2101.06840) do. Gradients
	// stay on the device until the step.
	OffloadOptimizer
	// OffloadParameters holds the weights there too, as FSDP's CPUOffload, ZeRO-Infinity
	// (arXiv:2104.07857) and accelerate's cpu_offload do: a layer's weights are
	// on the device while it runs, and the next one's with them; gradients leave as soon as they
	// are made.
	OffloadParameters
)

// String is the name of what is offloaded.
func (o Offload) String() string {
	switch o {
	case OffloadOptimizer:
		return "optimizer"
	case OffloadParameters:
		return "parameters"
	}
	return "none"
}

// Passing reports whether gradients of parameters do not stay on the device.
func (c *Config) Passing() bool { return c.Offload == OffloadParameters || c.Loop.InBackward }
