package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// maxReplayed is the largest sum that an allocator is asked about, beyond any device.
const maxReplayed = 64 << 40

// footprints asks PyTorch's allocator what it makes of inference and training.
func (t *Tape) footprints(r *Report, h *holding, serve, learn run) {
	if t.cfg.backend == CPU {
		return
	}
	for _, side := range []struct {
		training bool
		memory   *Memory
		log      func() *timeline
		events   int
		band     Band
	}{
		{false, &r.Inference, func() *timeline { return t.serving(h, serve.stage, r.Inference, serve.passes) }, len(serve.passes.events), servedBand},
		{true, &r.Training, func() *timeline {
			return t.learning(h, learn.stage, r.Training, learn.passes, t.cfg.usual(t.cfg.loop), steps)
		}, len(learn.passes.events), trainedBand},
	} {
		m := side.memory
		if t.cfg.searches && side.training != t.cfg.training {
			continue // one of them is asked about, many times
		}
		var log *timeline
		if m.Peak <= maxReplayed && side.events <= maxEvents {
			log = side.log()
		}
		if log == nil || len(log.events) > maxEvents {
			if side.training == t.cfg.training {
				r.Notes = append(r.Notes, "the model is too large to ask an allocator about: what is reserved is taken to be a fifth above the tensors, and at most half")
			}
			m.Footprint = t.footprint(m, m.Peak, m.Peak+m.Peak/5, m.Peak, Band{Above: 0.25}, side.training)
			continue
		}
		found, _ := log.replay(0)
		more := max(0, m.Peak-found.requested) // what the passes of a pipeline do not show
		m.Footprint = t.footprint(m, found.allocated+more, found.reserved+more, log.smallest(found)+more, side.band, side.training)
	}
}

// footprint gives the figures their bands: the worst of what is not known of the loop and the
// machine, and of what was measured.
func (t *Tape) footprint(m *Memory, allocated, reserved, smallest alloc.Bytes, b Band, training bool) Footprint {
	_, more := t.cfg.workspace()
	if more *= 2; !t.multiplies {
		more = 0
	}
	if t.cfg.lora != nil {
		b.Above = max(b.Above, adaptedBand.Above)
	}
	if reserved < small {
		b.Above = max(b.Above, smallBand.Above)
	}
	if t.unmeasured != 0 {
		b.Above = max(b.Above, unmeasuredBand.Above)
	}
	if t.scores.Shape != nil {
		b.Below = max(b.Below, routedBand.Below)
	}
	if t.convolutions > 1 { // one makes the patches of a transformer
		b = convolutionalBand
	}
	b.Above = max(b.Above, m.Band.Above, (1+b.Above)*(1+m.Band.Above)-1-measured.training.Above)
	b.Below = max(b.Below, m.Band.Below, 1-(1-b.Below)*(1-m.Band.Below)/(1-measured.training.Below))
	figure := func(n alloc.Bytes, b Band) Figure {
		f := within(n, b, more)
		if training {
			f.Lower -= within(min(t.doubted(), max(0, n-m.Peak)), b, 0).Lower
		}
		return f
	}
	context := t.cfg.machine.context()
	f := Footprint{Allocated: figure(allocated, b), Reserved: figure(reserved, t.gathers(b)), Context: context}
	f.Device = f.Reserved.plus(context)
	f.Needed = figure(smallest, b).plus(context)
	return f
}

// doubted is the largest workspace of a convolution, unless it was measured on such a GPU: on later ones tensor
// cores compute float32 too, by other algorithms.
func (t *Tape) doubted() alloc.Bytes {
	if gpu := t.cfg.machine.GPU; gpu != UnknownGPU && gpu < Ampere {
		return 0
	}
	return t.transformed
}

// gathers is the band of what is reserved where parameters are gathered from all devices.
func (t *Tape) gathers(b Band) Band {
	if z := t.cfg.sharding; z.ZeRO >= 3 && z.Data > 1 {
		b.Above = max(b.Above, gatheredBand.Above)
	}
	return b
}

// small is what is reserved for a small model.
const small = 2 * alloc.GiB

// The bands of what an allocator makes of a run, by the kind of model. TestPublished holds
// them against what was measured on GPUs (docs/estimate.md). Most workspaces of cuDNN
// are not modelled, so that convolutional models may lie further above.
var (
	servedBand        = Band{Below: 0.05, Above: 0.05}
	trainedBand       = Band{Below: 0.09, Above: 0.08}
	adaptedBand       = Band{Below: 0.09, Above: 0.10} // with adapters, whose libraries differ in what they copy
	smallBand         = Band{Below: 0.09, Above: 0.15} // of less than small, where a segment counts for more
	convolutionalBand = Band{Below: 0.09, Above: 0.20}
	// FSDP gathers and sums on streams of its own, whose blocks no other stream uses; one that it still
	// waits for is not free (PyTorch's notes on FSDP, "limit_all_gathers").
	gatheredBand = Band{Above: 0.40}
	// Experts are called at once; loops that call one after the other need less.
	routedBand = Band{Below: 0.15}
	// Kinds that nobody was found to have measured on a GPU have the widest of the others.
	unmeasuredBand = convolutionalBand
)
