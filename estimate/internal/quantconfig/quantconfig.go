// Package quantconfig reads the quantization_config of a config.json, and says what the weights of a model take in files
// that are packed so.
//
//	c, err := quantconfig.Read(text)
//	sizes := c.Sizes(params, alloc.BFloat16)
//
// A Config is a list of rules. Each matrix of a linear layer, or of an expert, takes the layout of the first rule that covers
// it, and a matrix that no rule covers stays as wide as the model. A layout has the bytes of the packed elements with their
// scales and zero points, as the library that writes the files declares them. The functions that make the rules of a
// method name that library.
package quantconfig

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// Config is a quantization_config. Its zero value packs nothing.
type Config struct {
	Method string // quant_method
	// Base is how training holds such weights, by the words of estimate.Quantized; "" for a method that is not trained.
	Base string
	// Unread says why the sizes are not known; "" if they are. The weights count as if they were not packed then.
	Unread string

	rules   []rule
	scales  alloc.Bytes // of the keys and values of a layer
	inModel bool        // scales are in the model's own type, and scales above are elements
}

// unread notes why the sizes are not known. That is no error: the weights count as if they were not packed.
func (c *Config) unread(why error) error {
	c.Unread = why.Error()
	return nil
}

// rule says how the matrices are stored that it covers.
type rule struct {
	name   string // of the format, such as "FP8"
	covers func(matrix) bool
	layout layout
	fused  bool // two projections of an expert are one matrix, as transformers holds them
}

// layout returns the bytes of a matrix with all that is stored beside it.
type layout func(matrix) int64

// matrix is a weight of a linear layer or of one expert: out rows of in elements each.
type matrix struct {
	path    string // of the linear layer in the files: that of an expert has its number
	module  string // that holds it: for an expert all of them
	out, in int
	expert  bool
	both    bool  // two projections of an expert
	head    bool  // what transformers leaves wide unless the config lists what to leave: the output head
	wide    int64 // bytes of an element of the model's type
}

// elements is their number.
func (m matrix) elements() int64 { return setting.FLOPs(m.out, m.in) }

// Read reads a quantization_config. The error says that it is not one; a method that is not known makes a Config that is
// Unread.
func Read(text json.RawMessage) (*Config, error) {
	var q struct {
		Method string `json:"quant_method"`
		Algo   string `json:"quant_algo"`
		Inner  *struct {
			Algo string `json:"quant_algo"`
		} `json:"quantization"` // of ModelOpt's hf_quant_config.json
	}
	if err := strictjson.Unmarshal(text, &q); err != nil {
		return nil, err
	}
	c := &Config{Method: cmp.Or(q.Method, "an unnamed method")}
	read, ok := methods[strings.ToLower(q.Method)]
	if q.Method == "" && (q.Algo != "" || q.Inner != nil && q.Inner.Algo != "") {
		c.Method, read, ok = "modelopt", readModelOpt, true
	}
	if !ok {
		c.Unread = "this method is not read"
		return c, nil
	}
	if err := read(c, text); err != nil {
		return nil, err
	}
	if c.Unread != "" {
		c.rules = nil
	}
	return c, nil
}

// methods read the methods by the names in quant_method.
var methods = map[string]func(*Config, json.RawMessage) error{
	"fp8": readFP8, "fbgemm_fp8": readFBGEMM, "mxfp4": readMXFP4,
	"bitsandbytes": readBitsandbytes, "gptq": readGPTQ, "awq": readAWQ,
	"auto-round": readAutoRound, "hqq": readHQQ, "quanto": readQuanto, "eetq": readEETQ,
	"higgs": readHIGGS, "bitnet": readBitNet, "aqlm": readAQLM, "torchao": readTorchAO,
	"compressed-tensors": readCompressedTensors, "modelopt": readModelOpt, "modelopt_fp4": readModelOpt,
	"quark": readQuark,
}

// pack adds a rule.
func (c *Config) pack(name string, covers func(matrix) bool, l layout) {
	c.rules = append(c.rules, rule{name: name, covers: covers, layout: l})
}

// Size is the memory of a weight.
type Size struct {
	Bytes  alloc.Bytes
	Format string
}

// Sizes returns the sizes of the weights that are packed, by their paths, such as model.layers.0.mlp.down_proj.weight. wide is
// the model's type.
func (c *Config) Sizes(params []tape.Parameter, wide alloc.DType) map[string]Size {
	sizes := map[string]Size{}
	if c == nil || len(c.rules) == 0 {
		return sizes
	}
	last := lastLinear(params)
	attends := map[string]bool{}
	for i := range params {
		p := &params[i]
		if p.Buffer || p.Tied != "" {
			continue
		}
		s, packed := c.size(params, i, i == last, int64(wide.Bits())/8)
		if layer, ok := attention(p.Path); ok && c.scales > 0 && p.Name == "weight" && !attends[layer] {
			attends[layer] = true
			s.Bytes += c.cacheScales(wide)
			if !packed {
				s.Bytes += alloc.Bytes(p.Elements * int64(wide.Bits()) / 8)
			}
			packed = true
		}
		if packed {
			sizes[p.Path+"."+p.Name] = s
		}
	}
	return sizes
}

// cacheScales is the memory of the scales of the keys and values of a layer.
func (c *Config) cacheScales(wide alloc.DType) alloc.Bytes {
	if c.inModel {
		return c.scales * alloc.Bytes(wide.Bits()) / 8
	}
	return c.scales
}

// attention returns the attention layer that a projection of values belongs to.
func attention(path string) (layer string, ok bool) {
	dot := strings.LastIndexByte(path, '.')
	switch path[dot+1:] {
	case "k_proj", "v_proj", "qkv_proj":
		return path[:max(0, dot)], true
	}
	return "", false
}

// lastLinear is the index of the weight of the last linear layer, which transformers takes for a head; -1 if there is none.
func lastLinear(params []tape.Parameter) int {
	for i := len(params) - 1; i >= 0; i-- {
		if p := &params[i]; p.Kind == "Linear" && p.Name == "weight" {
			if _, inBlock := setting.NumberIn(p.Path); inBlock {
				return -1
			}
			return i
		}
	}
	return -1
}

// size returns the size of a parameter; packed is false if no rule covers it.
func (c *Config) size(params []tape.Parameter, i int, last bool, wide int64) (s Size, packed bool) {
	p := &params[i]
	experts := strings.HasPrefix(p.Kind, "Experts") && len(p.Shape) == 3
	switch {
	case experts:
		return c.experts(p, isTransposed(params, i), wide)
	case p.Kind != "Linear" || len(p.Shape) != 2 || p.Name != "weight":
		return s, false
	}
	m := matrix{path: p.Path, module: p.Path, out: p.Shape[0], in: p.Shape[1], head: last || setting.IsHead(p.Path), wide: wide}
	r := c.ruleOf(m)
	if r == nil {
		return s, false
	}
	return Size{alloc.Bytes(min(r.layout(m), setting.MaxTotal+1)), r.name}, true
}

// ruleOf returns the first rule that covers a matrix, or nil.
func (c *Config) ruleOf(m matrix) *rule {
	for i := range c.rules {
		if c.rules[i].covers(m) {
			return &c.rules[i]
		}
	}
	return nil
}

// experts returns the size of a tensor that has a matrix of each expert, or two that files have apart. All experts are
// packed alike.
func (c *Config) experts(p *tape.Parameter, transposed bool, wide int64) (s Size, packed bool) {
	out, in := p.Shape[1], p.Shape[2]
	if transposed {
		out, in = in, out
	}
	m := matrix{path: p.Path + ".0." + p.Name, module: p.Path, out: out, in: in, expert: true, wide: wide}
	names := []string{p.Name}
	if r := c.ruleOf(m); p.Name == "gate_up_proj" && (r == nil || !r.fused) {
		names, m.out = []string{"gate_proj", "up_proj"}, out/2
	}
	for _, name := range names {
		m.path = p.Path + ".0." + name
		m.both = name == "gate_up_proj"
		n := m.elements() * wide
		if r := c.ruleOf(m); r != nil {
			n, packed, s.Format = r.layout(m), true, r.name
		}
		s.Bytes = min(s.Bytes+alloc.Bytes(setting.Times(min(n, setting.MaxTotal), p.Shape[:1])), setting.MaxTotal+1)
	}
	return s, packed
}

// isTransposed reports whether a module has the matrices of its experts with a row for each input: those of the first
// projection then have as many rows as the second gives.
func isTransposed(params []tape.Parameter, i int) bool {
	of := func(name string) *tape.Parameter {
		for _, j := range []int{i - 3, i - 2, i - 1, i, i + 1, i + 2, i + 3} {
			if j >= 0 && j < len(params) && params[j].Path == params[i].Path && params[j].Name == name && len(params[j].Shape) == 3 {
				return &params[j]
			}
		}
		return nil
	}
	up, down := of("gate_up_proj"), of("down_proj")
	return up != nil && down != nil && up.Shape[1] == down.Shape[2] && up.Shape[2] == 2*down.Shape[1]
}

// Describe says in what the weights are: "MXFP4 experts, bfloat16 the rest".
func (c *Config) Describe(params []tape.Parameter, wide alloc.DType) string {
	formats := map[string]bool{}
	linear := false
	sizes := c.Sizes(params, wide)
	for i := range params {
		if s, ok := sizes[params[i].Path+"."+params[i].Name]; ok && s.Format != "" {
			formats[s.Format] = true
			linear = linear || params[i].Kind == "Linear"
		}
	}
	names := make([]string, 0, len(formats))
	for name := range formats {
		names = append(names, name)
	}
	slices.Sort(names)
	if len(names) == 0 {
		return wide.String()
	}
	packed := strings.Join(names, " and ")
	if !linear {
		packed += " experts"
	}
	return packed + ", " + wide.String() + " the rest"
}

// between returns an error unless a setting is in a range.
func between(name string, v, least, most int) error {
	if v < least || v > most {
		return fmt.Errorf("%s is %d: want %d to %d", name, v, least, most)
	}
	return nil
}

// ceil is n / d, rounded up; n is not negative, and d is positive.
func ceil(n, d int) int {
	if n == 0 {
		return 0
	}
	return (n-1)/d + 1
}

// groupsOf is the number of groups in a row; a size of 0 or less means that the row is one.
func groupsOf(in, size int) int {
	if size <= 0 {
		return 1
	}
	return ceil(in, size)
}

// flexible is a number that some writers put in quotes.
type flexible int

// UnmarshalJSON reads the number.
func (f *flexible) UnmarshalJSON(text []byte) error {
	text = bytes.Trim(text, `"`)
	if string(text) == "null" {
		return nil
	}
	v, err := strconv.ParseInt(string(text), 10, 32)
	if err != nil {
		return fmt.Errorf("%q is no number", strictjson.Shorten(string(text)))
	}
	*f = flexible(v)
	return nil
}
