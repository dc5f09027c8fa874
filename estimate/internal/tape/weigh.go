package tape

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Holding is the memory of the model's parameters, and what belongs to them, on one device.
type Holding struct {
	Params, Buffers setting.Amount // of the whole model
	Trained         setting.Amount // part of Params
	Modules         []Load         // of each module, on one device
	Total           Load

	// The gradient of a tied parameter appears at the module that uses it last. TiedIn is what each
	// module makes for other owners, and TiedOut what the owner then need not make but adds to.
	TiedIn, TiedOut []int64
	Sums            []sum // what each module needs to add to gradients of tied parameters
	ties            []tie

	Each []ofModule // all parameters and buffers, in the order of the declaration
}

// ofModule is one parameter or buffer of a module.
type ofModule struct {
	Module int32
	Apart  bool
	Load   Load
}

// Apart returns the number of the group of a module's parameters that are marked Apart. These
// groups follow those of all modules.
func (h *Holding) Apart(module int32) int32 { return int32(len(h.Modules)) + module }

// Load is the memory of some parameters, in bytes on one device, before data parallel replicas
// divide it.
type Load struct {
	Weights, Buffers, Master, Gradients, State int64
	Work                                       setting.Work
}

func (l *Load) add(m Load) {
	l.Weights += m.Weights
	l.Buffers += m.Buffers
	l.Master += m.Master
	l.Gradients += m.Gradients
	l.State += m.State
	l.Work.Add(m.Work)
}

// sums is memory of a Holding, which the next call of Weigh uses again.
type sums struct {
	modules []Load
	each    []ofModule
}

// Weigh adds up the memory of parameters, gradients and optimizer states.
func Weigh(d *Declaration, cfg *setting.Config) (*Holding, error) {
	n := len(d.Modules)
	d.inside()
	last, _ := d.memory.weights.(sums)
	h := &Holding{Modules: slices.Grow(last.modules[:0], n)[:n], Each: last.each[:0]}
	clear(h.Modules)
	defer func() { d.memory.weights = sums{h.Modules, h.Each} }()
	for i := range d.params {
		p := &d.params[i]
		if p.Tied != "" {
			h.tie(d, p, cfg)
			continue
		}
		l, whole, err := loadOf(cfg, p, d.Modules[p.module].Frozen)
		if err == nil && whole > setting.MaxTotal-int64(h.Params.Bytes)-int64(h.Buffers.Bytes) {
			err = fmt.Errorf("the model's parameters take more than %v", alloc.Bytes(setting.MaxTotal))
		}
		if err != nil {
			m := d.Modules[p.module]
			return nil, &LayerError{Path: m.Path, Layer: m.Kind, Reason: "parameter " + p.Name, Err: err}
		}
		to := &h.Params
		switch {
		case p.Buffer:
			to = &h.Buffers
		case !d.Modules[p.module].Frozen:
			h.Trained.Count += p.elements
			h.Trained.Bytes += alloc.Bytes(whole)
		}
		to.Count += p.elements
		to.Bytes += alloc.Bytes(whole)
		h.Modules[p.module].add(l)
		h.Total.add(l)
		h.Each = append(h.Each, ofModule{int32(p.module), p.Apart, l})
	}
	h.meet(cfg.Sharding)
	return h, nil
}

// loadOf returns the memory of one parameter on one device, and the bytes of the whole parameter.
func loadOf(c *setting.Config, p *ownedParam, frozen bool) (l Load, whole int64, err error) {
	d := setting.Or(p.DType, c.Weights)
	bytes, err := p.Shape.Bytes(d)
	if err != nil || bytes > setting.MaxTotal {
		return l, int64(bytes), err
	}
	devices := 1
	if p.Split {
		devices = c.Sharding.Tensor
	}
	whole = int64(bytes)
	if p.Buffer {
		l.Buffers = setting.Part(whole, devices)
		return l, whole, nil
	}
	n := setting.Part(p.elements, devices)
	l.Weights = setting.Part(whole, devices)
	if frozen {
		return l, whole, nil
	}
	l.Gradients = (n*int64(setting.Or(p.DType, c.Gradients).Bits()) + 7) / 8
	if c.Master && d != alloc.Float32 {
		l.Master, d = 4*n, alloc.Float32
	}
	o := c.Optimizer
	if o == setting.Muon && !p.inside {
		o = setting.AdamW
	}
	state, err := o.State(p.Shape, d)
	l.State = setting.Part(int64(state), devices)
	l.Work = o.Work(p.Shape, n, d)
	return l, whole, err
}

// inside marks the matrices that Muon updates: all but embeddings and the last matrix of the model,
// which is its output head.
func (d *Declaration) inside() {
	last := -1
	for i := range d.params {
		if p := &d.params[i]; len(p.Shape) == 2 && !p.Buffer {
			p.inside, last = d.Modules[p.module].Kind != "Embedding", i
		}
	}
	if last >= 0 {
		d.params[last].inside = false
	}
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

// Parameter is a declared parameter with the path and the kind of its layer.
type Parameter struct {
	Param
	Path, Kind string
	Elements   int64
}

// Parameters returns what the layers declare, in order. The error is that of a layer that is not
// valid.
func Parameters(layers []Layer) ([]Parameter, error) {
	cfg, err := setting.New(func(*setting.Config) {})
	if err != nil {
		return nil, err
	}
	decl := NewDeclaration(&Scratch{index: make(map[string]int)}, cfg)
	if err := decl.Run(Sequential(layers), cfg.Name); err != nil {
		return nil, err
	}
	if _, err := Weigh(decl, cfg); err != nil { // makes sure that no sum overflows
		return nil, err
	}
	params := make([]Parameter, len(decl.params))
	for i, p := range decl.params {
		m := decl.Modules[p.module]
		params[i] = Parameter{p.Param, m.Path, m.Kind, p.elements}
	}
	return params, nil
}
