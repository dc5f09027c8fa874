package estimate

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Model estimates the memory of a model that calls the layers one after
// another. It computes with shapes alone, within milliseconds. The error is a
// *LayerError where a layer cannot be made or does not take its input; others name
// the option that makes no sense, and are an *alloc.ShapeError beneath where an input's
// shape is not valid.
//
// Without an input the report has the parameters only, and says so.
func Model(layers []Layer, opts ...Option) (*Report, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if len(layers) == 0 {
		return nil, fmt.Errorf("estimate %s: there are no layers: give one at least", cfg.name)
	}
	if err := cfg.checkCache(); err != nil {
		return nil, err
	}
	if layers, err = cfg.judged(layers); err != nil {
		return nil, err
	}
	var t *Tape
	memory := scratches.Get().(*scratch)
	decl := newDeclaration(memory, cfg)
	defer func() { memory.release(decl, t) }()
	root := Sequential(layers)
	if err := decl.run(root, cfg.name); err != nil {
		return nil, err
	}
	own, err := weigh(decl, cfg)
	if err != nil {
		return nil, err
	}
	r := &Report{
		Name: cfg.name, HasInput: len(cfg.inputs) > 0, training: cfg.training,
		Params: own.params, Trained: own.trained, Buffers: own.buffers,
	}
	if !r.HasInput {
		r.Layers = decl.rows()
		r.Notes = append(r.Notes, "no input was given: activations are not known, and not in the peaks")
		if err := withoutInput(r, own, cfg); err != nil {
			return nil, err
		}
		r.store(cfg)
		if cfg.compute > 0 {
			r.llamaCpp(cfg)
		}
		return r, nil
	}
	cfg.checkpoints = decl.anywhere(cfg.checkpoints)
	t = newTape(decl, cfg, memory)
	if err := t.record(root); err != nil {
		return nil, err
	}
	r.describe(t)
	serve, learn, err := peaks(r, t, own)
	if err != nil {
		return nil, err
	}
	r.store(cfg)
	t.footprints(r, own, serve, learn)
	if cfg.compute > 0 {
		r.llamaCpp(cfg)
	}
	return r, nil
}

func newTape(decl *Declaration, cfg *config, memory *scratch) *Tape {
	n := len(decl.modules)
	return &Tape{
		memory: memory, cfg: cfg, decl: decl, row: -1, next: 1, called: make([]bool, n), matched: make([]bool, len(cfg.checkpoints)), homes: map[Layer]string{}, rows: make([]Row, 0, n),
		ops: memory.ops[:0], storages: memory.storages[:0], refs: memory.refs[:0],
	}
}

// record runs the layers over the inputs.
func (t *Tape) record(root Layer) error {
	for i, in := range t.cfg.inputs {
		d := or(in.dtype, t.cfg.activations)
		bytes, err := in.shape.Bytes(d)
		switch {
		case err != nil:
			return fmt.Errorf("estimate %s: input %d: %w", t.cfg.name, i, err)
		case bytes == 0:
			return fmt.Errorf("estimate %s: input %d %v is empty: every dimension must be 1 or more", t.cfg.name, i, in.shape)
		case bytes > maxTotal-t.total:
			return fmt.Errorf("estimate %s: input %d %v takes more than %v", t.cfg.name, i, in.shape, alloc.Bytes(maxTotal))
		}
		t.total += bytes
		id := t.newStorage(storage{bytes: int64(bytes), alias: -1, input: true})
		t.inputs = append(t.inputs, Tensor{Shape: in.shape, DType: d, tape: t, storage: id})
	}
	t.inputsRead = 1
	y, err := root.Forward(t, t.inputs[0])
	if err != nil {
		return err
	}
	if t.out = y; len(y.Shape) == 0 && t.answer == nil {
		t.judgeLast()
	}
	t.hold(t.cos) // the tables live as long as the model runs
	t.hold(t.sin)
	t.hold(t.masks)
	for _, id := range t.passed {
		t.storages[id].last = max(t.storages[id].last, int32(len(t.ops)-1))
	}
	for i := range t.storages {
		if s := &t.storages[i]; s.cached && len(t.ops) > 0 {
			s.last, s.lastRun = int32(len(t.ops)-1), int32(len(t.ops)-1)
		}
	}
	return t.unused()
}

// unused reports an option that had no effect: it is most likely a mistake.
func (t *Tape) unused() error {
	if i := t.inputsRead; i < len(t.inputs) {
		return fmt.Errorf("estimate %s: no layer reads input %d, %v: leave it out, or give layers that call Tape.Input(%d)",
			t.cfg.name, i, t.inputs[i].Shape, i)
	}
	for i, pattern := range t.cfg.checkpoints {
		if !t.matched[i] {
			return fmt.Errorf("estimate %s: Checkpointed: no layer's path matches %q, as %q would be", t.cfg.name, pattern, t.example())
		}
	}
	return nil
}

// example is the path of a layer.
func (t *Tape) example() string {
	if len(t.rows) == 0 {
		return ""
	}
	return t.rows[len(t.rows)/2].Path
}

// rows are the layers of a model without an input.
func (d *Declaration) rows() []Row {
	rows := make([]Row, 0, len(d.modules))
	for i, m := range d.modules[1:] {
		leaf := i+2 >= len(d.modules) || d.modules[i+2].depth <= m.depth
		rows = append(rows, Row{Path: m.path, Kind: m.kind, Depth: m.depth, Leaf: leaf, Params: m.params, module: i + 1})
	}
	return rows
}

// describe fills in what the tape tells without a model of time.
func (r *Report) describe(t *Tape) {
	for _, in := range t.inputs {
		r.Inputs = append(r.Inputs, in.Shape)
	}
	r.Output, r.Layers = t.out.Shape, t.rows
	for i := range t.rows {
		row := &t.rows[i]
		r.FLOPs = addSat(r.FLOPs, row.FLOPs)
		if !row.Leaf {
			continue
		}
		if !(row.inPlace && row.Kind == "ReLU") {
			r.intermediates = alloc.Bytes(addSat(int64(r.intermediates), times(int64(t.cfg.activations.Bits()), row.Output)/8))
		}
	}
	for i := range t.storages {
		s := &t.storages[i]
		if s.kept && !s.hidden {
			r.Kept += alloc.Bytes(s.bytes)
		}
	}
	r.Activations = t.activations()
}

// activations adds up what the leaves return, each storage once.
func (t *Tape) activations() Amount {
	var a Amount
	for i := range t.ops {
		o := &t.ops[i]
		if o.view || o.inPlace || o.row < 0 || !t.rows[o.row].Leaf {
			continue
		}
		if last := i+1 == len(t.ops) || t.ops[i+1].row != o.row; last {
			n, _ := t.rows[o.row].Output.Elements()
			a.Count = addSat(a.Count, n)
			a.Bytes += alloc.Bytes(t.storages[o.out].bytes)
		}
	}
	return a
}
