package tape

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
)

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

// device is the part of a load that one device holds.
func (c *Config) Device(l Load) Load {
	l = l.shard(c.Sharding)
	switch c.offload {
	case OffloadParameters:
		l.Weights = 0
		fallthrough
	case OffloadOptimizer:
		l.Master, l.State, l.Work = 0, 0, work{}
	}
	return l
}

// host is what of a load is in the memory of the CPU, for one device.
func (c *Config) Host(l Load, training bool) alloc.Bytes {
	l = l.shard(c.Sharding)
	n := int64(0)
	switch {
	case c.offload == OffloadParameters && !training:
		n = l.Weights
	case c.offload == OffloadNone || !training:
	case l.Master > 0: // the copy of the weights is the master's, and gradients are as wide
		n = 2*l.Master + l.State
		if c.offload == OffloadParameters {
			n += l.Weights
		}
	default:
		n = l.Weights + l.Gradients + l.State
	}
	return alloc.Bytes(n)
}

// passing reports whether gradients of parameters do not stay on the device.
func (c *Config) Passing() bool { return c.offload == OffloadParameters || c.Loop.InBackward }

// fetched is what a device holds of whole layers whose weights are elsewhere, in the
// replicas of ZeRO stage 3 or in the memory of the CPU: the largest, and as much again for
// the next one that is fetched ahead.
func (t *Tape) Fetched(s StageX) int64 {
	if z := t.Cfg.Sharding; t.Cfg.offload != OffloadParameters && (z.ZeRO < 3 || z.Data == 1) {
		return 0
	}
	return 2 * s.largestModule
}
