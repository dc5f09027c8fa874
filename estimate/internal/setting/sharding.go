package setting

import "fmt"

// Sharding is estimate.Sharding.
type Sharding struct {
	Data         int
	ZeRO         int
	Tensor       int
	Pipeline     int
	MicroBatches int
}

// maxDevices bounds the number of devices in each kind of sharding.
const maxDevices = 1 << 20

// check fills in the defaults and returns an error if settings make no sense.
func (s *Sharding) check() error {
	if s.ZeRO < 0 || s.ZeRO > 3 {
		return fmt.Errorf("estimate sharding: ZeRO is %d: want a stage from 0 to 3", s.ZeRO)
	}
	s.Data, s.Tensor, s.Pipeline = Or(s.Data, 1), Or(s.Tensor, 1), Or(s.Pipeline, 1)
	s.MicroBatches = Or(s.MicroBatches, s.Pipeline)
	for _, f := range []struct {
		name  string
		value int
	}{{"Data", s.Data}, {"Tensor", s.Tensor}, {"Pipeline", s.Pipeline}, {"MicroBatches", s.MicroBatches}} {
		if f.value < 1 || f.value > maxDevices {
			return fmt.Errorf("estimate sharding: %s is %d: want 1 or more, and at most %d", f.name, f.value, maxDevices)
		}
	}
	return nil
}

// Devices returns the number of devices that share the weights or the layers.
func (s Sharding) Devices() int {
	n := s.Tensor * s.Pipeline
	if s.ZeRO >= 3 {
		n *= s.Data
	}
	return n
}

// What is held in the memory of the CPU instead of the device; nothing without a word. The optimizer then runs there.
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
