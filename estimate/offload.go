package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

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
func (c *config) device(l load) load {
	l = l.shard(c.sharding)
	switch c.offload {
	case OffloadParameters:
		l.weights = 0
		fallthrough
	case OffloadOptimizer:
		l.master, l.state, l.work = 0, 0, work{}
	}
	return l
}

// host is what of a load is in the memory of the CPU, for one device.
func (c *config) host(l load, training bool) alloc.Bytes {
	l = l.shard(c.sharding)
	n := int64(0)
	switch {
	case c.offload == OffloadParameters && !training:
		n = l.weights
	case c.offload == OffloadNone || !training:
	case l.master > 0: // the copy of the weights is the master's, and gradients are as wide
		n = 2*l.master + l.state
		if c.offload == OffloadParameters {
			n += l.weights
		}
	default:
		n = l.weights + l.gradients + l.state
	}
	return alloc.Bytes(n)
}

// passing reports whether gradients of parameters do not stay on the device.
func (c *config) passing() bool { return c.offload == OffloadParameters || c.loop.InBackward }

// fetched is what a device holds of whole layers whose weights are elsewhere, in the
// replicas of ZeRO stage 3 or in the memory of the CPU: the largest, and as much again for
// the next one that is fetched ahead.
func (t *Tape) fetched(s stage) int64 {
	if z := t.cfg.sharding; t.cfg.offload != OffloadParameters && (z.ZeRO < 3 || z.Data == 1) {
		return 0
	}
	return 2 * s.largestModule
}
