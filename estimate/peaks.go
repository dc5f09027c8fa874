package estimate

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// withoutInput fills in what is known of a model without an input.
func withoutInput(r *Report, h *holding, cfg *config) error {
	l := cfg.device(h.total)
	if cfg.sharding.Pipeline > 1 {
		r.Notes = append(r.Notes, "without an input the layers are not cut into stages: the figures are those of all stages")
	}
	r.Gradients = alloc.Bytes(l.gradients)
	cache, err := cfg.cacheBytes()
	if err != nil {
		return err
	}
	r.Inference, r.Training = l.memory(false), l.memory(true)
	r.Inference.Host, r.Training.Host = cfg.host(h.total, false), cfg.host(h.total, true)
	r.Inference.Cache = cache
	r.Inference.close("loading")
	r.Training.Buckets = cfg.buckets(l)
	r.Training.Gradients = alloc.Bytes(l.gradients)
	r.Training.close("optimizer step")
	return nil
}

func (c *config) cacheBytes() (alloc.Bytes, error) {
	if c.cache == nil {
		return 0, nil
	}
	return KVCache(c.cache.shard(c.sharding))
}

// memory is what is held all the time.
func (l load) memory(training bool) Memory {
	m := Memory{Weights: alloc.Bytes(l.weights), Buffers: alloc.Bytes(l.buffers)}
	if training {
		m.Master, m.Optimizer = alloc.Bytes(l.master), alloc.Bytes(l.state)
	}
	return m
}

// close adds up the parts.
func (m *Memory) close(at string) {
	m.PeakAt = at
	m.Peak = m.held() + m.Gradients + m.Saved + m.Transient
}

// buckets is the copy of the gradients that DistributedDataParallel keeps for sending unless
// gradient_as_bucket_view is set. Megatron and DeepSpeed, which MixedPrecision stands
// for, and ZeRO have none.
func (c *config) buckets(l load) alloc.Bytes {
	if c.sharding.Data == 1 || c.sharding.ZeRO > 0 || c.master {
		return 0
	}
	return alloc.Bytes(l.gradients)
}

// kept is the memory that is held all the time, by itself.
func (m Memory) kept() Memory {
	m.Gradients, m.Saved, m.Transient = 0, 0, 0
	return m
}

// held is what is there all the time.
func (m *Memory) held() alloc.Bytes {
	return m.Weights + m.Buffers + m.Master + m.Optimizer + m.Input + m.Cache + m.Buckets
}

// peaks finds the moment at which each device needs most, reports the device that needs
// most, and returns what it does when it runs and when it trains.
func peaks(r *Report, t *Tape, h *holding) (serve, learn run, err error) {
	stages, err := t.stages(h)
	if err != nil {
		return serve, learn, err
	}
	cache, err := t.cfg.cacheBytes()
	if err != nil {
		return serve, learn, err
	}
	var input int64
	for i := range t.storages {
		if t.storages[i].input {
			input += t.storages[i].bytes
		}
	}
	gradients := t.gradients(h)
	loop := t.cfg.usual(t.cfg.loop)
	for i, s := range stages {
		name := ""
		if len(stages) > 1 {
			name = fmt.Sprintf("stage %d: ", i)
		}
		held := t.cfg.device(s.load)
		running := run{stage: s, memory: held.memory(false)}
		training := run{stage: s, memory: held.memory(true), gradients: gradients}
		running.memory.Host, training.memory.Host = t.cfg.host(s.load, false), t.cfg.host(s.load, true)
		if i == 0 {
			running.memory.Input, training.memory.Input = alloc.Bytes(input), alloc.Bytes(input)
		}
		running.memory.Cache = cache
		training.memory.Buckets = t.cfg.buckets(held)
		training.others = min(len(stages)-i, t.cfg.sharding.MicroBatches) - 1
		if int64(r.Kept) > maxTotal/int64(training.others+1) {
			return serve, learn, fmt.Errorf("estimate %s: what %d micro-batches keep takes more than %v", t.cfg.name, training.others+1, alloc.Bytes(maxTotal))
		}
		t.infer(&running, name)
		t.train(&training, name, loop, t.log())
		if i == 0 || running.memory.Peak > serve.memory.Peak {
			serve = running
		}
		if i == 0 || training.memory.Peak > learn.memory.Peak {
			learn = training
			r.Gradients = alloc.Bytes(held.gradients)
		}
	}
	r.Inference, r.Training = serve.memory, learn.memory
	t.setBands(r, learn)
	return serve, learn, nil
}

// run is what a device does: a stage, and what is found of it.
type run struct {
	stage     stage
	memory    Memory
	gradients []gradient
	others    int // micro-batches of a pipeline that are kept meanwhile
	passes    passes
}

func (t *Tape) infer(r *run, name string) {
	var p peak
	if s := r.stage; s.end > s.begin {
		p, r.passes = inference(t, s.begin, s.end, t.log())
	}
	r.memory.Transient = alloc.Bytes(p.bytes + t.fetched(r.stage))
	r.memory.close(name + "forward of " + t.place(p.op))
}

// log is a new timeline if an allocator is to be asked about it.
func (t *Tape) log() *timeline {
	if t.cfg.backend == CPU {
		return nil
	}
	l := &timeline{}
	t.memory.lend(l)
	return l
}

// train finds the highest of the passes of a step and of the optimizer's work; the log takes what
// happens in the first, and may be nil.
func (t *Tape) train(r *run, name string, loop Loop, log *timeline) {
	m, s := r.memory, r.stage
	held := t.cfg.device(s.load)
	var p peak
	if s.end > s.begin {
		drop := loop.Output == OutputDropped
		for i, from := range loop.passes(held.gradients, t.cfg.passing()) {
			if i == 0 {
				p, r.passes = training(t, s.begin, s.end, r.gradients, from, int64(r.others), drop, log)
			} else if q, _ := training(t, s.begin, s.end, r.gradients, from, int64(r.others), drop, nil); q.bytes > p.bytes {
				p = q
			}
		}
	}
	m.Saved = alloc.Bytes(p.saved)
	m.Gradients = alloc.Bytes(p.gradients)
	m.Transient = alloc.Bytes(p.bytes - p.saved - p.gradients + t.fetched(s))
	direction := "forward of "
	if p.backward {
		direction = "backward of "
	}
	m.close(name + direction + t.place(p.op))
	if step := t.step(m, held, s.last, loop, name); step.Peak > m.Peak {
		m = step
	}
	r.memory = m
}

// step is the memory while the optimizer steps, if it does so by itself and on the device.
func (t *Tape) step(m Memory, held load, last bool, loop Loop, name string) Memory {
	if t.cfg.passing() {
		return Memory{}
	}
	m.Saved = 0
	m.Gradients = alloc.Bytes(held.gradients)
	m.Transient = alloc.Bytes(held.work.temporary(loop.Form, loop.Decay))
	if last && loop.Output == OutputHeld {
		m.Transient += t.returned()
	}
	m.close(name + "optimizer step")
	return m
}

// returned is the size of what the model's caller holds by what it sees.
func (t *Tape) returned() alloc.Bytes {
	n := int64(0)
	for id := range t.storages {
		if t.returns(int32(id), false) {
			n += t.storages[id].bytes
		}
	}
	return alloc.Bytes(n)
}

// widen lets the band of training reach to the worst and the best of the settings that are not
// known, and says which of them the upper bound depends on most.
func (t *Tape) widen(r *Report, known run) {
	loop := t.cfg.loop
	if t.cfg.master { // whose kernels are known
		loop.Form = or(loop.Form, Fused)
	}
	doubts, worst, best := loop.doubts(t.cfg.optimizer)
	if t.cfg.backend == CPU {
		return
	}
	peak := func(l Loop) float64 {
		again := known
		again.memory = known.memory.kept()
		t.train(&again, "", t.cfg.usual(l), nil)
		return float64(again.memory.Peak)
	}
	m := &r.Training
	usual := float64(m.Peak)
	if t.cfg.loop.Output == OutputUnknown && t.returned() > 0 {
		m.Band.Below = 1 - (1-m.Band.Below)*min(1, peak(best)/usual)
	}
	most, name := usual, ""
	for _, d := range doubts {
		if p := peak(d.worst); p > most {
			most, name = p, d.name
		}
	}
	beyond, other := t.beyond()
	if float64(beyond) > most-usual {
		name = other
	}
	if name == "" {
		return
	}
	if len(doubts) > 1 {
		most = max(most, peak(worst))
	}
	m.Band.Above = (1+m.Band.Above)*(most+float64(beyond))/usual - 1
	if t.cfg.training {
		r.Notes = append(r.Notes, "the upper bound depends most on "+name)
	}
}

// place names the layer of an operation.
func (t *Tape) place(i int32) string {
	if int(i) >= len(t.ops) || t.ops[i].row < 0 {
		return "the model"
	}
	return or(t.rows[t.ops[i].row].Path, "the model")
}
