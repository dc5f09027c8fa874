package estimate

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// holding is what one device holds of the model itself.
type holding struct {
	params, buffers Amount // of the whole model
	trained         Amount // of the params
	modules         []load // of each module, on one device
	total           load

	// A tied parameter's gradient appears where it is used last: tiedIn is
	// what each module makes so, and tiedOut what its owner then adds to.
	tiedIn, tiedOut []int64
	sums            []sum // what each module adds to gradients of tied parameters
	ties            []tie

	each []ofModule // the parameters and buffers, in the order of the declaration
}

// ofModule is one parameter or buffer of a module.
type ofModule struct {
	module int32
	apart  bool
	load   load
}

// apart is the group of those of a module's parameters whose gradients appear apart. The groups of
// all modules come first.
func (h *holding) apart(module int32) int32 { return int32(len(h.modules)) + module }

// load is the memory of some parameters, in bytes on one device before data
// parallel replicas divide it.
type load struct {
	weights, buffers, master, gradients, state int64
	work                                       work
}

func (l *load) add(m load) {
	l.weights += m.weights
	l.buffers += m.buffers
	l.master += m.master
	l.gradients += m.gradients
	l.state += m.state
	l.work.add(m.work)
}

// weigh adds up parameters, gradients and the optimizer's states.
func weigh(d *Declaration, cfg *config) (*holding, error) {
	n := len(d.modules)
	d.inside()
	h := &holding{modules: slices.Grow(d.memory.loads[:0], n)[:n], each: d.memory.each[:0]}
	clear(h.modules)
	defer func() { d.memory.loads, d.memory.each = h.modules, h.each }()
	for i := range d.params {
		p := &d.params[i]
		if p.Tied != "" {
			h.tie(d, p, cfg)
			continue
		}
		l, whole, err := cfg.load(p, d.modules[p.module].frozen)
		if err == nil && whole > maxTotal-int64(h.params.Bytes)-int64(h.buffers.Bytes) {
			err = fmt.Errorf("the model's parameters take more than %v", alloc.Bytes(maxTotal))
		}
		if err != nil {
			m := d.modules[p.module]
			return nil, &LayerError{Path: m.path, Layer: m.kind, Reason: "parameter " + p.Name, Err: err}
		}
		to := &h.params
		switch {
		case p.Buffer:
			to = &h.buffers
		case !d.modules[p.module].frozen:
			h.trained.Count += p.elements
			h.trained.Bytes += alloc.Bytes(whole)
		}
		to.Count += p.elements
		to.Bytes += alloc.Bytes(whole)
		h.modules[p.module].add(l)
		h.total.add(l)
		h.each = append(h.each, ofModule{int32(p.module), p.apart, l})
	}
	h.meet(cfg.sharding)
	return h, nil
}

// load is that of one parameter, beside the bytes of the whole of it.
func (c *config) load(p *ownedParam, frozen bool) (l load, whole int64, err error) {
	d := or(p.DType, c.weights)
	bytes, err := p.Shape.Bytes(d)
	if err != nil || bytes > maxTotal {
		return l, int64(bytes), err
	}
	devices := 1
	if p.Split {
		devices = c.sharding.Tensor
	}
	whole = int64(bytes)
	if p.Buffer {
		l.buffers = part(whole, devices)
		return l, whole, nil
	}
	n := part(p.elements, devices)
	l.weights = part(whole, devices)
	if frozen {
		return l, whole, nil
	}
	l.gradients = (n*int64(or(p.DType, c.gradients).Bits()) + 7) / 8
	if c.master && d != alloc.Float32 {
		l.master, d = 4*n, alloc.Float32
	}
	o := c.optimizer
	if o == Muon && !p.inside {
		o = AdamW
	}
	state, err := o.State(p.Shape, d)
	l.state = part(int64(state), devices)
	l.work = o.work(p.Shape, n, d)
	return l, whole, err
}

// inside marks the matrices that Muon goes through: not those of embeddings, and not the last
// of the model, which is its output head.
func (d *Declaration) inside() {
	last := -1
	for i := range d.params {
		if p := &d.params[i]; len(p.Shape) == 2 && !p.Buffer {
			p.inside, last = d.modules[p.module].kind != "Embedding", i
		}
	}
	if last >= 0 {
		d.params[last].inside = false
	}
}

// shard divides among data parallel replicas.
func (l load) shard(s Sharding) load {
	if s.ZeRO >= 1 {
		l.master, l.state = part(l.master, s.Data), part(l.state, s.Data)
		l.work.together, l.work.decay = part(l.work.together, s.Data), part(l.work.decay, s.Data)
	}
	if s.ZeRO >= 2 {
		l.gradients = part(l.gradients, s.Data)
	}
	if s.ZeRO >= 3 {
		l.weights = part(l.weights, s.Data)
	}
	return l
}

// store puts the size of the weights as they are stored into the memory of inference.
func (r *Report) store(cfg *config) {
	stored := cfg.stored
	if stored.Bytes <= 0 || cfg.sharding.devices() > 1 {
		return
	}
	if stored.Count > 0 && stored.Count < r.Params.Count {
		stored.Bytes += alloc.Bytes((r.Params.Count - stored.Count) * int64(cfg.weights.Bits()) / 8)
	}
	more := stored.Bytes - r.Params.Bytes
	r.Params.Bytes = stored.Bytes
	r.Inference.Weights += more
	r.Inference.Peak += more
	if more != 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("inference counts the weights as they are stored, %v", stored.Bytes))
	}
}
