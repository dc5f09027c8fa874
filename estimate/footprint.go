package estimate

import (
	"fmt"

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
	}{
		{false, &r.Inference, func() *timeline.Timeline {
			return history.Serving(t, h, serve.stage, r.Inference.resident(), serve.passes)
		}, len(serve.passes.Events)},
		{true, &r.Training, func() *timeline.Timeline {
			return history.Learning(t, h, learn.stage, r.Training.resident(), learn.passes, t.Cfg.Usual(t.Cfg.Loop), history.Steps)
		}, len(learn.passes.Events)},
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
			fill(t, m, m.Peak.Bytes, m.Peak.Bytes+m.Peak.Bytes/5, m.Peak.Bytes)
			const why = "the model has too many tensors for the allocator to be simulated"
			m.doubt(ofBlocks, "blocks", why, 0, m.Peak.Bytes/4)
			m.doubt(ofSegments, "cache of the allocator", why, m.Peak.Bytes/5, m.Peak.Bytes/20)
		} else {
			found, _ := log.Replay(0)
			more := max(0, m.Peak.Bytes-found.Requested) // what the passes of a pipeline do not show
			fill(t, m, found.Allocated+more, found.Reserved+more, log.Smallest(found)+more)
			doubtBlocks(t, m, largestWeight(t, h), side.training)
		}
		doubtRouting(t, m, side.training)
		doubtKernels(t, m, side.training)
	}
}

// fill sets the amounts of the footprint.
func fill(t *tape.Tape, m *Memory, allocated, reserved, smallest alloc.Bytes) {
	context := contextOf(t.Cfg)
	f := &m.Footprint
	f.Allocated.Bytes, f.Reserved.Bytes, f.Context = allocated, reserved, context
	f.Device.Bytes, f.Needed.Bytes = reserved+context.Bytes, smallest+context.Bytes
}

// doubtBlocks adds terms for what the simulated allocator does not know: the other tensors of a program, and the order in which
// it allocates.
func doubtBlocks(t *tape.Tape, m *Memory, largest alloc.Bytes, training bool) {
	f, cut := &m.Footprint, servedCut
	if training {
		cut = trainedCut
	}
	rounding := f.Allocated.Bytes - m.Peak.Bytes
	less := rounding
	if training { // the second step has tensors of the first beside its own
		rounding = max(0, rounding-doubted(t))
		less = rounding / 4
	}
	m.doubt(ofBlocks, "rounding to blocks", "small tensors around the model are not known", less, smallTensors+rounding/4)
	free := f.Reserved.Bytes - f.Allocated.Bytes
	more := alloc.Bytes(cut*float64(f.Reserved.Bytes-min(f.Reserved.Bytes, m.Weights+m.Master))) + free/4 + largest
	const why = "the order in which a program allocates decides how segments are cut up"
	m.doubt(ofSegments, "cache of the allocator", why, free, more)
	if training {
		m.doubt(ofNeeded, "cache of the allocator", why, 0, more/2)
	}
	if z := t.Cfg.Sharding; z.ZeRO >= 3 && z.Data > 1 && !t.Cfg.Gathers() {
		m.doubt(ofSegments, "gathered parameters", "FSDP gathers and sums on streams of its own, whose blocks no other stream uses", 0, alloc.Bytes(gathered*float64(f.Reserved.Bytes)))
	}
	if t.Cfg.Offload == setting.OffloadPaged {
		m.doubt(ofDevice, "paged states", "the driver keeps as many of them on the device as there is room for", 0, m.Host)
	}
}

// uneven is how many times its share of the tokens a device may get that shares experts: the capacity that GShard leaves
// (arXiv:2006.16668, section 2.2). Programs that drop no tokens have no limit of their own.
const uneven = 2

// doubtRouting adds terms for the experts of a mixture, whose tensors are as large as the router makes them in each step.
// A block that one step leaves behind may be too small for the next one's, unless segments expand.
func doubtRouting(t *tape.Tape, m *Memory, training bool) {
	varying := layer.Ran.Of(t).Varying
	shared := t.Cfg.Sharding.Experts > 1
	if !training || varying == 0 || !shared && !t.Cfg.Loops() {
		return
	}
	if shared {
		m.doubt(ofTensors, "tokens of experts", "routing is uneven: a device may get twice its share of the tokens", 0, (uneven-1)*varying)
	}
	if !t.Cfg.Expandable {
		m.doubt(ofSegments, "cache of the allocator", "experts get other numbers of tokens in each step, whose tensors fit no block of the last one", 0, varying)
	}
}

// doubtKernels adds terms for what kernels need, and for the CUDA context.
func doubtKernels(t *tape.Tape, m *Memory, training bool) {
	ran := layer.Ran.Of(t)
	if _, more := t.Cfg.Workspace(); ran.Multiplies {
		m.doubt(ofBlocks, "workspaces of cuBLAS", "they are larger on Hopper and Blackwell: Machine.GPU says which GPU it is", 0, 2*more)
	}
	if ran.Convolutions > 0 {
		less, more := alloc.Bytes(0), max(leastConvolved, ran.Convolved)
		if training {
			if less = min(doubted(t), max(0, m.Footprint.Allocated.Bytes-m.Peak.Bytes)); !newer(t) { // those of the gradients are in the values
				more = leastConvolved
			}
		}
		m.doubt(ofBlocks, "workspaces of cuDNN", "which algorithm it chooses for a convolution is not known", less, more)
	}
	c := m.Footprint.Context
	m.doubt(ofContext, "CUDA context", contextReason(t.Cfg, c), c.Bytes-c.Lower, c.Upper-c.Bytes)
}

// largestWeight is the size of the largest parameter, of which loading a file leaves a free copy in the cache. Parts of which
// only the sum of all parameters is known have none.
func largestWeight(t *tape.Tape, h *tape.Holding) (n alloc.Bytes) {
	for _, p := range h.Each {
		if t.Decl.Modules[p.Module].Kind != "Stored" {
			n = max(n, alloc.Bytes(p.Load.Weights))
		}
	}
	return n
}

// doubted returns the size of the largest convolution workspace, or 0 if it was measured on such a
// GPU.
func doubted(t *tape.Tape) alloc.Bytes {
	if !newer(t) {
		return 0
	}
	return layer.Ran.Of(t).Transformed
}

// newer reports whether the GPU is not known to be older than Ampere. From then on tensor cores compute float32 too, by other
// algorithms.
func newer(t *tape.Tape) bool {
	switch t.Cfg.Machine.GPU {
	case setting.Pascal, setting.Volta, setting.Turing:
		return false
	}
	return true
}

// How far the allocator's values may be off. TestPublished compares them with measurements on GPUs (docs/estimate-cases.md).
const (
	smallTensors = 32 * alloc.MiB // of the program around the model: token ids, masks, what it logs
	servedCut    = 0.02           // shares of what is reserved besides the weights
	trainedCut   = 0.10
	// FSDP gathers and sums on its own streams, whose blocks no other stream uses. A block that it
	// still waits for is not free (PyTorch's notes on FSDP, "limit_all_gathers").
	gathered       = 0.40
	leastConvolved = 32 * alloc.MiB // workspaces of the smallest convolutions
)

// The shares of activations by which peaks on a GPU may be off, by kind of model: as far as measured runs were, of those whose
// settings are known (docs/estimate-cases.md), rounded up.
var (
	servedWidth    = errorBounds{Below: 0.30, Above: 0.25}
	trainedWidth   = errorBounds{Below: 0.25, Above: 0.15}
	convolvedWidth = errorBounds{Below: 0.25, Above: 0.08} // beside cuDNN's workspaces
	adaptedWidth   = errorBounds{Below: 0.50, Above: 0.20} // with adapters: their libraries differ in what they copy
	// Temporaries of an optimizer's step are counted from shapes.
	stepAbove       = 0.05
	unmeasuredWidth = errorBounds{Below: 0.50, Above: 0.40}
	// Experts are taken to be called at once; loops that call one after the other need less.
	routedBelow = 0.50
)

// widthOf returns how far the activations may be off on a GPU, and the reason.
func widthOf(t *tape.Tape, training bool) (errorBounds, string) {
	ran := layer.Ran.Of(t)
	b, reason := servedWidth, "how long each tensor lives is modelled"
	switch {
	case ran.Unmeasured != 0:
		return unmeasuredWidth, fmt.Sprintf("few or no measurements on GPUs are known of %v: Report.Beside puts a run of yours beside the estimate", ran.Unmeasured)
	case t.Cfg.Lora != nil && training:
		b, reason = adaptedWidth, "libraries of adapters differ in what they copy"
	case training && ran.Convolutions > 1: // one makes the patches of a transformer
		b = convolvedWidth
	case training:
		b = trainedWidth
	}
	if ran.Routed {
		b.Below = max(b.Below, routedBelow)
	}
	return b, reason
}

// contextOf is the size of the CUDA context, and what it may be on the machine that is known.
func contextOf(c *setting.Config) Value {
	bytes, least, most := c.Machine.Context()
	return Value{Bytes: bytes, Lower: least, Upper: most}
}
