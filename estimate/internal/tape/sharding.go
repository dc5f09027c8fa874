package tape

import (
	"fmt"
)

// Sharding divides a model among devices. The zero value is one device.
type Sharding struct {
	// Data is the number of replicas, each with a batch of its own: the input
	// is that of one replica.
	Data int
	// ZeRO is the stage by which the replicas divide what they hold: 1 the
	// optimizer's states, 2 the gradients too, 3 the weights too
	// (arXiv:1910.02054, section 5). FSDP's full shard is stage 3, and taken for it: where parameters are
	// frozen it holds what checkpointed layers read, and its gradients, until the backward pass is over.
	ZeRO int
	// Tensor is the number of devices that share each split layer: Linear and
	// Embedding with Split, and what is made of them, as in Megatron-LM
	// (arXiv:1909.08053, section 3). It must divide the heads of attention; where there are fewer heads of
	// keys and values than devices, it must be a multiple of these.
	Tensor int
	// Pipeline is the number of stages into which the layers are cut, where a
	// single tensor passes, so that the largest stage is as small as can be.
	Pipeline int
	// MicroBatches is the number of micro-batches of a step, each of the
	// input's size; 0 means as many as stages. With the 1F1B schedule stage i,
	// from 0, keeps the activations of min(Pipeline - i, MicroBatches) of them
	// (arXiv:2104.04473, section 2.2).
	MicroBatches int
}

// maxDevices bounds each way of sharding.
const maxDevices = 1 << 20

// check fills in the defaults and reports what makes no sense.
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

// devices is the number of devices that share the weights or the layers.
func (s Sharding) Devices() int {
	n := s.Tensor * s.Pipeline
	if s.ZeRO >= 3 {
		n *= s.Data
	}
	return n
}
