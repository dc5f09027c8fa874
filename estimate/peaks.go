package estimate

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// withoutInput fills in what is known of a model without an input.
func withoutInput(r *Report, h *holding, cfg *config) error {
	l := h.total.shard(cfg.sharding)
	if cfg.sharding.Pipeline > 1 {
		r.Notes = append(r.Notes, "without an input the layers are not cut into stages: the figures are those of all stages")
	}
	r.Gradients = alloc.Bytes(l.gradients)
	cache, err := cfg.cacheBytes()
	if err != nil {
		return err
	}
	r.Inference = l.memory(false)
	r.Inference.Cache = cache
	r.Inference.close("loading")
	r.Training = l.memory(true)
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

// held is what is there all the time.
func (m *Memory) held() alloc.Bytes {
	return m.Weights + m.Buffers + m.Master + m.Optimizer + m.Input + m.Cache
}

// peaks finds the moment at which each device needs most, and reports the
// device that needs most.
func peaks(r *Report, t *Tape, h *holding) error {
	stages, err := t.stages(h)
	if err != nil {
		return err
	}
	cache, err := t.cfg.cacheBytes()
	if err != nil {
		return err
	}
	var input int64
	for i := range t.storages {
		if t.storages[i].input {
			input += t.storages[i].bytes
		}
	}
	gradients := t.gradients(h)
	for i, s := range stages {
		name := ""
		if len(stages) > 1 {
			name = fmt.Sprintf("stage %d: ", i)
		}
		held := s.load.shard(t.cfg.sharding)
		run, train := held.memory(false), held.memory(true)
		if i == 0 {
			run.Input, train.Input = alloc.Bytes(input), alloc.Bytes(input)
		}
		run.Cache = cache
		others := min(len(stages)-i, t.cfg.sharding.MicroBatches) - 1
		if int64(r.Kept) > maxTotal/int64(others+1) {
			return fmt.Errorf("estimate %s: what %d micro-batches keep takes more than %v", t.cfg.name, others+1, alloc.Bytes(maxTotal))
		}
		t.infer(&run, s, name)
		t.train(&train, s, name, gradients, others)
		if run.Peak > r.Inference.Peak {
			r.Inference = run
		}
		if train.Peak > r.Training.Peak {
			r.Training, r.Gradients = train, alloc.Bytes(held.gradients)
		}
	}
	band := measured
	if t.recurrent {
		band = measuredRecurrent
		r.Notes = append(r.Notes, "the peaks are rough: recurrent layers are modelled coarsely")
	}
	if t.held {
		r.Notes = append(r.Notes, "the vision tower counts as held and trained, but no image runs through it: an image's activations are not in the figures")
	}
	r.KeptBand, r.Inference.Band, r.Training.Band = band.saved, band.inference, band.training
	if t.rounded {
		r.Notes = append(r.Notes, "the bands of convolutions were measured in float32")
	}
	if t.cfg.backend == CUDA {
		r.Notes = append(r.Notes, "the bands were measured on the CPU: peaks on CUDA were not measured yet")
	}
	r.Notes = append(r.Notes, notCounted)
	return nil
}

const notCounted = "not counted: the CUDA context, workspaces of cuBLAS and cuDNN, fragmentation and cached blocks of the allocator"

// gathered is what ZeRO stage 3 holds of whole layers: the largest, and as much
// again for the next one that is fetched ahead.
func (t *Tape) gathered(s stage) int64 {
	if t.cfg.sharding.ZeRO < 3 || t.cfg.sharding.Data == 1 {
		return 0
	}
	return 2 * s.largestModule
}

func (t *Tape) infer(m *Memory, s stage, name string) {
	var p peak
	if s.end > s.begin {
		p = inference(t, s.begin, s.end)
	}
	m.Transient = alloc.Bytes(p.bytes + t.gathered(s))
	m.close(name + "forward of " + t.place(p.op))
}

func (t *Tape) train(m *Memory, s stage, name string, gradients []gradient, others int) {
	var p peak
	if s.end > s.begin {
		p = training(t, s.begin, s.end, gradients, int64(others))
	}
	m.Saved = alloc.Bytes(p.saved)
	m.Gradients = alloc.Bytes(p.gradients)
	m.Transient = alloc.Bytes(p.bytes - p.saved - p.gradients + t.gathered(s))
	direction := "forward of "
	if p.backward {
		direction = "backward of "
	}
	m.close(name + direction + t.place(p.op))
	step := *m
	step.Saved = 0
	step.Gradients = alloc.Bytes(s.load.shard(t.cfg.sharding).gradients)
	all := s.load.shard(t.cfg.sharding)
	step.Transient = alloc.Bytes(t.cfg.optimizer.temporary(max(all.weights, all.master), s.load.largest, t.cfg.backend))
	if s.last {
		step.Transient += alloc.Bytes(t.storages[t.out.storage].bytes)
	}
	step.close(name + "optimizer step")
	if step.Peak > m.Peak {
		*m = step
	}
}

// place names the layer of an operation.
func (t *Tape) place(i int32) string {
	if int(i) >= len(t.ops) || t.ops[i].row < 0 {
		return "the model"
	}
	return or(t.rows[t.ops[i].row].Path, "the model")
}

// gradients is the memory of the parameters' gradients that appear when each
// operation is passed backward: those of a layer at the first of its operations
// that reads them. Where a layer is Shared they appear at its last call, and each
// call before adds to them.
func (t *Tape) gradients(h *holding) []gradient {
	g := make([]gradient, len(t.ops))
	last := make([]int, len(h.modules)) // call that reads each module: its row, counted from 1
	for i := len(t.ops) - 1; i >= 0; i-- {
		if m := t.moduleOf(i); m >= 0 && t.ops[i].params && last[m] == 0 {
			last[m] = int(t.ops[i].row) + 1
		}
	}
	placed := make([]bool, len(t.rows)+1)
	for i := range t.ops {
		m, call := t.moduleOf(i), int(t.ops[i].row)+1
		if m < 0 || placed[call] || !t.ops[i].params {
			continue
		}
		placed[call] = true
		l := h.modules[m].shard(t.cfg.sharding)
		if call == last[m] {
			g[i] = gradient{stays: l.gradients + h.tiedIn[m] - h.tiedOut[m], sum: 2 * h.tiedOut[m]}
		} else {
			g[i] = gradient{sum: l.gradients} // added in place
		}
	}
	return g
}

// gradient is the memory of the gradients that an operation makes of its
// layer's parameters: that which stays, and that which is needed meanwhile to add
// to the gradient of a tied parameter, the summand and the new sum.
type gradient struct{ stays, sum int64 }

// moduleOf is the module whose parameters operation i reads, or -1.
func (t *Tape) moduleOf(i int) int {
	row := t.ops[i].row
	if row < 0 {
		return 0
	}
	return t.rows[row].owner
}
