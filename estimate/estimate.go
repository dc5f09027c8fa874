package estimate

import (
	"errors"
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// Model estimates the memory of a model that calls the layers one after another. It computes with
// shapes alone, within milliseconds. The error is a *LayerError where a layer cannot be made or
// does not take its input; other errors name the option that makes no sense, and are alloc.ErrShape
// if the shape of an input is not valid.
//
// Without an input the report has the parameters only, and says so.
func Model(layers []nn.Layer, opts ...Option) (*Report, error) {
	r, err := model(layers, opts)
	return r, layerError(err)
}

// model is Model, with the errors of the tape.
func model(layers []nn.Layer, opts []Option) (*Report, error) {
	cfg, err := newConfig(opts)
	if err != nil {
		return nil, err
	}
	if len(layers) == 0 {
		return nil, fmt.Errorf("estimate %s: there are no layers: give one at least", cfg.Name)
	}
	if err := cfg.CheckCache(); err != nil {
		return nil, err
	}
	cfg.PromptOfInput()
	all, err := withLoss(cfg, layer.From(layers))
	if err != nil {
		return nil, err
	}
	var t *tape.Tape
	memory := tape.Scratches.Get().(*tape.Scratch)
	decl := tape.NewDeclaration(memory, cfg)
	defer func() { memory.Release(decl, t) }()
	root := tape.Sequential(all)
	if err := decl.Run(root, cfg.Name); err != nil {
		return nil, err
	}
	own, err := tape.Weigh(decl, cfg)
	if err != nil {
		return nil, err
	}
	r := &Report{
		Name: cfg.Name, training: cfg.Training,
		Params: Amount(own.Params), Trained: Amount(own.Trained), Buffers: Amount(own.Buffers), doubted: sharesOfParts(decl, own, cfg.Unread),
	}
	if len(cfg.Inputs) == 0 {
		r.Layers = declared(decl)
		r.Notes = append(r.Notes, "no input was given: what activations need is not in the values")
		if err := withoutInput(r, own, cfg); err != nil {
			return nil, err
		}
		r.store(cfg, own)
		return r.served(cfg), nil
	}
	cfg.Checkpoints = decl.Anywhere(cfg.Checkpoints)
	t = newTape(decl, cfg, memory)
	if err := record(t, root); err != nil {
		return nil, err
	}
	r.describe(t)
	tape.LeaveUnreached(t, own)
	serve, learn, err := peaks(r, t, own)
	if err != nil {
		return nil, err
	}
	r.store(cfg, own)
	footprints(t, r, own, serve, learn)
	return r.served(cfg), nil
}

// served returns r with the values of llama.cpp in place of PyTorch's, if that runs the model, and with the bounds of all.
func (r *Report) served(cfg *setting.Config) *Report {
	if cfg.Compute > 0 {
		r.llamaCpp(cfg)
	}
	doubtAppending(r, cfg)
	doubtUnread(r, cfg)
	r.Missing = append(r.Missing, cfg.Missing...)
	r.Inference.settle(len(r.Missing) > 0)
	r.Training.settle(len(r.Missing) > 0)
	return r
}

func newTape(decl *tape.Declaration, cfg *setting.Config, memory *tape.Scratch) *tape.Tape {
	n := len(decl.Modules)
	return &tape.Tape{
		Memory: memory, Cfg: cfg, Decl: decl, Row: -1, Next: 1, Called: make([]bool, n), Matched: make([]bool, len(cfg.Checkpoints)), Homes: map[tape.Layer]string{}, Rows: memory.Rows[:0],
		Ops: memory.Ops[:0], Storages: memory.Storages[:0], Refs: memory.Refs[:0],
	}
}

// record runs the layers over the inputs.
func record(t *tape.Tape, root tape.Layer) error {
	for i, in := range t.Cfg.Inputs {
		d := setting.Or(in.Dtype, t.Cfg.Activations)
		bytes, err := in.Shape.Bytes(d)
		switch {
		case err != nil:
			return fmt.Errorf("estimate %s: input %d: %w", t.Cfg.Name, i, err)
		case bytes == 0:
			return fmt.Errorf("estimate %s: input %d %v is empty: every dimension must be 1 or more", t.Cfg.Name, i, in.Shape)
		case bytes > setting.MaxTotal-t.Total:
			return fmt.Errorf("estimate %s: input %d %v takes more than %v", t.Cfg.Name, i, in.Shape, alloc.Bytes(setting.MaxTotal))
		}
		t.AddInput(in.Shape, d, bytes)
	}
	t.InputsRead = 1
	y, err := t.Record(root, t.Inputs[0])
	if err != nil {
		return err
	}
	if t.Out = y; len(y.Shape) == 0 && t.Answer == nil {
		layer.JudgeLast(t)
	}
	t.HoldLasting()
	t.HoldPassed()
	for i := range t.Storages {
		if s := &t.Storages[i]; s.Cached && len(t.Ops) > 0 {
			s.Last, s.LastRun = int32(len(t.Ops)-1), int32(len(t.Ops)-1)
		}
	}
	return unused(t)
}

// unused reports an option that had no effect: it is most likely a mistake.
func unused(t *tape.Tape) error {
	if i := t.InputsRead; i < len(t.Inputs) {
		return fmt.Errorf("estimate %s: no layer reads input %d, %v: leave it out, or give layers that call Flow.Input(%d)",
			t.Cfg.Name, i, t.Inputs[i].Shape, i)
	}
	for i, pattern := range t.Cfg.Checkpoints {
		if !t.Matched[i] {
			return fmt.Errorf("estimate %s: Checkpointed: no layer's path matches %q, as %q would be", t.Cfg.Name, pattern, example(t))
		}
	}
	return nil
}

// example is the path of a layer.
func example(t *tape.Tape) string {
	if len(t.Rows) == 0 {
		return ""
	}
	return t.Rows[len(t.Rows)/2].Path
}

// declared are the layers of a model without an input.
func declared(d *tape.Declaration) []Row {
	rows := make([]Row, 0, len(d.Modules))
	for i, m := range d.Modules[1:] {
		leaf := i+2 >= len(d.Modules) || d.Modules[i+2].Depth <= m.Depth
		rows = append(rows, Row{Path: m.Path, Kind: m.Kind, depth: m.Depth, leaf: leaf, Params: m.Params})
	}
	return rows
}

// called are the layers of a model that ran.
func called(ran []tape.Row) []Row {
	rows := make([]Row, len(ran))
	for i := range ran {
		r := &ran[i]
		rows[i] = Row{
			Path: r.Path, Kind: r.Kind, depth: r.Depth, leaf: r.Leaf, Input: r.Input, Output: r.Output,
			Params: r.Params, FLOPs: r.FLOPs, Allocated: r.Allocated, Retained: r.Retained,
		}
	}
	return rows
}

// describe fills in the values that come from the tape alone, without a model of time.
func (r *Report) describe(t *tape.Tape) {
	for _, in := range t.Inputs {
		r.Inputs = append(r.Inputs, in.Shape)
	}
	r.Output, r.Layers = t.Out.Shape, called(t.Rows)
	for i := range t.Rows {
		row := &t.Rows[i]
		r.FLOPs = setting.AddSat(r.FLOPs, row.FLOPs)
		if !row.Leaf {
			continue
		}
		if !(row.InPlace && row.Kind == "ReLU") {
			r.intermediates = alloc.Bytes(setting.AddSat(int64(r.intermediates), setting.Times(int64(t.Cfg.Activations.Bits()), row.Output)/8))
		}
	}
	for i := range t.Storages {
		s := &t.Storages[i]
		if s.Retained && !s.Hidden {
			r.Retained += alloc.Bytes(s.Bytes)
		}
	}
	r.activations = activations(t)
}

// activations adds up what the leaves return, each storage once.
func activations(t *tape.Tape) Amount {
	var a Amount
	for i := range t.Ops {
		o := &t.Ops[i]
		if o.View || o.InPlace || o.Row < 0 || !t.Rows[o.Row].Leaf {
			continue
		}
		if last := i+1 == len(t.Ops) || t.Ops[i+1].Row != o.Row; last {
			n, _ := t.Rows[o.Row].Output.Elements()
			a.Count = setting.AddSat(a.Count, n)
			a.Bytes += alloc.Bytes(t.Storages[o.Out].Bytes)
		}
	}
	return a
}

// LayerError says which layer of a model is wrong, and how.
type LayerError struct {
	Path   string `json:"path"`   // as in named_modules, such as "layer1.0.conv1"; empty for the model itself
	Layer  string `json:"layer"`  // its type, such as "Conv2d"
	Reason string `json:"reason"` // what is wrong, and what is wanted
	Err    error  `json:"-"`      // the cause, such as alloc.ErrShape; nil if there is none
}

// Error names the layer by its path, and says what is wrong.
func (e *LayerError) Error() string { return (*tape.LayerError)(e).Error() }

// Unwrap returns Err, the error that caused it.
func (e *LayerError) Unwrap() error { return e.Err }

// layerError returns err with a LayerError in place of that of the tape.
func layerError(err error) error {
	if e := (*tape.LayerError)(nil); errors.As(err, &e) {
		return (*LayerError)(e)
	}
	return err
}

// withLoss returns the layers followed by the loss, if the model is trained with one. A fused loss replaces the head.
func withLoss(c *setting.Config, layers []tape.Layer) ([]tape.Layer, error) {
	loss, _ := c.Loss.(tape.Layer)
	if !c.Training || tape.IsNil(loss) || len(layers) == 0 {
		return layers, nil
	}
	all := append([]tape.Layer{}, layers...)
	head, ok := loss.(layer.HeadLoss)
	if !ok || head.Linear != (layer.Linear{}) {
		return append(all, tape.Named{Name: "loss", Layer: loss}), nil
	}
	if _, returned := tape.Unwrap(all[len(all)-1]).(layer.Logits); returned && len(all) > 1 {
		all = all[:len(all)-1]
	}
	last := &all[len(all)-1]
	l := tape.Unwrap(*last)
	if tape.IsNil(l) {
		return layers, nil // the declaration reports it
	}
	if out, marked := l.(layer.Output); marked {
		l = out.Linear
	}
	if head.Linear, ok = l.(layer.Linear); !ok {
		return nil, fmt.Errorf("estimate %s: WithLoss: a loss with Chunks, InForward, EachBackward or NoLogits takes the place of a Linear, and the last layer is %s", c.Name, tape.KindOf(l))
	}
	if n, named := (*last).(tape.Named); named {
		*last = tape.Named{Name: n.Name, Layer: head}
	} else {
		*last = head
	}
	return all, nil
}

// WithLoss trains with a loss of the model's output. Inference has no loss. A NextToken with Chunks, InForward, EachBackward
// or NoLogits replaces the last layer, which must be a Linear: the head.
func WithLoss(l nn.Layer) Option {
	return option(func(c *setting.Config) { c.Loss = layer.From([]nn.Layer{l})[0] })
}

// store puts the size of the weights as they are stored into the memory of inference.
func (r *Report) store(cfg *setting.Config, own *tape.Holding) {
	stored := cfg.Stored
	if own.Packed > 0 {
		stored = setting.Amount{Bytes: r.Params.Bytes - own.Packed}
	}
	if stored.Bytes <= 0 || cfg.Sharding.Devices() > 1 {
		return
	}
	if stored.Count > 0 && stored.Count < r.Params.Count {
		stored.Bytes += alloc.Bytes((r.Params.Count - stored.Count) * int64(cfg.Weights.Bits()) / 8)
	}
	more := stored.Bytes - r.Params.Bytes
	r.Params.Bytes = stored.Bytes
	r.Inference.Weights += more
	r.Inference.Peak.Bytes += more
	if more != 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("for inference the weights count as they are stored, %v", stored.Bytes))
	}
}

// llamaCpp puts the compute buffer in place of PyTorch's activations.
func (r *Report) llamaCpp(cfg *setting.Config) {
	m := &r.Inference
	m.Input, m.Transient, m.terms = 0, cfg.Compute, nil
	more := r.offloadLayers(cfg)
	m.Weights += cfg.Projector + cfg.Draft
	m.close("llama.cpp's compute buffer")
	context, all := contextOf(cfg), m.Peak.Bytes
	m.Footprint = Footprint{Allocated: Value{Bytes: all}, Reserved: Value{Bytes: all}, Context: context, Device: Value{Bytes: all + context.Bytes}, Needed: Value{Bytes: all + context.Bytes}}
	less := alloc.Bytes(0)
	if r.ModelLayers == 0 { // the token embedding may be on the CPU, or the head in a type of its own
		less = m.Weights / 8
	}
	least, most, why := alloc.Bytes(0), cfg.Compute+cfg.Compute/10, "it differs between releases"
	if b := cfg.Buffer; b.Most > 0 && r.ModelLayers > 0 {
		least, most, why = b.Least, b.Most, b.Reason()
	}
	m.doubt(ofTensors, "compute buffer", why, cfg.Compute-least, most-cfg.Compute)
	m.doubt(ofTensors, "layers on the GPU", "releases and batches differ in what they copy there", less, more)
	m.doubt(ofContext, "CUDA context", contextReason(cfg, context), context.Bytes-context.Lower, context.Upper-context.Bytes)
	if s := cfg.Sizes; s != nil && s.PerLayer > 0 && r.GPULayers > 0 {
		m.doubt(ofTensors, "embeddings of each block", "some builds and GPUs hold them, which others leave to the memory of the CPU", 0, s.PerLayer)
	}
	r.Notes = append(r.Notes, placed(cfg, r))
	if cfg.Draft > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%v of the weights are what the model that drafts takes, with its keys, values and compute buffer", cfg.Draft))
	}
	if cfg.Projector > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("%v of the weights are those of the projector", cfg.Projector))
		r.Missing = append(r.Missing, "the projector's compute buffer, which grows with the images")
	}
}

// offloadLayers leaves to the CPU what is not on the GPU. It returns how much more the GPU may hold: older
// releases have another block there in place of the head, and large batches copy the matrices
// of the CPU's layers to the GPU, one at a time.
func (r *Report) offloadLayers(cfg *setting.Config) (more alloc.Bytes) {
	s, m := cfg.Sizes, &r.Inference
	if s == nil || cfg.Sharding.Devices() > 1 {
		return 0
	}
	n := s.Layers()
	if cfg.GpuLayers != nil {
		n = max(0, min(*cfg.GpuLayers, n))
	}
	r.GPULayers, r.ModelLayers = n, s.Layers()
	_, m.Host = s.OnGPU(n)
	most := setting.GpuPart{}
	left := m.Cache
	for _, p := range s.Split(n, cfg.Shares) {
		if cfg.Cache != nil && p.Blocks > 0 {
			p.Cache = cfg.Cache.Last(p.Blocks, len(s.Blocks))
			left -= min(left, p.Cache.All())
		}
		if p.Weights+p.Cache.All() > most.Weights+most.Cache.All() {
			most = p
		}
	}
	m.Weights = most.Weights
	m.keep(setting.Moments{Prompt: most.Cache, Next: most.Cache, Peak: most.Cache.All()})
	m.Host += left
	if n == s.Layers() {
		return 0
	}
	more = slices.Max(s.Blocks)
	if n == 0 {
		more = max(more, s.Output)
	}
	return more
}

// placed says where the layers are.
func placed(c *setting.Config, r *Report) string {
	switch {
	case r.ModelLayers == 0:
		return "estimated as llama.cpp runs it, with all layers on the GPU, and the token embedding too, which it may leave on the CPU"
	case len(c.Shares) > 1:
		return fmt.Sprintf("estimated as llama.cpp runs it, with %d of %d layers on %d GPUs: the values are those of the GPU that needs most", r.GPULayers, r.ModelLayers, len(c.Shares))
	case r.GPULayers == r.ModelLayers:
		return fmt.Sprintf("estimated as llama.cpp runs it, with all %d layers on the GPU, and the token embedding in the memory of the CPU", r.ModelLayers)
	}
	return fmt.Sprintf("estimated as llama.cpp runs it, with %d of %d layers on the GPU, the output among them: releases before December 2025 put another block there instead of the output", r.GPULayers, r.ModelLayers)
}

// maxBatch is the largest batch that MaxBatch tries, and context length that MaxContextLength does.
const maxBatch = 1 << 30

// MaxBatch returns the largest batch with which the model fits into the budget, at most 1 << 30; 0
// if not even one sample fits. The batch is dimension 0 of each input and of the key/value cache;
// its value in the options is ignored. Whether it fits is decided as in Report.Fits, for training
// if there is a Train option, otherwise for inference. The errors are those of Model.
func MaxBatch(layers []nn.Layer, budget alloc.Bytes, opts ...Option) (int, error) {
	return largest(layers, budget, opts, withBatch, 1)
}

// MaxContextLength returns the largest context length, in tokens, with which the model fits into
// the budget, at most 1 << 30; 0 if not even the input's own tokens fit. It is the length of the
// key/value cache that a KVConfig describes. The input, a prefill chunk, stays as it is. The
// errors are those of Model; it is also an error to call it without a KVConfig, or with Train.
func MaxContextLength(layers []nn.Layer, budget alloc.Bytes, opts ...Option) (int, error) {
	cfg, err := newConfig(opts)
	switch {
	case err != nil:
		return 0, err
	case cfg.Cache == nil || cfg.Training:
		return 0, fmt.Errorf("estimate %s: the largest context length needs a KVConfig and no training", cfg.Name)
	}
	_, length := cfg.Tokens()
	return largest(layers, budget, opts, withContext, max(1, length))
}

// largest returns the largest number, counted from the least on, with which the model fits. of
// gives the option for a number.
func largest(layers []nn.Layer, budget alloc.Bytes, opts []Option, of func(int) Option, least int) (int, error) {
	fits := func(n int) (bool, error) {
		r, err := Model(layers, append(slices.Clip(opts), of(n))...)
		if err != nil {
			return false, err
		}
		return r.Fits(budget), nil
	}
	if ok, err := fits(least); err != nil || !ok {
		return 0, err
	}
	// A number whose sizes overflow is an error, and does not fit either.
	low, high := least, 2*min(least, maxBatch/2) // low fits
	for low < maxBatch {
		if ok, err := fits(high); err != nil || !ok {
			break
		}
		low, high = high, 2*min(high, maxBatch/2)
	}
	for high-low > 1 {
		mid := low + (high-low)/2
		if ok, err := fits(mid); err == nil && ok {
			low = mid
		} else {
			high = mid
		}
	}
	return low, nil
}

// withContext sets the context length of the cache.
func withContext(n int) Option {
	return option(func(c *setting.Config) {
		c.Searches = true
		cache := *c.Cache
		cache.ContextLength = n
		c.Cache = &cache
	})
}

// withBatch replaces dimension 0 of every input.
func withBatch(n int) Option {
	return option(func(c *setting.Config) {
		c.NeedsBatch, c.Searches = true, true
		for i := range c.Inputs {
			if shape := slices.Clone(c.Inputs[i].Shape); len(shape) > 0 {
				shape[0] = n
				c.Inputs[i].Shape = shape
			}
		}
		if c.Cache != nil {
			cache := *c.Cache
			cache.Batch = n
			c.Cache = &cache
		}
	})
}
