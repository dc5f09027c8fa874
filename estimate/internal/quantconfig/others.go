package quantconfig

import (
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
)

// readHQQ reads HQQ: a scale and a zero in the model's type for each group (hqq 0.2.8, core/quantize.py and bitpack.py, which
// packs ten weights of 3 bits in a word).
func readHQQ(c *Config, text json.RawMessage) error {
	var q struct {
		Skip   []string `json:"skip_modules"`
		Config struct {
			Weights *struct {
				Bits  flexible  `json:"nbits"`
				Group *flexible `json:"group_size"`
			} `json:"weight_quant_params"`
		} `json:"quant_config"`
	}
	if err := strictjson.Unmarshal(text, &q); err != nil {
		return err
	}
	w := q.Config.Weights
	if w == nil || w.Group == nil {
		c.Unread = "its settings of single layers, or of whole rows, are not read"
		return nil
	}
	bits, group := int(w.Bits), int(*w.Group)
	inByte := map[int]int{8: 1, 4: 2, 2: 4, 1: 8}[bits]
	if inByte == 0 && bits != 3 || group < 1 {
		return fmt.Errorf("nbits is %d with a group_size of %d: want 1, 2, 3, 4 or 8, and 1 or more", bits, group)
	}
	return packLinears(c, fmt.Sprintf("HQQ of %d bits", bits), q.Skip, true, func(m matrix) int64 {
		n := min(m.elements(), setting.MaxTotal)
		groups := (n + int64(group) - 1) / int64(group)
		packed := (groups*int64(group) + int64(max(1, inByte)) - 1) / int64(max(1, inByte))
		if bits == 3 {
			packed = 4 * ((groups + 9) / 10) * int64(group)
		}
		return packed + 2*m.wide*groups
	})
}

// readQuanto reads quanto: a scale in the model's type for each row, and below 8 bits a scale and a shift for each group of
// 128 elements, or fewer where 128 do not divide the weight, and two scales of the layer's input and output (optimum-quanto
// 0.2.7, nn/qmodule.py).
func readQuanto(c *Config, text json.RawMessage) error {
	var q struct {
		Weights    string   `json:"weights"`
		Activation *string  `json:"activations"`
		Skip       []string `json:"modules_to_not_convert"`
	}
	if err := strictjson.Unmarshal(text, &q); err != nil {
		return err
	}
	inByte := map[string]int64{"int8": 1, "float8": 1, "int4": 2, "int2": 4}[q.Weights]
	if inByte == 0 {
		c.Unread = fmt.Sprintf("its weights, %q, are not read", strictjson.Shorten(q.Weights))
		return nil
	}
	return packLinears(c, q.Weights, q.Skip, false, func(m matrix) int64 {
		n := m.elements()
		if inByte == 1 {
			return n + m.wide*int64(m.out) + 2*m.wide
		}
		groups := int64(m.out)
		for group := 128; m.in > 128 && group >= 32; group -= 32 {
			if m.in%group == 0 {
				groups = n / int64(group)
				break
			}
		}
		return (n+inByte-1)/inByte + 2*m.wide*groups + 2*m.wide
	})
}

// readEETQ reads EETQ: a float16 for each row (transformers, integrations/eetq.py, EetqLinear).
func readEETQ(c *Config, text json.RawMessage) error {
	var q struct {
		Skip []string `json:"modules_to_not_convert"`
	}
	if err := strictjson.Unmarshal(text, &q); err != nil {
		return err
	}
	return packLinears(c, "int8", q.Skip, false, perRow(2))
}

// readHIGGS reads HIGGS: scales of groups and two tables, in the model's type (transformers, integrations/higgs.py,
// HiggsLinear).
func readHIGGS(c *Config, text json.RawMessage) error {
	var q struct {
		Bits  *flexible `json:"bits"`
		Group *flexible `json:"group_size"`
		Skip  []string  `json:"modules_to_not_convert"`
	}
	if err := strictjson.Unmarshal(text, &q); err != nil {
		return err
	}
	bits, group := 4, 256
	if q.Bits != nil {
		bits = int(*q.Bits)
	}
	if q.Group != nil {
		group = int(*q.Group)
	}
	if err := between("bits", bits, 2, 4); err != nil {
		return err
	}
	if err := between("group_size", group, 1, setting.MaxField); err != nil {
		return err
	}
	return packLinears(c, fmt.Sprintf("HIGGS of %d bits", bits), q.Skip, false, func(m matrix) int64 {
		codes := 1 << bits
		return 2*(setting.FLOPs(m.out, bits)/16)*int64(m.in) + m.wide*(setting.FLOPs(m.out, m.in/group)+int64(codes+2*codes*codes))
	})
}

// readBitNet reads BitNet: four weights in a byte, and a scale in the model's type (transformers, integrations/bitnet.py,
// BitLinear); AutoBitLinear holds the weights unpacked.
func readBitNet(c *Config, text json.RawMessage) error {
	var q struct {
		Skip  []string `json:"modules_to_not_convert"`
		Class string   `json:"linear_class"`
	}
	if err := strictjson.Unmarshal(text, &q); err != nil {
		return err
	}
	return packLinears(c, "ternary", q.Skip, false, func(m matrix) int64 {
		if q.Class == "autobitlinear" {
			return (m.elements() + 1) * m.wide
		}
		return setting.FLOPs(m.out/4, m.in) + m.wide
	})
}

// readAQLM reads AQLM: codes of codebooks, the codebooks, and a scale for each group of outputs, in float16 (aqlm,
// inference.py, QuantizedLinear).
func readAQLM(c *Config, text json.RawMessage) error {
	q := struct {
		In    flexible `json:"in_group_size"`
		Out   flexible `json:"out_group_size"`
		Books flexible `json:"num_codebooks"`
		Bits  flexible `json:"nbits_per_codebook"`
		Skip  []string `json:"linear_weights_not_to_quantize"`
	}{In: 8, Out: 1, Books: 1, Bits: 16}
	if err := strictjson.Unmarshal(text, &q); err != nil {
		return err
	}
	for _, f := range []struct {
		name string
		v    flexible
	}{{"in_group_size", q.In}, {"out_group_size", q.Out}, {"num_codebooks", q.Books}, {"nbits_per_codebook", q.Bits}} {
		if err := between(f.name, int(f.v), 1, 16); err != nil {
			return err
		}
	}
	in, out, books, code := int(q.In), int(q.Out), int(q.Books), int64(1)
	if q.Bits > 8 {
		code = 2
	}
	for i, name := range q.Skip {
		q.Skip[i] = strings.TrimSuffix(name, ".weight")
	}
	return packLinears(c, "AQLM", q.Skip, false, func(m matrix) int64 {
		return setting.Times(code, []int{m.out / out, m.in / in, books}) + setting.FLOPs(2, books, 1<<q.Bits, out, in) + 2*int64(m.out/out)
	})
}

// readTorchAO reads the configs of torchao of 8 bits (0.18, quantization/quantize_): a float32 for each row, and int8 with a zero
// for each.
func readTorchAO(c *Config, text json.RawMessage) error {
	var q struct {
		Type json.RawMessage `json:"quant_type"`
		Skip []string        `json:"modules_to_not_convert"`
	}
	if err := strictjson.Unmarshal(text, &q); err != nil {
		return err
	}
	var of struct {
		Default struct {
			Type string `json:"_type"`
		} `json:"default"`
	}
	if err := json.Unmarshal(q.Type, &of); err != nil {
		return c.unread(errors.New("its quant_type is not read"))
	}
	switch of.Default.Type {
	case "Int8WeightOnlyConfig", "Int8DynamicActivationInt8WeightConfig":
		return packLinears(c, "int8", q.Skip, false, perRow(4+1))
	case "Float8WeightOnlyConfig":
		return packLinears(c, "FP8", q.Skip, false, perRow(4))
	}
	c.Unread = fmt.Sprintf("its quant_type %q is not read", strictjson.Shorten(of.Default.Type))
	return nil
}

// readQuark reads AMD's Quark: FP8 with a float32 for all elements or for each row, and MXFP4 (quark.torch, export; vLLM's
// model_executor/layers/quantization/quark).
func readQuark(c *Config, text json.RawMessage) error {
	type spec struct {
		Type    string `json:"dtype"`
		Scheme  string `json:"qscheme"`
		Group   int    `json:"group_size"`
		Dynamic bool   `json:"is_dynamic"`
	}
	var q struct {
		Global struct {
			Weight json.RawMessage `json:"weight"`
			Inputs *spec           `json:"input_tensors"`
			Output *spec           `json:"output_tensors"`
		} `json:"global_quant_config"`
		Layers  map[string]any `json:"layer_quant_config"`
		Exclude []string       `json:"exclude"`
	}
	if err := strictjson.Unmarshal(text, &q); err != nil {
		return err
	}
	var w spec
	if err := json.Unmarshal(q.Global.Weight, &w); err != nil || len(q.Layers) > 0 || q.Global.Output != nil {
		return c.unread(errors.New("its settings of single layers, of outputs, or in several steps are not read"))
	}
	exclude, err := excluded(q.Exclude)
	if err != nil {
		return c.unread(err)
	}
	static := int64(0)
	if in := q.Global.Inputs; in != nil && !in.Dynamic && in.Scheme == "per_tensor" {
		static = 4
	}
	covers := func(m matrix) bool { return !exclude.excludes(m.path) }
	switch w.Type + " " + w.Scheme {
	case "fp8_e4m3 per_tensor":
		c.pack("FP8", covers, perTensor(4+static))
	case "fp8_e4m3 per_channel":
		c.pack("FP8", covers, func(m matrix) int64 { return perRow(4)(m) + static })
	case "fp4 per_group":
		c.pack("MXFP4", covers, inFours(max(1, setting.Or(w.Group, 32)), 0))
	default:
		c.Unread = fmt.Sprintf("its weights of %s %s are not read", strictjson.Shorten(w.Type), strictjson.Shorten(w.Scheme))
	}
	return nil
}
