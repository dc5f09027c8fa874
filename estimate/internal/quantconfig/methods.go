package quantconfig

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
)

// linears covers what transformers converts: the linear layers and the experts that the list does not name, and without a
// list all but the output head (quantizers/base.py, get_modules_to_not_convert). With always, the head stays wide with a
// list too.
func linears(list []string, always bool) (func(matrix) bool, error) {
	n, err := skipped(list)
	return func(m matrix) bool {
		if m.head && (always || list == nil) {
			return false
		}
		return !n.skips(m.module) && !(m.expert && n.plain[m.path])
	}, err
}

// packLinears adds the rule for what transformers converts. A list that is not read makes the config Unread.
func packLinears(c *Config, name string, list []string, always bool, l layout) error {
	covers, err := linears(list, always)
	if err != nil {
		return c.unread(err)
	}
	c.pack(name, covers, l)
	return nil
}

// inBlocks is the layout of a byte for an element, and a scale for each block of so many rows and columns.
func inBlocks(rows, columns int, scale int64) layout {
	return func(m matrix) int64 {
		least := 1
		if m.both {
			least = 2
		}
		return m.elements() + setting.Times(scale, []int{max(least, ceil(m.out, rows)), ceil(m.in, columns)})
	}
}

// perTensor and perRow are a byte for an element, and a scale for all or for each row, of so many bytes.
func perTensor(scale int64) layout {
	return func(m matrix) int64 {
		if m.both {
			return m.elements() + 2*scale
		}
		return m.elements() + scale
	}
}

func perRow(scale int64) layout {
	return func(m matrix) int64 { return m.elements() + scale*int64(m.out) }
}

// inFours is two elements in a byte, and a byte for each group of elements of a row, and so many bytes for all.
func inFours(group int, more int64) layout {
	return func(m matrix) int64 {
		return setting.FLOPs(m.out, ceil(m.in, 2)) + setting.FLOPs(m.out, ceil(m.in, group)) + more
	}
}

// readFP8 reads FP8 in blocks, as DeepSeek publishes it (transformers, integrations/finegrained_fp8.py, FP8Linear and
// FP8Experts).
func readFP8(c *Config, text json.RawMessage) error {
	var q struct {
		Block      *[]int   `json:"weight_block_size"`
		Activation string   `json:"activation_scheme"`
		Dequantize bool     `json:"dequantize"`
		Skip       []string `json:"modules_to_not_convert"`
		Ignored    []string `json:"ignored_layers"`
		More       []string `json:"modules_to_convert"`
		Scale      string   `json:"scale_fmt"`
		Experts    string   `json:"expert_dtype"`
	}
	if err := strictjson.Unmarshal(text, &q); err != nil || q.Dequantize {
		return err
	}
	if q.Skip == nil {
		q.Skip = q.Ignored
	}
	scale, static := int64(4), int64(0)
	if q.Scale == "ue8m0" {
		scale = 1
	}
	if strings.EqualFold(q.Activation, "static") {
		static = 4
	}
	block := []int{128, 128}
	if q.Block != nil {
		block = *q.Block
	} else if hasKey(text, "weight_block_size") { // null
		block = nil
	}
	name, eight := "FP8", perTensor(4)
	switch {
	case block == nil:
	case len(block) != 2 || block[0] < 1 || block[1] < 1 || max(block[0], block[1]) > setting.MaxField:
		return fmt.Errorf("weight_block_size is %v: want two numbers of 1 or more", block)
	default:
		name, eight = fmt.Sprintf("FP8 in blocks of %d x %d", block[0], block[1]), inBlocks(block[0], block[1], scale)
	}
	if len(q.More) > 0 {
		c.Unread = "modules_to_convert is not read"
	}
	covers, err := linears(q.Skip, false)
	if err != nil {
		return c.unread(err)
	}
	if q.Experts == "fp4" {
		c.pack("FP4", func(m matrix) bool { return m.expert && covers(m) }, func(m matrix) int64 {
			return setting.FLOPs(m.out, ceil(m.in, 2)) + setting.Times(scale, []int{m.out, ceil(m.in, 32)}) + static
		})
	}
	c.pack(name, covers, func(m matrix) int64 { return eight(m) + static })
	for i := range c.rules {
		c.rules[i].fused = true
	}
	return nil
}

// hasKey reports whether a JSON object has a key.
func hasKey(text json.RawMessage, key string) bool {
	var members map[string]json.RawMessage
	_ = json.Unmarshal(text, &members)
	_, ok := members[key]
	return ok
}

// readFBGEMM reads FP8 with a scale for each row (transformers, integrations/fbgemm_fp8.py, FbgemmFp8Linear and
// FbgemmFp8Llama4TextExperts).
func readFBGEMM(c *Config, text json.RawMessage) error {
	var q struct {
		Skip []string `json:"modules_to_not_convert"`
	}
	if err := strictjson.Unmarshal(text, &q); err != nil {
		return err
	}
	return packLinears(c, "FP8", q.Skip, false, perRow(4))
}

// readMXFP4 reads the format of gpt-oss: only experts are packed, and a byte scales 32 elements (transformers,
// integrations/mxfp4.py, Mxfp4GptOssExperts).
func readMXFP4(c *Config, text json.RawMessage) error {
	var q struct {
		Dequantize bool     `json:"dequantize"`
		Skip       []string `json:"modules_to_not_convert"`
	}
	if err := strictjson.Unmarshal(text, &q); err != nil || q.Dequantize {
		return err
	}
	n, err := skipped(q.Skip)
	if err != nil {
		return c.unread(err)
	}
	c.pack("MXFP4", func(m matrix) bool {
		return m.expert && !n.skips(m.module)
	}, func(m matrix) int64 { return setting.Times(17, []int{m.out, ceil(m.in, 32)}) })
	return nil
}

// readBitsandbytes reads 4 and 8 bits (bitsandbytes 0.50, functional.py, quantize_4bit and QuantState; nn/modules.py,
// Int8Params): each weight of 4 bits has its own table of 16 numbers, and with nested maxima one of 256 and their offset.
func readBitsandbytes(c *Config, text json.RawMessage) error {
	var q struct {
		Four   bool     `json:"load_in_4bit"`
		Eight  bool     `json:"load_in_8bit"`
		Four2  bool     `json:"_load_in_4bit"`
		Eight2 bool     `json:"_load_in_8bit"`
		Type   string   `json:"bnb_4bit_quant_type"`
		Double bool     `json:"bnb_4bit_use_double_quant"`
		Skip   []string `json:"llm_int8_skip_modules"`
	}
	if err := strictjson.Unmarshal(text, &q); err != nil {
		return err
	}
	switch {
	case q.Eight || q.Eight2:
		c.Base = setting.Int8
		return packLinears(c, "int8", q.Skip, false, perRow(4))
	case !q.Four && !q.Four2:
		c.Unread = "it says neither load_in_4bit nor load_in_8bit"
		return nil
	}
	name := "FP4"
	if strings.EqualFold(q.Type, "nf4") {
		name = "NF4"
	}
	const block, table = 64, 16 * 4
	c.Base = setting.NF4
	maxima := func(blocks int64) int64 { return 4 * blocks }
	if q.Double {
		c.Base = setting.NF4Double
		maxima = func(blocks int64) int64 { return blocks + 4*((blocks+255)/256) + 256*4 + 4 }
	}
	return packLinears(c, name, q.Skip, false, func(m matrix) int64 {
		n := min(m.elements(), setting.MaxTotal)
		return (n+1)/2 + maxima((n+block-1)/block) + table
	})
}

// grouped are the settings of GPTQ, AWQ and AutoRound.
type grouped struct {
	Bits     flexible            `json:"bits"`
	Group    *flexible           `json:"group_size"` // -1 for a whole row
	AWQBits  flexible            `json:"w_bit"`
	AWQGroup *flexible           `json:"q_group_size"`
	Skip     []string            `json:"modules_to_not_convert"`
	Head     bool                `json:"lm_head"`
	Dynamic  map[string]any      `json:"dynamic"`
	Packing  string              `json:"packing_format"`
	Extra    map[string]override `json:"extra_config"`
}

// override are AutoRound's settings of a layer.
type override struct {
	Bits  flexible  `json:"bits"`
	Group *flexible `json:"group_size"`
}

// read reads the settings; group is 128 and bits are 4 if they are not given.
func (q *grouped) read(text json.RawMessage) (bits, group int, err error) {
	if err := strictjson.Unmarshal(text, q); err != nil {
		return 0, 0, err
	}
	bits, group = int(cmp.Or(q.Bits, q.AWQBits, 4)), 128
	if g := setting.Or(q.Group, q.AWQGroup); g != nil {
		group = int(*g)
	}
	return bits, group, between("bits", bits, 1, 16)
}

// gptq is the layout of GPTQ: words of 32 bits along the inputs, for each group of inputs a float16 and a zero of as many
// bits for each output, and the group of each input (AutoGPTQ, qlinear_triton.py; GPTQModel).
func gptq(bits, group int, ordered bool) layout {
	return func(m matrix) int64 {
		groups := groupsOf(m.in, group)
		words := setting.FLOPs(m.in, bits)/32*int64(m.out) + int64(groups)*(setting.FLOPs(m.out, bits)/32)
		n := 4*words + setting.Times(2, []int{groups, m.out})
		if ordered {
			n += 4 * int64(m.in)
		}
		return n
	}
}

// readGPTQ reads GPTQ, which packs the linear layers of the blocks.
func readGPTQ(c *Config, text json.RawMessage) error {
	var q grouped
	bits, group, err := q.read(text)
	if err != nil {
		return err
	}
	if len(q.Dynamic) > 0 {
		c.Unread = "its dynamic settings of single layers are not read"
		return nil
	}
	if bits == 4 {
		c.Base = setting.GPTQ
	}
	n, err := skipped(q.Skip)
	if err != nil {
		return c.unread(err)
	}
	c.pack(fmt.Sprintf("GPTQ of %d bits", bits), func(m matrix) bool {
		if _, inBlock := setting.NumberIn(m.path); !inBlock {
			return q.Head && m.head
		}
		return !n.skips(m.path)
	}, gptq(bits, group, true))
	return nil
}

// readAWQ reads AWQ: words of 32 bits along the outputs, for each group of inputs a float16 and a zero of as many bits for
// each output (AutoAWQ, awq/modules/linear/gemm.py).
func readAWQ(c *Config, text json.RawMessage) error {
	var q grouped
	bits, group, err := q.read(text)
	if err != nil {
		return err
	}
	if bits == 4 {
		c.Base = setting.AWQ
	}
	return packLinears(c, fmt.Sprintf("AWQ of %d bits", bits), q.Skip, true, awq(bits, group))
}

func awq(bits, group int) layout {
	return func(m matrix) int64 {
		groups, words := groupsOf(m.in, group), m.out/max(1, 32/bits)
		return setting.Times(4, []int{m.in + groups, words}) + setting.Times(2, []int{groups, m.out})
	}
}

// readAutoRound reads AutoRound, in the layouts of GPTQ without the groups of inputs, or of AWQ.
func readAutoRound(c *Config, text json.RawMessage) error {
	var q grouped
	bits, group, err := q.read(text)
	if err != nil {
		return err
	}
	like := func(bits, group int) layout { return gptq(bits, group, false) }
	switch {
	case strings.Contains(q.Packing, "awq"):
		like = awq
	case q.Packing != "" && !strings.Contains(q.Packing, "gptq") && q.Packing != "auto_round":
		c.Unread = fmt.Sprintf("its packing_format %q is not read", strictjson.Shorten(q.Packing))
		return nil
	}
	if len(q.Extra) > maxNames {
		return fmt.Errorf("extra_config has %d layers: want at most %d", len(q.Extra), maxNames)
	}
	wide := map[string]bool{}
	for _, name := range slices.Sorted(maps.Keys(q.Extra)) {
		o := q.Extra[name]
		switch {
		case strings.ContainsAny(name, "*^$()[]\\"):
			c.Unread = "its extra_config has patterns"
			return nil
		case o.Bits >= 16:
			wide[name] = true
		case o.Bits > 0:
			if err := between("bits of "+strictjson.Shorten(name), int(o.Bits), 1, 16); err != nil {
				return err
			}
			of := group
			if o.Group != nil {
				of = int(*o.Group)
			}
			c.pack(fmt.Sprintf("AutoRound of %d bits", o.Bits), func(m matrix) bool { return m.path == name }, like(int(o.Bits), of))
		}
	}
	c.pack(fmt.Sprintf("AutoRound of %d bits", bits), func(m matrix) bool {
		_, inBlock := setting.NumberIn(m.path)
		return inBlock && !wide[m.path]
	}, like(bits, group))
	return nil
}
