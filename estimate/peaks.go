package estimate

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/peak"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/timeline"
)

// withoutInput fills in what is known of a model without an input.
func withoutInput(r *Report, h *tape.Holding, cfg *setting.Config) error {
	l := h.Total.Device(cfg)
	if cfg.Sharding.Pipeline > 1 {
		r.Notes = append(r.Notes, "without an input the layers are not cut into stages: the values are those of all stages")
	}
	r.Gradients = alloc.Bytes(l.Gradients)
	cache, err := cached(cfg)
	if err != nil {
		return err
	}
	r.Inference, r.Training = memoryOf(l, false), memoryOf(l, true)
	r.Inference.Host, r.Training.Host = h.Total.Host(cfg, false), h.Total.Host(cfg, true)
	r.Inference.keep(cache)
	r.Inference.close("loading")
	r.Training.Buckets = buckets(cfg, l)
	r.Training.Gradients = alloc.Bytes(l.Gradients)
	r.Training.close(optimizerStep)
	return nil
}

// cached is the key/value cache of one device.
func cached(c *setting.Config) (setting.Moments, error) {
	if c.Cache == nil {
		return setting.Moments{}, nil
	}
	return setting.CacheMoments(c.Cache.Shard(c.Sharding))
}

// keep sets the parts of the cache.
func (m *Memory) keep(k setting.Moments) {
	m.Cache, m.Keys, m.Values = k.Prompt.All(), k.Prompt.Keys, k.Prompt.Values
	m.CacheNext, m.CachePeak = k.Next.All(), k.Peak
}

// memoryOf returns the memory that is held all the time.
func memoryOf(l tape.Load, training bool) Memory {
	m := Memory{Weights: alloc.Bytes(l.Weights), Buffers: alloc.Bytes(l.Buffers)}
	if training {
		m.Master, m.Optimizer = alloc.Bytes(l.Master), alloc.Bytes(l.State)
	}
	return m
}

// close adds up the parts.
func (m *Memory) close(at string) {
	m.PeakAt = at
	m.Peak.Bytes = m.held() + m.Gradients + m.Saved + m.Transient
}

// buckets is the copy of the gradients that DistributedDataParallel keeps for sending unless
// gradient_as_bucket_view is set. Megatron, which MixedPrecision stands for, and ZeRO have none, but
// DeepSpeed's buffers.
func buckets(c *setting.Config, l tape.Load) alloc.Bytes {
	if c.DeepSpeed() && l.Gradients > 0 {
		d := c.Activations
		if c.Sharding.ZeRO == 1 {
			d = c.Gradients
		}
		return alloc.Bytes(c.Sharding.Buckets() * int64(d.Bits()) / 8)
	}
	if c.Sharding.Data == 1 || c.Sharding.ZeRO > 0 || c.Master {
		return 0
	}
	return alloc.Bytes(l.Gradients)
}

// optimizerStep is the PeakAt of a peak there.
const optimizerStep = "optimizer step"

// kept is the memory that is held all the time, by itself.
func (m Memory) kept() Memory {
	m.Gradients, m.Saved, m.Transient, m.inPass = 0, 0, 0, passing{}
	return m
}

// held sums up the memory that is held all the time.
func (m *Memory) held() alloc.Bytes {
	return m.Weights + m.Buffers + m.Master + m.Optimizer + m.Input + m.Cache + m.Buckets
}

// peaks finds the moment at which each device needs most, reports the device that needs
// most, and returns what it does when it runs and when it trains.
func peaks(r *Report, t *tape.Tape, h *tape.Holding) (serve, learn run, err error) {
	stages, err := t.Stages(h)
	if err != nil {
		return serve, learn, err
	}
	cache, err := cached(t.Cfg)
	if err != nil {
		return serve, learn, err
	}
	var input int64
	for i := range t.Storages {
		if t.Storages[i].Input {
			input += t.Storages[i].Bytes
		}
	}
	gradients := t.Gradients(h)
	tape.Gather(t, h)
	loop := t.Cfg.Usual(t.Cfg.Loop)
	for i, s := range stages {
		name := ""
		if len(stages) > 1 {
			name = fmt.Sprintf("stage %d: ", i)
		}
		held := s.Load.Device(t.Cfg)
		running := run{stage: s, memory: memoryOf(held, false)}
		training := run{stage: s, memory: memoryOf(held, true), gradients: gradients}
		running.memory.Host, training.memory.Host = s.Load.Host(t.Cfg, false), s.Load.Host(t.Cfg, true)
		if i == 0 {
			running.memory.Input, training.memory.Input = alloc.Bytes(input), alloc.Bytes(input)
		}
		running.memory.keep(cache)
		training.memory.Buckets = buckets(t.Cfg, held)
		training.others = min(len(stages)-i, t.Cfg.Sharding.MicroBatches) - 1
		if int64(r.Retained) > setting.MaxTotal/int64(training.others+1) {
			return serve, learn, fmt.Errorf("estimate %s: what %d micro-batches keep takes more than %v", t.Cfg.Name, training.others+1, alloc.Bytes(setting.MaxTotal))
		}
		infer(t, &running, name)
		train(t, &training, name, loop, newLog(t))
		if i == 0 || running.memory.Peak.Bytes > serve.memory.Peak.Bytes {
			serve = running
		}
		if i == 0 || training.memory.Peak.Bytes > learn.memory.Peak.Bytes {
			learn = training
			r.Gradients = alloc.Bytes(held.Gradients)
		}
	}
	r.Inference, r.Training = serve.memory, learn.memory
	setBounds(t, r, learn)
	return serve, learn, nil
}

// run is the work of one device, a stage, with what is found about it.
type run struct {
	stage     tape.Stage
	memory    Memory
	gradients []tape.Gradient
	others    int // micro-batches of a pipeline that are kept meanwhile
	passes    timeline.Passes
}

func infer(t *tape.Tape, r *run, name string) {
	var p peak.Peak
	if s := r.stage; s.End > s.Begin {
		p, r.passes = peak.Inference(t, s.Begin, s.End, newLog(t))
	}
	r.memory.Transient = alloc.Bytes(p.Bytes + tape.Fetched(t, r.stage, false))
	r.memory.close(name + "forward of " + layerName(t, p.Op))
}

// newLog returns a timeline for the allocator to replay, or nil on the CPU, which has no caching allocator.
func newLog(t *tape.Tape) *timeline.Timeline {
	if t.Cfg.Backend == setting.CPU {
		return nil
	}
	l := &timeline.Timeline{}
	t.Memory.Lend(l)
	return l
}

// train finds the highest of the passes of a step and of the optimizer's work; the log takes what
// happens in the first, and may be nil.
func train(t *tape.Tape, r *run, name string, loop setting.Loop, log *timeline.Timeline) {
	m, s := r.memory, r.stage
	held := s.Load.Device(t.Cfg)
	var p peak.Peak
	if s.End > s.Begin {
		drop := loop.Output == setting.OutputDropped
		for i, from := range loop.Passes(held.Gradients, t.Cfg.Passing()) {
			if i == 0 {
				p, r.passes = peak.Training(t, s.Begin, s.End, r.gradients, from, int64(r.others), drop, log)
			} else if q, _ := peak.Training(t, s.Begin, s.End, r.gradients, from, int64(r.others), drop, nil); q.Bytes > p.Bytes {
				p = q
			}
		}
	}
	m.Saved = alloc.Bytes(p.Saved)
	m.Gradients = alloc.Bytes(p.Gradients)
	m.Transient = alloc.Bytes(p.Bytes - p.Saved - p.Gradients + tape.Fetched(t, s, true))
	direction := "forward of "
	if p.Backward {
		direction = "backward of "
	}
	m.close(name + direction + layerName(t, p.Op))
	m.inPass = passing{m.Peak.Bytes, m.Gradients + m.Saved + m.Transient}
	if step := step(t, m, held, s.Last, loop, name); step.Peak.Bytes > m.Peak.Bytes {
		m = step
	}
	r.memory = m
}

// step is the memory while the optimizer steps, if it does so by itself and on the device.
func step(t *tape.Tape, m Memory, held tape.Load, last bool, loop setting.Loop, name string) Memory {
	if t.Cfg.Passing() {
		return Memory{}
	}
	m.Saved = 0
	m.Gradients = alloc.Bytes(held.Gradients)
	m.Transient = alloc.Bytes(held.Work.Temporary(loop.Form, loop.Decay) + held.Widened(t.Cfg))
	if last && loop.Output == setting.OutputHeld {
		m.Transient += returned(t)
	}
	m.close(name + optimizerStep)
	return m
}

// returned is the size of what the model's caller holds.
func returned(t *tape.Tape) alloc.Bytes {
	n := int64(0)
	for id := range t.Storages {
		if peak.Returns(t, int32(id), false) {
			n += t.Storages[id].Bytes
		}
	}
	return alloc.Bytes(n)
}

// widen adds terms for the settings of a training loop that are not known. Each is as large as the worst choice
// is worse than the usual one, together with the worst of those before it. It returns their sum, and the passes in the worst
// case of all.
func widen(t *tape.Tape, r *Report, known run) (open alloc.Bytes, worst passing) {
	m := &r.Training
	if worst = m.inPass; t.Cfg.Backend == setting.CPU {
		return 0, worst
	}
	loop := t.Cfg.Loop
	if t.Cfg.Master { // whose kernels are known
		loop.Form = setting.Or(loop.Form, setting.Fused)
	}
	with := func(l setting.Loop) Memory {
		again := known
		again.memory = known.memory.kept()
		train(t, &again, "", t.Cfg.Usual(l), nil)
		return again.memory
	}
	doubts, best := loop.Doubts(t.Cfg.Optimizer)
	if loop.Output == "" && returned(t) > 0 {
		m.doubt(ofTensors, "the model's output", "it is not known whether the loop keeps it: Loop.Output says it", m.Peak.Bytes-with(best).Peak.Bytes, 0)
	}
	for _, d := range doubts {
		w := with(d.Worst)
		more := max(0, w.Peak.Bytes-m.Peak.Bytes-open)
		m.doubt(ofTensors, d.Of, "it is not known "+d.What+": "+d.Says+" says it", 0, more)
		open, worst = open+more, w.inPass
	}
	for _, b := range t.Beyond() {
		n := alloc.Bytes(b.Bytes)
		m.doubt(ofTensors, b.Of, "it is not known "+b.What+": "+b.Says+" says it", 0, n)
		open, worst.all, worst.uncertain = open+n, worst.all+n, worst.uncertain+n
	}
	return open, worst
}

// layerName names the layer of an operation.
func layerName(t *tape.Tape, i int32) string {
	if int(i) >= len(t.Ops) || t.Ops[i].Row < 0 {
		return "the model"
	}
	return setting.Or(t.Rows[t.Ops[i].Row].Path, "the model")
}
