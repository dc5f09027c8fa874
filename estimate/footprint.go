package estimate

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/history"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/timeline"
)

// maxReplayed is the largest sum that an allocator is asked about, beyond any device.
const maxReplayed = 64 << 40

// footprints asks PyTorch's allocator what it makes of inference and training.
func footprints(t *tape.Tape, r *Report, h *tape.Holding, serve, learn run) {
	if t.Cfg.Backend == setting.CPU || t.Cfg.Compute > 0 && !t.Cfg.Training { // llama.cpp allocates in its own way
		return
	}
	for _, side := range []struct {
		training bool
		memory   *Memory
		log      func() *timeline.Timeline
		events   int
		bounds   errorBounds
	}{
		{false, &r.Inference, func() *timeline.Timeline {
			return history.Serving(t, h, serve.stage, r.Inference.resident(), serve.passes)
		}, len(serve.passes.Events), servedBounds},
		{true, &r.Training, func() *timeline.Timeline {
			return history.Learning(t, h, learn.stage, r.Training.resident(), learn.passes, t.Cfg.Usual(t.Cfg.Loop), history.Steps)
		}, len(learn.passes.Events), trainedBounds},
	} {
		m := side.memory
		if t.Cfg.Searches && side.training != t.Cfg.Training {
			continue // one of them is asked about, many times
		}
		var log *timeline.Timeline
		if m.Peak.Bytes <= maxReplayed && side.events <= timeline.MaxEvents {
			log = side.log()
		}
		if log == nil || len(log.Events) > timeline.MaxEvents {
			if side.training == t.Cfg.Training {
				r.Notes = append(r.Notes, "the model has too many tensors for the allocator to be simulated: what is reserved is taken to be a fifth more than the tensors, and at most half as much again")
			}
			m.Footprint = footprintOf(t, m, m.Peak.Bytes, m.Peak.Bytes+m.Peak.Bytes/5, m.Peak.Bytes, errorBounds{Above: 0.25}, side.training)
			continue
		}
		found, _ := log.Replay(0)
		more := max(0, m.Peak.Bytes-found.Requested) // what the passes of a pipeline do not show
		m.Footprint = footprintOf(t, m, found.Allocated+more, found.Reserved+more, log.Smallest(found)+more, side.bounds, side.training)
	}
}

// footprintOf gives the values their bounds: the worst of the unknown settings of the loop and the
// machine, and the deviations that were measured.
func footprintOf(t *tape.Tape, m *Memory, allocated, reserved, smallest alloc.Bytes, b errorBounds, training bool) Footprint {
	_, more := t.Cfg.Workspace()
	if more *= 2; !layer.Ran.Of(t).Multiplies {
		more = 0
	}
	if t.Cfg.Lora != nil {
		b.Above = max(b.Above, adaptedBounds.Above)
	}
	if reserved < small {
		b.Above = max(b.Above, smallBounds.Above)
	}
	if layer.Ran.Of(t).Unmeasured != 0 {
		b.Above = max(b.Above, unmeasuredBounds.Above)
	}
	if layer.Ran.Of(t).Routed {
		b.Below = max(b.Below, routedBounds.Below)
	}
	if layer.Ran.Of(t).Convolutions > 1 { // one makes the patches of a transformer
		b = convolutionalBounds
	}
	b.Above = max(b.Above, m.bounds.Above, (1+b.Above)*(1+m.bounds.Above)-1-measured.training.Above)
	b.Below = max(b.Below, m.bounds.Below, 1-(1-b.Below)*(1-m.bounds.Below)/(1-measured.training.Below))
	value := func(n alloc.Bytes, b errorBounds) Value {
		f := within(n, b, more)
		if training {
			f.Lower -= within(min(doubted(t), max(0, n-m.Peak.Bytes)), b, 0).Lower
		}
		f.Lower = max(f.Lower, min(n, m.Weights)) // which are there, whatever runs
		return f
	}
	context := contextOf(t.Cfg)
	f := Footprint{Allocated: value(allocated, b), Reserved: value(reserved, gathers(t, b)), Context: context}
	f.Device = f.Reserved.plus(context)
	f.Needed = value(smallest, b).plus(context)
	return f
}

// doubted returns the size of the largest convolution workspace, or 0 if it was measured on such a
// GPU. On later GPUs tensor cores compute float32 too, by other algorithms.
func doubted(t *tape.Tape) alloc.Bytes {
	switch t.Cfg.Machine.GPU {
	case setting.Pascal, setting.Volta, setting.Turing:
		return 0
	}
	return layer.Ran.Of(t).Transformed
}

// gathers returns the bounds of the reserved memory when parameters are gathered from all devices.
func gathers(t *tape.Tape, b errorBounds) errorBounds {
	if z := t.Cfg.Sharding; z.ZeRO >= 3 && z.Data > 1 && !t.Cfg.Gathers() {
		b.Above = max(b.Above, gatheredBounds.Above)
	}
	return b
}

// small is what is reserved for a small model.
const small = 2 * alloc.GiB

// The error bounds of the allocator's values, by kind of model. TestPublished compares them with
// measurements on GPUs (docs/estimate.md). Most workspaces of cuDNN are not modelled, so
// convolutional models may need more.
var (
	servedBounds        = errorBounds{Below: 0.05, Above: 0.05}
	trainedBounds       = errorBounds{Below: 0.09, Above: 0.08}
	adaptedBounds       = errorBounds{Below: 0.09, Above: 0.10} // with adapters: their libraries differ in what they copy
	smallBounds         = errorBounds{Below: 0.09, Above: 0.15} // for less than small, where one segment is a larger part
	convolutionalBounds = errorBounds{Below: 0.09, Above: 0.20}
	// FSDP gathers and sums on its own streams, whose blocks no other stream uses. A block that it
	// still waits for is not free (PyTorch's notes on FSDP, "limit_all_gathers").
	gatheredBounds = errorBounds{Above: 0.40}
	// Experts are called at once; loops that call one after the other need less.
	routedBounds = errorBounds{Below: 0.15}
	// No measurement on a GPU was found of these kinds, so they have the widest bounds of the others.
	unmeasuredBounds = convolutionalBounds
)

// contextOf is the size of the CUDA context, and what it may be on the machine that is known.
func contextOf(c *setting.Config) Value {
	bytes, least, most := c.Machine.Context()
	return Value{Bytes: bytes, Lower: least, Upper: most}
}
