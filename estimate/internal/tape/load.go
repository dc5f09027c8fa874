package tape

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Load is the memory of some parameters, in bytes on one device, before data parallel replicas
// divide it.
type Load struct {
	Weights, Buffers, Master, Gradients, State int64
	Whole                                      int64 // the weights when they are gathered from all replicas, in the type in which layers compute
	Work                                       setting.Work
}

func (l *Load) add(m Load) {
	l.Weights += m.Weights
	l.Buffers += m.Buffers
	l.Whole += m.Whole
	l.Master += m.Master
	l.Gradients += m.Gradients
	l.State += m.State
	l.Work.Add(m.Work)
}

// shard divides a load among data parallel replicas.
func (l Load) shard(s setting.Sharding) Load {
	if s.ZeRO >= 1 {
		l.Master, l.State = setting.Part(l.Master, s.Data), setting.Part(l.State, s.Data)
		l.Work.Together, l.Work.Decay = setting.Part(l.Work.Together, s.Data), setting.Part(l.Work.Decay, s.Data)
	}
	if s.ZeRO >= 2 {
		l.Gradients = setting.Part(l.Gradients, s.Data)
	}
	if s.ZeRO >= 3 {
		l.Weights = setting.Part(l.Weights, s.Data)
	}
	return l
}

// Device returns the part of a load that is in the memory of one device.
func (l Load) Device(c *setting.Config) Load {
	l = l.shard(c.Sharding)
	switch c.Offload {
	case setting.OffloadParameters:
		l.Weights = 0
		fallthrough
	case setting.OffloadOptimizer:
		l.Master, l.State, l.Work = 0, 0, setting.Work{}
	case setting.OffloadPaged:
		l.State = 0
	}
	return l
}

// Host returns the part of one device's load that is in the memory of the CPU.
func (l Load) Host(c *setting.Config, training bool) alloc.Bytes {
	l = l.shard(c.Sharding)
	n := int64(0)
	switch {
	case c.Offload == setting.OffloadParameters && !training:
		n = l.Weights
	case c.Offload == "" || !training:
	case c.Offload == setting.OffloadPaged:
		n = l.State
	case l.Master > 0: // the weights there are the master copy, and gradients are as wide
		n = 2*l.Master + l.State
		if c.Offload == setting.OffloadParameters {
			n += l.Weights
		}
	default:
		n = l.Weights + l.Gradients + l.State
	}
	return alloc.Bytes(n)
}

// shared returns what a device has of a parameter that devices share because it has experts.
func (l Load) shared(expert bool, s setting.Sharding) Load {
	if !expert || s.Experts <= 1 {
		return l
	}
	l.Weights, l.Gradients = s.Own(l.Weights, 3), s.Own(l.Gradients, 2)
	l.Master, l.State = s.Own(l.Master, 1), s.Own(l.State, 1)
	l.Work.Together, l.Work.Decay = s.Own(l.Work.Together, 1), s.Own(l.Work.Decay, 1)
	l.Whole = setting.Part(l.Whole, s.Experts)
	return l
}

// padded returns what n bytes or elements of a parameter are when its first dimension is padded so that the devices have
// equal parts (torch/distributed/fsdp/_fully_shard/_fsdp_param.py, _init_sharded_param). A stack of fewer matrices than
// devices is divided by another dimension (torchtitan/distributed/fsdp.py, apply_fsdp_to_decoder).
func padded(n int64, shape alloc.Shape, devices int) int64 {
	if len(shape) == 0 || shape[0] <= 0 || len(shape) == 3 && shape[0] < devices || n > setting.MaxTotal/2 {
		return n
	}
	rows := int64(shape[0])
	more := setting.Part(rows, devices)*int64(devices) - rows
	return n + n/rows*min(more, setting.MaxTotal/4/max(1, n/rows))
}

// Widened returns the copies in float32 that DeepSpeed makes of a device's gradients as it steps, where they are narrower.
func (l Load) Widened(c *setting.Config) int64 {
	if !c.DeepSpeed() || c.Gradients.Bits() >= 32 {
		return 0
	}
	n := l.Gradients
	if c.Sharding.ZeRO == 1 {
		n = setting.Part(n, c.Sharding.Data) // the gradients stay whole
	}
	bits := int64(c.Gradients.Bits())
	return c.Sharding.Widened(n*8/bits) * 4
}
