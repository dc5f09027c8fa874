package tape

import (
	"fmt"
	"slices"
	"strings"

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

	Packed alloc.Bytes // how much less inference holds than training, whose weights are not packed

	Each []ofModule // all parameters and buffers, in the order of the declaration
}

// ofModule is one parameter or buffer of a module.
type ofModule struct {
	Module        int32
	Apart, Expert bool
	FourBits      bool // of each element
	Load          Load
}

// Apart returns the number of the group of a module's parameters that are marked Apart. These
// groups follow those of all modules.
func (h *Holding) Apart(module int32) int32 { return int32(len(h.Modules)) + module }

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
		if path := d.Modules[p.module].Path; p.DType == 0 && cfg.Float32.Keeps(cfg.Weights, path, p.Name) {
			p.DType = alloc.Float32
		}
		if p.Tied != "" {
			h.tie(d, p, cfg)
			continue
		}
		l, whole, err := loadOf(cfg, p, d.Modules[p.module].Frozen)
		part, all, packed := cfg.PackedSize(d.Modules[p.module].Path, p.Name, p.Split)
		switch {
		case !packed || p.Buffer || err != nil:
		case cfg.Training:
			h.Packed += alloc.Bytes(whole - all)
		default:
			l.Weights, whole = part, all
		}
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
		h.Each = append(h.Each, ofModule{int32(p.module), p.Apart, p.Expert, p.DType == alloc.Int4 && !p.Buffer, l})
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
	if p.Split && !(p.Expert && c.Sharding.Experts > 1) {
		devices = c.Sharding.Tensor
	}
	whole = int64(bytes)
	if p.Buffer {
		l.Buffers = setting.Part(whole, devices)
		return l, whole, nil
	}
	n := setting.Part(p.elements, devices)
	l.Weights = setting.Part(whole, devices)
	if c.Gathers() {
		n, l.Weights = padded(n, p.Shape, c.Sharding.Data), padded(l.Weights, p.Shape, c.Sharding.Data)
		if l.Whole = l.Weights; setting.IsFloat(d) && setting.IsFloat(c.Activations) {
			l.Whole = n * int64(c.Activations.Bits()) / 8
		}
	}
	if frozen {
		return l.shared(p.Expert, c.Sharding), whole, nil
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
	if l.State = setting.Part(int64(state), devices); c.Gathers() {
		l.State = padded(l.State, p.Shape, c.Sharding.Data)
	}
	l.Work = o.Work(p.Shape, n, d)
	return l.shared(p.Expert, c.Sharding), whole, err
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

// tie is a parameter of one module that is the same as another module's.
type tie struct {
	module, owner int
	load          Load
}

// sum is the memory needed to add to an existing gradient: the summand and, unless the sum is made
// in place, the new sum.
type sum struct{ Summand, Anew int64 }

func (s sum) Bytes() int64 { return s.Summand + s.Anew }

// tie notes that a parameter is the same as another module's.
func (h *Holding) tie(d *Declaration, p *ownedParam, cfg *setting.Config) {
	owner := d.ownerOf(p.Tied)
	if owner == nil || owner.Buffer {
		return
	}
	if l, _, err := loadOf(cfg, owner, d.Modules[owner.module].Frozen); err == nil { // otherwise Weigh reports the error at the owner
		h.ties = append(h.ties, tie{p.module, owner.module, l})
	}
}

// meet finds where the gradients of tied parameters appear and are added up. The backward pass
// reaches the last of the modules first and the owner last. The first two gradients are added into
// a new one, since the head's gradient is transposed; later ones are added in place
// (torch/csrc/autograd/input_buffer.cpp).
func (h *Holding) meet(s setting.Sharding) {
	n := len(h.Modules)
	h.TiedIn, h.TiedOut, h.Sums = make([]int64, n), make([]int64, n), make([]sum, n)
	for _, t := range slices.Backward(h.ties) {
		bytes := t.load.shard(s).Gradients
		if h.TiedOut[t.owner] == 0 {
			h.TiedIn[t.module] += bytes
			h.TiedOut[t.owner] += bytes
			h.Sums[t.owner] = sum{bytes, bytes}
			continue
		}
		h.Sums[t.module], h.Sums[t.owner] = h.Sums[t.owner], sum{Summand: bytes}
	}
}

// untie gives each stage its own copy of parameters that are tied to another stage's, as
// Megatron-LM does with the embedding for the last stage.
func (h *Holding) untie(stages []Stage, stageOf func(module int) int, s setting.Sharding) {
	var left []tie
	for _, t := range h.ties {
		at := stageOf(t.module)
		if at == stageOf(t.owner) {
			left = append(left, t)
			continue
		}
		stages[at].Load.add(t.load)
		h.Modules[t.module].add(t.load)
	}
	h.ties = left
	h.meet(s)
}

// Gradient is the memory that the gradients of a layer's parameters take when the backward pass
// reaches an operation: Stays is kept, Sum is needed to add to a gradient that exists already, and
// Passing is used up at once, together with what the optimizer needs for it.
type Gradient struct {
	Stays, Passing int64
	Sum            sum
	Group          int32 // which parameters the gradients belong to, counted from 1
}

// Gradients returns, for each operation, the memory of the parameters' gradients that appear when
// the backward pass reaches it. A layer's gradients appear at its first operation that reads its
// parameters, except those of parameters marked Apart. The gradients of a Shared layer appear at
// its last call; each earlier call adds to them.
func (t *Tape) Gradients(h *Holding) []Gradient {
	g := make([]Gradient, len(t.Ops))
	loop := t.Cfg.Usual(t.Cfg.Loop)
	last, shared := make([]int, len(h.Modules)), make([]bool, len(h.Modules)) // the call that last reads each module, as its row counted from 1
	for i := range slices.Backward(t.Ops) {
		if m, call := t.moduleOf(i), int(t.Ops[i].Row)+1; m >= 0 && t.Ops[i].params {
			last[m] = setting.Or(last[m], call)
			shared[m] = shared[m] || call != last[m]
		}
	}
	apart := t.apart(h)
	placed := make([]bool, len(t.Rows)+1)
	for i := range t.Ops {
		m, call := t.moduleOf(i), int(t.Ops[i].Row)+1
		if m >= 0 && t.Ops[i].apart && call == last[m] && apart != nil {
			g[i] = Gradient{Stays: apart[m], Group: h.Apart(int32(m)) + 1}
		}
		if m < 0 || placed[call] || !t.Ops[i].params {
			continue
		}
		placed[call] = true
		l := h.Modules[m].Device(t.Cfg)
		if call != last[m] {
			g[i] = Gradient{Sum: sum{Summand: l.Gradients}} // added in place
			continue
		}
		g[i] = Gradient{Stays: l.Gradients + h.TiedIn[m] - h.TiedOut[m], Sum: h.Sums[m], Group: int32(m) + 1}
		if apart != nil {
			g[i].Stays -= apart[m]
		}
		if t.Cfg.Passing() && !shared[m] {
			g[i] = g[i].passes(l, h.TiedIn[m], h.TiedOut[m], loop.Form, loop.Decay)
		}
	}
	return g
}

// apart returns, for each module, the bytes of gradients whose parameters are marked Apart. It is
// nil where there are none, or where gradients do not stay on the device.
func (t *Tape) apart(h *Holding) []int64 {
	var apart []int64
	for _, p := range h.Each {
		if !p.Apart || t.Cfg.Passing() {
			continue
		}
		if apart == nil {
			apart = make([]int64, len(h.Modules))
		}
		apart[p.Module] += p.Load.Device(t.Cfg).Gradients
	}
	return apart
}

// passes returns the memory of a gradient that leaves the device, or that the optimizer uses up, as
// soon as it is made. The gradient of a tied parameter waits until the backward pass has reached
// all layers that use it.
func (g Gradient) passes(l Load, tiedIn, tiedOut int64, form, decay string) Gradient {
	return Gradient{
		Stays: tiedIn - tiedOut, Sum: g.Sum, Group: g.Group,
		Passing: max(0, l.Gradients-tiedOut) + l.Work.Temporary(form, decay),
	}
}

// ReturnsCache notes that the model may return keys and values, which then live as long as its
// output. Most checkpointed layers return none; those that always do (always is true) hold theirs
// at least until the forward pass is over.
func (t *Tape) ReturnsCache(k, v Tensor, always bool) {
	held := []int32{t.Home(k.storage), t.Home(v.storage)}
	if t.inside && always {
		t.lingering.passed = append(t.lingering.passed, held...)
	}
	switch {
	case t.inside && !always:
	case t.Cfg.Loop.Output == setting.OutputWithCache:
		t.Storages[held[0]].Lingers, t.Storages[held[1]].Lingers = true, true
	default:
		t.lingering.keys = append(t.lingering.keys, held...)
	}
}

// ReturnsCopies notes that a model may return a copy of its keys in float32 beside those in half precision.
func (t *Tape) ReturnsCopies(k Tensor) {
	k.DType = alloc.Float32
	if !t.inside && t.Storages[k.storage].Bytes < int64(t.Size(k)) {
		t.lingering.copies += int64(t.Size(k))
	}
}

// Linger notes that an operation keeps x until the loop's code drops what the model returned, unless a checkpointed layer
// runs it.
func (t *Tape) Linger(x Tensor) {
	s := &t.Storages[t.Home(x.storage)]
	s.Lingers = s.Lingers || !t.inside
}

// MayKeep notes that a product with quantized weights may keep x, depending on the library's release.
func (t *Tape) MayKeep(x Tensor) {
	to := &t.lingering.inputs
	if t.inside {
		to = &t.lingering.inputsInside
	}
	*to = append(*to, t.Home(x.storage))
}

// Beyond returns what may be beyond the estimate of a peak of training where the options do not say which case holds: the
// inputs that an old bitsandbytes keeps; and, if the loop's code may hold the model's output, the output of the step before
// and the keys and values that decoders of transformers return (past_key_values).
func (t *Tape) Beyond() []Lingers {
	held := t.Cfg.Loop.Output == "" || t.Cfg.Loop.Output == setting.OutputHeld
	inputs, keys := t.lingering.mostInside+t.sum(t.lingering.inputs, func(s *Storage) bool { return held || !s.Retained }), int64(0)
	if held {
		inputs += t.sum(t.lingering.inputs, func(s *Storage) bool { return !s.Retained })
		keys = t.sum(t.lingering.keys, func(*Storage) bool { return true })
	}
	if held || t.Cfg.Loop.Output == setting.OutputWithCache {
		keys += t.lingering.copies
	}
	return []Lingers{
		{inputs, "inputs of quantized layers", "whether bitsandbytes keeps them, as it did before 0.43.2", "Installed"},
		{keys, "keys and values", "whether the code holds them with the output", "Loop.Output"},
	}
}

// Lingers is memory that some code holds longer than others: how much, of what, what is not known, and the option that says it.
type Lingers struct {
	Bytes          int64
	Of, What, Says string
}

// keptInside notes what an old bitsandbytes keeps while a checkpointed layer runs again.
func (t *Tape) keptInside() {
	t.lingering.mostInside = max(t.lingering.mostInside, t.sum(t.lingering.inputsInside, func(s *Storage) bool { return !s.Retained }))
	t.lingering.inputsInside = t.lingering.inputsInside[:0]
}

// sum adds up the sizes of the storages for which counts is true, each storage once.
func (t *Tape) sum(ids []int32, counts func(*Storage) bool) (n int64) {
	slices.Sort(ids)
	for _, id := range slices.Compact(ids) {
		if s := &t.Storages[id]; counts(s) {
			n += s.Bytes
		}
	}
	return n
}

// HoldPassed keeps what checkpointed layers return alive until the forward pass is over.
func (t *Tape) HoldPassed() {
	for _, id := range t.lingering.passed {
		t.Storages[id].Last = max(t.Storages[id].Last, int32(len(t.Ops)-1))
	}
}

// lasts reports whether a slot that holds tensors until the forward pass is over holds a storage.
func (t *Tape) lasts(id int32) bool {
	for _, s := range t.slots {
		if l, ok := s.value.(lasting); ok && slices.ContainsFunc(l.Lasting(), func(x Tensor) bool { return x.Shape != nil && x.storage == id }) {
			return true
		}
	}
	return false
}

// HoldLasting keeps the tensors of slots with a method Lasting alive until the forward pass is over.
func (t *Tape) HoldLasting() {
	for _, s := range t.slots {
		if l, ok := s.value.(lasting); ok {
			for _, x := range l.Lasting() {
				t.Hold(x)
			}
		}
	}
}

// Stage is the range of operations that one device of a pipeline runs.
type Stage struct {
	Begin, End    int32
	Load          Load
	largestModule int64 // bytes of its weights
	Last          bool
}

// Stages divides the model among the devices of a pipeline.
func (t *Tape) Stages(h *Holding) ([]Stage, error) {
	n := int32(len(t.Ops))
	if n == 0 || t.Cfg.Sharding.Pipeline == 1 {
		s := Stage{End: n, Load: h.Total, Last: true}
		for _, l := range h.Modules {
			s.largestModule = max(s.largestModule, l.Weights)
		}
		return []Stage{s}, nil
	}
	loads, largest, first := t.loads(h)
	pieces := append([]int32{0}, t.cuts()...)
	if len(pieces) < t.Cfg.Sharding.Pipeline {
		return nil, fmt.Errorf("estimate %s: the layers cannot be cut into %d stages: want at most %d, since a cut is where a single tensor passes",
			t.Cfg.Name, t.Cfg.Sharding.Pipeline, len(pieces))
	}
	prefix := make([]int64, n+1)
	for i, l := range loads {
		prefix[i+1] = prefix[i] + l.Weights
	}
	bounds := append(balance(pieces, prefix, t.Cfg.Sharding.Pipeline), n)
	stages := make([]Stage, len(bounds)-1)
	for i := range stages {
		s := Stage{Begin: bounds[i], End: bounds[i+1], Last: i == len(stages)-1}
		for k := s.Begin; k < s.End; k++ {
			s.Load.add(loads[k])
			s.largestModule = max(s.largestModule, largest[k])
		}
		stages[i] = s
	}
	h.untie(stages, func(module int) int {
		return slices.IndexFunc(stages, func(s Stage) bool { return first[module] < s.End })
	}, t.Cfg.Sharding)
	return stages, nil
}

// loads returns for each operation the parameters of its layer, if it is the first operation of
// that layer, and otherwise nothing; largest is the largest module among them, and first the first
// operation of each module. Parameters of layers without operations belong to the first operation.
func (t *Tape) loads(h *Holding) (loads []Load, largest []int64, first []int32) {
	loads, largest, first = make([]Load, len(t.Ops)), make([]int64, len(t.Ops)), make([]int32, len(h.Modules))
	placed := make([]bool, len(h.Modules))
	for i := range t.Ops {
		if m := t.moduleOf(i); m >= 0 && !placed[m] {
			placed[m], first[m] = true, int32(i)
		}
	}
	for m, l := range h.Modules {
		loads[first[m]].add(l)
		largest[first[m]] = max(largest[first[m]], l.Weights)
	}
	return loads, largest, first
}

// cuts returns the operations before which only one tensor is alive: a pipeline can be cut there.
func (t *Tape) cuts() []int32 {
	n := len(t.Ops)
	crossing := make([]int32, n+2) // by how much the number of live tensors changes before each operation
	for i := range t.Ops {
		if o := &t.Ops[i]; !o.View && !o.InPlace && o.Parts == 0 {
			s := t.Storages[o.Out]
			crossing[i+1]++
			crossing[max(int(s.read), i)+1]--
		}
	}
	var cuts []int32
	alive := int32(0)
	for i := range n {
		if alive += crossing[i]; i > 0 && alive == 1 {
			cuts = append(cuts, int32(i))
		}
	}
	return cuts
}

// balance chooses where the stages begin, so that the largest stage is as small as possible.
func balance(pieces []int32, prefix []int64, stages int) []int32 {
	total := prefix[len(prefix)-1]
	low, high := total/int64(stages), total
	best := split(pieces, prefix, stages, high)
	for low < high {
		mid := low + (high-low)/2
		if bounds := split(pieces, prefix, stages, mid); bounds != nil {
			best, high = bounds, mid
		} else {
			low = mid + 1
		}
	}
	return best
}

// split divides the pieces into stages that are not above the limit, or returns nil if that cannot
// be. It leaves at least one piece for each later stage.
func split(pieces []int32, prefix []int64, stages int, limit int64) []int32 {
	end := func(i int) int64 {
		if i+1 < len(pieces) {
			return prefix[pieces[i+1]]
		}
		return prefix[len(prefix)-1]
	}
	bounds := []int32{0}
	begin := int64(0)
	for i := range pieces {
		if i > 0 {
			left := len(pieces) - i
			if need := stages - len(bounds); need > 0 && (end(i)-begin > limit || left == need) {
				bounds = append(bounds, pieces[i])
				begin = prefix[pieces[i]]
			}
		}
		if end(i)-begin > limit {
			return nil
		}
	}
	return bounds
}

// ComputeIn runs f with another element type of activations, in which a module computes that was converted to it.
func (t *Tape) ComputeIn(d alloc.DType, f func()) {
	cfg := *t.Cfg
	cfg.Activations = d
	outer := t.Cfg
	t.Cfg = &cfg
	f()
	t.Cfg = outer
}

// Elements returns the number of parameters of the current layer, those of its parts included.
func (t *Tape) Elements() (n int64) {
	first := t.owner(t.path)
	if first < 0 {
		return 0
	}
	for _, m := range t.Decl.Modules[first:] {
		if m.Path != t.path && !strings.HasPrefix(m.Path, t.path+".") {
			break
		}
		n += m.Params
	}
	return n
}
