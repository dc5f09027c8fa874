package tape

import (
	"fmt"
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
)

// Declaration collects what the layers of a model declare. It serves one call of Model, and fails
// at the first layer that is wrong.
type Declaration struct {
	memory  *Scratch
	Cfg     *setting.Config
	path    string
	depth   int
	Current int
	Modules []module
	params  []ownedParam
	index   map[string]int   // module by its path
	Shared  map[any]bool     // what several layers share, such as a table, once one of them has declared it
	adapted map[string]bool  // paths of the linear layers that have adapters
	outputs map[string]bool  // by path, whether a Linear is an output head, if it says so
	met     map[pattern]bool // patterns that matched a layer
	text    strings.Builder  // memory for paths, taken for many at a time
}

// pattern is text by which an option names layers.
type pattern struct{ option, text string }

type module struct {
	Path, Kind string
	Depth      int
	own        int   // number of parameters and buffers, without those of parts
	Params     int64 // elements of all parameters, without those of parts
	Frozen     bool  // its parameters are not trained
}

type ownedParam struct {
	Param
	elements int64
	module   int
	inside   bool // a matrix that is neither an embedding nor the output head
}

func NewDeclaration(memory *Scratch, cfg *setting.Config) *Declaration {
	return &Declaration{
		memory: memory, Cfg: cfg, met: make(map[pattern]bool), adapted: make(map[string]bool), outputs: make(map[string]bool),
		Modules: memory.modules[:0], params: memory.params[:0], index: memory.index, Shared: make(map[any]bool),
	}
}

// Run makes the model declare its layers.
func (d *Declaration) Run(root Layer, name string) error {
	d.Modules = append(d.Modules, module{Kind: name, Frozen: d.Cfg.Lora != nil})
	d.index[""] = 0
	err := caught(func() { d.Declare(root) })
	if err == nil {
		err = d.checkTies()
	}
	if err == nil {
		err = d.unmet()
	}
	return err
}

// unmet returns an error for the first pattern that matches no layer: it is most likely a mistake.
func (d *Declaration) unmet() error {
	frozen := slices.DeleteFunc(slices.Clone(d.Cfg.Frozen), func(p string) bool { return !d.met[pattern{"Frozen", p}] && d.freezeAfter("*."+p) })
	if err := d.unmetBy("Frozen", "layer", frozen); err != nil {
		return err
	}
	if l := d.Cfg.Lora; l != nil {
		if err := d.unmetBy("LoRA", "Linear", l.Targets); err != nil {
			return err
		}
	}
	q := d.Cfg.Quantized
	if q == nil || q.Base == "" && q.Parts == nil {
		return nil
	}
	if err := d.unmetBy("Quantized", "Linear", q.Layers); err != nil {
		return err
	}
	return d.unmetBy("Quantized: Parts", "Linear", slices.Sorted(maps.Keys(q.Parts)))
}

// unmetBy returns an error for the first of an option's patterns that matches no layer of this
// kind.
func (d *Declaration) unmetBy(option, kind string, patterns []string) error {
	for _, p := range patterns {
		if !d.met[pattern{option, p}] {
			return fmt.Errorf("estimate %s: %s: no %s's path matches %q%s", d.Cfg.Name, option, kind, p, d.exampleOf(kind))
		}
	}
	return nil
}

// exampleOf ends an error about a pattern with examples of paths that would match a layer of this
// kind.
func (d *Declaration) exampleOf(kind string) string {
	if kind == "layer" {
		return fmt.Sprintf(", as %q would be", d.Modules[len(d.Modules)/2].Path)
	}
	var names []string // each once, at most ten
	for _, m := range d.Modules {
		name := m.Path[strings.LastIndexByte(m.Path, '.')+1:]
		if _, numbered := setting.NumberIn(name); numbered { // the list already names it
			name = m.Path[strings.LastIndexByte(strings.TrimSuffix(m.Path, "."+name), '.')+1:]
		}
		if m.Kind == kind && len(names) < 10 && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ": the model has no " + kind
	}
	return ": their names are " + strings.Join(names, ", ")
}

// freezeAfter marks the parts whose paths match a pattern as not trained, and reports whether there
// are any. With adapters, everything else is untrained already.
func (d *Declaration) freezeAfter(pattern string) bool {
	found, below := false, ""
	for i := range d.Modules {
		m := &d.Modules[i]
		if ok, _ := path.Match(pattern, m.Path); ok {
			found, below = true, m.Path+"."
		}
		if d.Cfg.Lora == nil && below != "" && strings.HasPrefix(m.Path+".", below) {
			m.Frozen = true
		}
	}
	return found
}

// Anywhere lets a pattern match the end of a path too, after any dot, so that "layers.*" finds
// "model.layers.0".
func (d *Declaration) Anywhere(patterns []string) []string {
	meets := func(p string) bool {
		return slices.ContainsFunc(d.Modules, func(m module) bool { ok, _ := path.Match(p, m.Path); return ok })
	}
	found := slices.Clone(patterns)
	for i, p := range patterns {
		if after := "*." + p; !meets(p) && meets(after) {
			found[i] = after
		}
	}
	return found
}

// freezes reports whether the part at a path is left untrained.
func (d *Declaration) freezes(at string, l Layer) bool {
	if _, ok := l.(interface{ Adapts() }); ok {
		return false
	}
	frozen := d.Modules[d.Current].Frozen
	for _, p := range d.Cfg.Frozen {
		if ok, _ := path.Match(p, at); ok {
			d.met[pattern{"Frozen", p}], frozen = true, true
		}
	}
	return frozen
}

// Adapts reports whether the current Linear gets an adapter.
func (d *Declaration) Adapts() bool {
	if d.Cfg.Lora == nil {
		return false
	}
	if d.Cfg.Excludes(d.path) {
		return false
	}
	all := !d.isOutput() && !d.Cfg.Fused.Names(d.path)
	adapts := d.meet("LoRA", d.Cfg.Lora.Targets, all)
	if adapts {
		d.adapted[d.path] = true
	}
	return adapts
}

// Adapted reports whether the Linear that was declared at a path has an adapter.
func (d *Declaration) Adapted(at string) bool { return d.adapted[at] }

// AdaptsParam returns how many layers that were fused into a parameter of the current layer get an adapter.
func (d *Declaration) AdaptsParam(name string) int { return d.Cfg.AdaptedParam(join(d.path, name)) }

// Output says whether the current Linear is the model's output head, which "all-linear" leaves out, in spite of its name.
func (d *Declaration) Output(is bool) { d.outputs[d.path] = is }

// isOutput reports whether the current Linear is the model's output head.
func (d *Declaration) isOutput() bool {
	is, said := d.outputs[d.path]
	return is || !said && setting.IsHead(d.path)
}

// meet notes which patterns of an option match the current Linear, and reports whether any does.
// Unless all is true, "all-linear" matches nothing.
func (d *Declaration) meet(option string, patterns []string, all bool) (ok bool) {
	for _, p := range patterns {
		if p == setting.AllLinear && all || p != setting.AllLinear && setting.Names(p, d.path) {
			d.met[pattern{option, p}], ok = true, true
		}
	}
	return ok
}

// Quantizes reports whether the current Linear has a quantized weight. If so, the layer is marked
// as not trained.
func (d *Declaration) Quantizes() bool {
	q := d.Cfg.Quantized
	if !q.Holds(d.path) {
		return false
	}
	d.Modules[d.Current].Frozen = true
	d.meet("Quantized", q.Layers, !setting.IsHead(d.path))
	part, _, _ := strings.Cut(d.path, ".")
	d.met[pattern{"Quantized: Parts", part}] = true
	return true
}

// LeavesWide reports whether quantization leaves the current layer, which holds experts, as it is.
func (d *Declaration) LeavesWide() bool { return d.Cfg.LeavesWide(d.path) }

// Base is how the current Linear is quantized.
func (d *Declaration) Base() string { return d.Cfg.Quantized.At(d.path) }

// Layer declares a part and everything that the part declares itself.
func (d *Declaration) Layer(name string, l Layer) {
	l = Unwrap(l)
	at := d.join(d.path, name)
	switch {
	case IsNil(l):
		panic(failure{&LayerError{Path: at, Layer: "nil", Reason: "there is no layer here: give one, or take the entry out"}})
	case len(d.Modules) >= MaxLayers:
		panic(failure{&LayerError{Path: at, Layer: KindOf(l), Reason: fmt.Sprintf("the model has more than %d layers", MaxLayers)}})
	case d.depth >= maxDepth:
		panic(failure{&LayerError{Path: at, Layer: KindOf(l), Reason: fmt.Sprintf("layers are nested more than %d deep", maxDepth)}})
	}
	outer, current := d.path, d.Current
	d.path, d.depth = at, d.depth+1
	if i, seen := d.index[at]; seen {
		d.Current = i // the same module called again, as torchvision calls its relu
		if d.Modules[i].own > 0 {
			panic(failure{&LayerError{Path: at, Layer: KindOf(l), Reason: "two layers with parameters have this name: name them apart, or Share one"}})
		}
	} else {
		frozen := d.freezes(at, l)
		d.Current = len(d.Modules)
		d.index[at] = d.Current
		d.Modules = append(d.Modules, module{Path: at, Kind: KindOf(l), Depth: d.depth, Frozen: frozen})
	}
	d.Declare(l)
	d.path, d.depth, d.Current = outer, d.depth-1, current
}

// Declare makes l declare its parameters and parts as if the current layer declared them.
func (d *Declaration) Declare(l Layer) {
	if has, ok := l.(Declarer); ok {
		has.Declare(d)
	}
}

// Param declares a parameter of the current layer.
func (d *Declaration) Param(name string, dims ...int) {
	d.Add(Param{Name: name, Shape: dims})
}

// Buffer declares a buffer of the current layer, in the element type of the model's weights.
func (d *Declaration) Buffer(name string, dims ...int) {
	d.Add(Param{Name: name, Shape: dims, Buffer: true})
}

// Add declares a parameter or a buffer of the current layer from a Param.
func (d *Declaration) Add(p Param) {
	n, err := p.Shape.Elements()
	if err == nil && p.DType != 0 {
		_, err = p.Shape.Bytes(p.DType)
	}
	if err != nil {
		d.fail("parameter "+p.Name, err)
	}
	if strings.HasPrefix(p.Tied, ".") {
		p.Tied = d.above(p.Tied)
	}
	d.params = append(d.params, ownedParam{Param: p, elements: n, module: d.Current})
	m := &d.Modules[d.Current]
	m.own++
	if !p.Buffer && p.Tied == "" {
		m.Params = setting.AddSat(m.Params, n)
	}
}

// above returns the full path that a relative path means.
func (d *Declaration) above(relative string) string {
	from := d.path
	for strings.HasPrefix(relative, ".") {
		from, relative = from[:max(0, strings.LastIndexByte(from, '.'))], relative[1:]
	}
	return join(from, relative)
}

// Failf ends the declaration with an error that names the current layer.
func (d *Declaration) Failf(format string, args ...any) { d.fail(fmt.Sprintf(format, args...), nil) }

// fail ends the declaration with an error of the current layer.
func (d *Declaration) fail(reason string, err error) {
	m := d.Modules[d.Current]
	panic(failure{&LayerError{Path: m.Path, Layer: m.Kind, Reason: reason, Err: err}})
}

// Want fails unless a setting is between least and setting.MaxField.
func (d *Declaration) Want(name string, v, least int) {
	if v < least || v > setting.MaxField {
		d.Failf("%s is %d: want %d or more, and at most %d", name, v, least, setting.MaxField)
	}
}

// WantHeads fails unless tensor parallelism can divide the attention heads among its devices. There
// may be fewer heads of keys and values than devices: then several devices hold the same head.
func (d *Declaration) WantHeads(heads, kv int) {
	n := d.Cfg.Sharding.Tensor
	if heads%n != 0 || kv%n != 0 && n%kv != 0 {
		d.Failf("%d heads, and %d of keys and values, do not divide among %d devices: want a Tensor of Sharding that divides both", heads, kv, n)
	}
}

func (d *Declaration) checkTies() error {
	for _, p := range d.params {
		if p.Tied == "" {
			continue
		}
		m := d.Modules[p.module]
		owner := d.ownerOf(p.Tied)
		if owner == nil {
			return &LayerError{Path: m.Path, Layer: m.Kind, Reason: fmt.Sprintf("parameter %s is tied to %q, which the model does not have", p.Name, p.Tied)}
		}
		if !slices.Equal(owner.Shape, p.Shape) {
			return &LayerError{Path: m.Path, Layer: m.Kind, Reason: fmt.Sprintf("parameter %s has shape %v, but %q, to which it is tied, has %v", p.Name, p.Shape, p.Tied, owner.Shape)}
		}
	}
	return nil
}

// ownerOf returns the parameter at a path, or nil.
func (d *Declaration) ownerOf(path string) *ownedParam {
	at := strings.LastIndexByte(path, '.')
	module, ok := d.index[path[:max(0, at)]]
	if !ok {
		return nil
	}
	for i := range d.params {
		if p := &d.params[i]; p.module == module && p.Name == path[at+1:] && p.Tied == "" {
			return p
		}
	}
	return nil
}

func join(path, name string) string {
	if path == "" {
		return name
	}
	if name == "" {
		return path
	}
	return path + "." + name
}

// join joins a path and a name without an allocation each time: there are many paths, most of them
// long.
func (d *Declaration) join(path, name string) string {
	if path == "" || name == "" {
		return join(path, name)
	}
	if n := len(path) + 1 + len(name); d.text.Cap()-d.text.Len() < n {
		d.text = strings.Builder{}
		d.text.Grow(max(4096, n))
	}
	begin := d.text.Len()
	d.text.WriteString(path)
	d.text.WriteByte('.')
	d.text.WriteString(name)
	return d.text.String()[begin:]
}
