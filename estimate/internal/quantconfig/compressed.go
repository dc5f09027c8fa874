package quantconfig

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/strictjson"
)

// scheme is a config group of compressed-tensors.
type scheme struct {
	Targets []string  `json:"targets"`
	Weights *quantity `json:"weights"`
	Inputs  *quantity `json:"input_activations"`
	Outputs *quantity `json:"output_activations"`
	Format  string    `json:"format"`
}

// quantity says how weights or activations are quantized.
type quantity struct {
	Bits      int             `json:"num_bits"`
	Type      string          `json:"type"`
	Symmetric *bool           `json:"symmetric"`
	Group     *int            `json:"group_size"`
	Strategy  string          `json:"strategy"`
	Block     []int           `json:"block_structure"`
	Dynamic   json.RawMessage `json:"dynamic"` // true, false or "local"
	Scale     string          `json:"scale_dtype"`
	ActOrder  json.RawMessage `json:"actorder"`
}

// readCompressedTensors reads compressed-tensors 0.20 (quantization/lifecycle/initialize.py, initialize_qparams, and the
// compressors of each format).
func readCompressedTensors(c *Config, text json.RawMessage) error {
	var q struct {
		Groups   map[string]scheme `json:"config_groups"`
		Ignore   []string          `json:"ignore"`
		Format   string            `json:"format"`
		Cache    *quantity         `json:"kv_cache_scheme"`
		Sparsity map[string]any    `json:"sparsity_config"`
	}
	if err := strictjson.Unmarshal(text, &q); err != nil {
		return err
	}
	if f, _ := q.Sparsity["format"].(string); f != "" && f != "dense" {
		c.Unread = fmt.Sprintf("its sparsity_config of format %q is not read", strictjson.Shorten(f))
		return nil
	}
	ignore, err := targeted(q.Ignore)
	if err != nil {
		return c.unread(err)
	}
	var byName, byClass []rule
	patterns := len(q.Groups)
	for _, name := range slices.Sorted(maps.Keys(q.Groups)) {
		s := q.Groups[name]
		if s.Weights == nil {
			continue
		}
		l, format, err := s.layout(setting.Or(s.Format, q.Format))
		if err != nil {
			return c.unread(err)
		}
		targets, err := targeted(s.Targets)
		if patterns += len(targets.regexps); err == nil {
			err = bounded(patterns)
		}
		if err != nil {
			return c.unread(err)
		}
		covers := func(class bool) func(matrix) bool {
			return func(m matrix) bool {
				if ignored, _ := ignore.targets(m.path); ignored {
					return false
				}
				named, ofClass := targets.targets(m.path)
				return named && ofClass == class
			}
		}
		byName = append(byName, rule{name: format, covers: covers(false), layout: l})
		byClass = append(byClass, rule{name: format, covers: covers(true), layout: l})
	}
	c.rules = append(byName, byClass...)
	if q.Cache != nil && !q.Cache.isDynamic() && strings.ToLower(q.Cache.Strategy) != "attn_head" {
		c.scales, c.inModel = 2, true
	}
	return nil
}

// isDynamic reports whether scales are computed when the model runs, and none are stored.
func (q *quantity) isDynamic() bool { return string(q.Dynamic) == "true" }

// strategy is that of the scales.
func (q *quantity) strategy() string {
	switch group := q.Group; {
	case q.Strategy != "":
		return strings.ToLower(q.Strategy)
	case len(q.Block) > 0:
		return "block"
	case group == nil:
		return "tensor"
	case *group == -1:
		return "channel"
	}
	return "group"
}

// scales is the number of scales of a matrix.
func (q *quantity) scales() (func(m matrix) (rows, columns int), error) {
	switch s := q.strategy(); s {
	case "tensor":
		return func(matrix) (int, int) { return 1, 1 }, nil
	case "channel":
		return func(m matrix) (int, int) { return m.out, 1 }, nil
	case "group", "tensor_group":
		if q.Group == nil || *q.Group < 1 {
			return nil, fmt.Errorf("its strategy %s has no group_size", s)
		}
		return func(m matrix) (int, int) { return m.out, ceil(m.in, *q.Group) }, nil
	case "block":
		if len(q.Block) != 2 || q.Block[0] < 1 || q.Block[1] < 1 {
			return nil, fmt.Errorf("its block_structure %v is not read", q.Block)
		}
		return func(m matrix) (int, int) { return ceil(m.out, q.Block[0]), ceil(m.in, q.Block[1]) }, nil
	default:
		return nil, fmt.Errorf("its strategy %q is not read", strictjson.Shorten(s))
	}
}

// layout returns the layout of a format, and its name.
func (s scheme) layout(format string) (layout, string, error) {
	w := s.Weights
	if w.Bits < 1 || w.Bits > 16 {
		return nil, "", fmt.Errorf("its weights of %d bits are not read", w.Bits)
	}
	scales, err := w.scales()
	if err != nil {
		return nil, "", err
	}
	asymmetric := w.Symmetric != nil && !*w.Symmetric
	ordered := string(w.ActOrder) == `"group"` || string(w.ActOrder) == "true"
	beside, err := s.activations()
	if err != nil {
		return nil, "", err
	}
	count := func(m matrix) int64 { rows, columns := scales(m); return setting.FLOPs(rows, columns) }
	if format == "mixed-precision" || format == "" {
		format = s.inferred()
	}
	switch format {
	case "pack-quantized", "marlin-24":
		if format == "marlin-24" || w.Type == "float" {
			return nil, "", fmt.Errorf("its format %s is not read", format)
		}
		return func(m matrix) int64 {
			rows, columns := scales(m)
			words := setting.Times(inWords(m.in, w.Bits), []int{m.out})
			if asymmetric && w.strategy() != "tensor" {
				words += setting.Times(inWords(rows, w.Bits), []int{columns})
			}
			if ordered {
				words += int64(m.in)
			}
			const shape = 2 * 8
			return 4*words + m.wide*setting.FLOPs(rows, columns) + shape + beside(m)
		}, fmt.Sprintf("int%d", w.Bits), nil
	case "int-quantized", "float-quantized", "naive-quantized", "float8-quantized":
		name, each := "FP8", int64(1)
		if w.Type != "float" {
			name = fmt.Sprintf("int%d", w.Bits)
			each = int64(ceil(w.Bits, 8))
		} else if w.Bits != 8 {
			return nil, "", fmt.Errorf("its format %s of floats of %d bits is not read", format, w.Bits)
		}
		if w.strategy() == "block" {
			name += fmt.Sprintf(" in blocks of %d x %d", w.Block[0], w.Block[1])
		}
		return func(m matrix) int64 {
			n := each*m.elements() + m.wide*count(m) + beside(m)
			if asymmetric {
				n += each * count(m)
			}
			return n
		}, name, nil
	case "nvfp4-pack-quantized":
		return func(m matrix) int64 { return setting.FLOPs(m.out, m.in/2) + count(m) + 4 + beside(m) }, "NVFP4", nil
	case "mxfp4-pack-quantized":
		return func(m matrix) int64 { return setting.FLOPs(m.out, m.in/2) + count(m) + beside(m) }, "MXFP4", nil
	case "mxfp8-quantized":
		return func(m matrix) int64 { return m.elements() + count(m) + beside(m) }, "MXFP8", nil
	case "dense":
		return func(m matrix) int64 { return m.elements() * m.wide }, "dense", nil
	}
	return nil, "", fmt.Errorf("its format %q is not read", strictjson.Shorten(format))
}

// inWords is the number of words of 32 bits that n elements of so many bits take.
func inWords(n, bits int) int64 { return (setting.FLOPs(n, bits) + 31) / 32 }

// inferred is the format that compressed-tensors chooses for a group (compressors/format.py, infer_module_format).
func (s scheme) inferred() string {
	w := s.Weights
	floats, group := w.Type == "float", w.strategy()
	switch {
	case floats && w.Bits == 4 && (w.Scale == "torch.uint8" || w.Scale == "uint8"):
		return "mxfp4-pack-quantized"
	case floats && w.Bits == 8 && (w.Scale == "torch.uint8" || w.Scale == "uint8"):
		return "mxfp8-quantized"
	case floats && w.Bits == 4 && group == "tensor_group":
		return "nvfp4-pack-quantized"
	case !floats && s.Inputs != nil && w.Bits == 8:
		return "int-quantized"
	case !floats && w.Bits <= 8 && (s.Inputs == nil || s.Inputs.Type != "float"):
		return "pack-quantized"
	case floats && s.Inputs != nil:
		return "float-quantized"
	}
	return "naive-quantized"
}

// activations returns the bytes of what is stored of a layer's activations.
func (s scheme) activations() (func(matrix) int64, error) {
	var of []func(matrix) int64
	for _, q := range []*quantity{s.Inputs, s.Outputs} {
		if q == nil || q.isDynamic() {
			continue
		}
		if q.strategy() == "tensor_group" {
			of = append(of, func(matrix) int64 { return 4 }) // the global scale
		}
		if string(q.Dynamic) == `"local"` {
			continue
		}
		if q.strategy() != "tensor" {
			return nil, fmt.Errorf("activations with stored scales of strategy %q are not read", strictjson.Shorten(q.strategy()))
		}
		zero := int64(0)
		if q.Symmetric != nil && !*q.Symmetric {
			zero = 1
		}
		of = append(of, func(m matrix) int64 { return m.wide + zero })
	}
	return func(m matrix) int64 {
		n := int64(0)
		for _, f := range of {
			n += f(m)
		}
		return n
	}, nil
}
