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

// modelOpt are the settings of NVIDIA's ModelOpt, as config.json has them, and hf_quant_config.json below "quantization".
type modelOpt struct {
	Algo    string              `json:"quant_algo"`
	Group   int                 `json:"group_size"`
	Exclude []string            `json:"exclude_modules"`
	Ignore  []string            `json:"ignore"`
	Cache   string              `json:"kv_cache_quant_algo"`
	Scheme  map[string]any      `json:"kv_cache_scheme"`
	Layers  map[string]modelOpt `json:"quantized_layers"`
}

// readModelOpt reads ModelOpt's formats as vLLM loads them (model_executor/layers/quantization/modelopt.py).
func readModelOpt(c *Config, text json.RawMessage) error {
	var q struct {
		modelOpt
		Inner *modelOpt `json:"quantization"`
	}
	if err := strictjson.Unmarshal(text, &q); err != nil {
		return err
	}
	m := q.modelOpt
	if q.Inner != nil {
		m = *q.Inner
	}
	exclude, err := excluded(append(m.Exclude, m.Ignore...))
	if err != nil {
		return c.unread(err)
	}
	if m.Cache != "" || m.Scheme != nil {
		c.scales = 8 // a float32 for keys and one for values
	}
	if !strings.EqualFold(m.Algo, "MIXED_PRECISION") {
		name, l := m.layout()
		if l == nil {
			c.Unread = fmt.Sprintf("its quant_algo %q is not read", strictjson.Shorten(m.Algo))
			return nil
		}
		c.pack(name, func(x matrix) bool { return !exclude.excludes(x.path) && !ofTower(x.path) }, l)
		return nil
	}
	return packLayers(c, m.Layers, exclude)
}

// packLayers adds the rules of mixed precision: each layer is named.
func packLayers(c *Config, layers map[string]modelOpt, exclude names) error {
	if len(layers) > maxNames {
		return fmt.Errorf("%d quantized_layers: want at most %d", len(layers), maxNames)
	}
	type settings struct {
		algo  string
		group int
	}
	alike := map[settings]map[string]bool{}
	for _, path := range slices.Sorted(maps.Keys(layers)) {
		of := layers[path]
		name, l := of.layout()
		if l == nil {
			c.Unread = fmt.Sprintf("its quant_algo %q is not read", strictjson.Shorten(of.Algo))
			return nil
		}
		key := settings{strings.ToUpper(of.Algo), of.Group}
		paths := alike[key]
		if paths == nil {
			paths = map[string]bool{}
			alike[key] = paths
			c.pack(name, func(m matrix) bool { return !exclude.excludes(m.path) && among(paths, m.path) }, l)
		}
		paths[path] = true
	}
	return nil
}

// among reports whether a module, or the experts that it is one of, is named.
func among(paths map[string]bool, module string) bool {
	for _, path := range aliases(module) {
		at, _, expert := strings.Cut(path, ".experts.")
		if paths[path] || expert && paths[at+".experts"] {
			return true
		}
	}
	return false
}

// ofTower reports whether a module is part of a vision tower, which older files leave wide without saying so.
func ofTower(path string) bool {
	return strings.Contains(path, "vision_tower") || strings.Contains(path, "vision_model") || strings.Contains(path, "visual")
}

// layout returns the layout of an algorithm, and its name; nil if it is not known.
func (q modelOpt) layout() (string, layout) {
	const scale = 4 // a float32 of all weights, and one of the inputs
	group := 16
	if q.Group > 0 {
		group = q.Group
	}
	switch strings.ToUpper(q.Algo) {
	case "FP8":
		return "FP8", perTensor(2 * scale)
	case "FP8_PER_CHANNEL_PER_TOKEN":
		return "FP8", perRow(4)
	case "FP8_PB_WO":
		return "FP8 in blocks of 128 x 128", inBlocks(128, 128, 4)
	case "NVFP4":
		return "NVFP4", inFours(group, 2*scale)
	case "W4A16_NVFP4":
		return "NVFP4", inFours(group, scale)
	case "MXFP8":
		return "MXFP8", func(m matrix) int64 { return m.elements() + setting.FLOPs(m.out, ceil(m.in, 32)) }
	}
	return "", nil
}
