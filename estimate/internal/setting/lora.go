package setting

import (
	"maps"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// LoRA is estimate.LoRA.
type LoRA struct {
	Rank    int
	Targets []string
	Dropout float64
	DType   alloc.DType
}

// AllLinear is PEFT's target_modules="all-linear".
const AllLinear = "all-linear"

func (l *LoRA) check() error {
	if l == nil {
		return nil
	}
	switch {
	case l.Rank < 1 || l.Rank > MaxField:
		return wrong("LoRA: Rank is %d: want 1 or more", l.Rank)
	case len(l.Targets) == 0:
		return wrong("LoRA: there are no Targets: name linear layers, such as q_proj")
	case !(l.Dropout >= 0 && l.Dropout < 1):
		return wrong("LoRA: Dropout is %v: want 0 or more and less than 1", l.Dropout)
	case l.DType != 0 && l.DType.Bits() == 0:
		return elementType("LoRA: DType", l.DType)
	}
	return patterns("LoRA: Targets", l.Targets)
}

// FusedLayers says how PEFT adapts a model whose layers transformers has fused into parameters: the names that these layers once
// had, and for each the end of the path of the parameter that now holds it (PEFT's utils/transformers_weight_conversion.py,
// _MOE_TARGET_MODULE_MAPPING).
type FusedLayers map[string]string

// Names reports whether the layer at this path has the name of one that was fused. "all-linear" leaves it out.
func (f FusedLayers) Names(at string) bool {
	_, ok := f[at[strings.LastIndexByte(at, '.')+1:]]
	return ok
}

// split takes the names of fused layers out of targets, and returns how many of them each parameter holds: its adapters'
// rank is as many times that of others. As PEFT does, it reads only the last part of a name with a path
// (_convert_peft_config_moe). With apart, which is for releases before that function, it leaves a path to layers beside the
// experts in targets.
func (f FusedLayers) split(targets []string, apart bool) (left []string, params map[string]int, err error) {
	params = map[string]int{}
	for _, t := range targets {
		switch {
		case t == AllLinear:
			for _, param := range f {
				params[param]++
			}
			left = append(left, t)
		case apart && strings.Contains(t, ".") && !strings.Contains("."+t, ".experts."):
			left = append(left, t)
		case f.Names(t):
			params[f[t[strings.LastIndexByte(t, '.')+1:]]]++
		default:
			left = append(left, t)
		}
	}
	whole := map[string]int{}
	for _, param := range f {
		whole[param]++
	}
	for _, param := range slices.Sorted(maps.Keys(params)) {
		if params[param] = min(params[param], whole[param]); params[param] < whole[param] {
			return nil, nil, wrong("LoRA: PEFT adapts %s of this model as one parameter: name all the layers that it holds, or none of them", param)
		}
	}
	return left, params, nil
}

// adapt divides the targets between linear layers and fused parameters.
func (c *Config) adapt() error {
	if c.Lora == nil || len(c.Fused) == 0 {
		return nil
	}
	left, params, err := c.Fused.split(c.Lora.Targets, c.Libraries.Transformers.Before(5, 0))
	if err != nil {
		return err
	}
	if len(params) > 0 && c.Lora.Dropout > 0 {
		return wrong("LoRA: PEFT adapts %s of this model as parameters, which take no dropout: leave Dropout (--lora-dropout) out, or name other Targets",
			strings.Join(slices.Sorted(maps.Keys(params)), ", "))
	}
	lora := *c.Lora
	lora.Targets = left
	c.Lora, c.AdaptedParams = &lora, params
	return nil
}

// AdaptedParam returns how many fused layers the parameter at this path holds, if it gets adapters, and otherwise 0.
func (c *Config) AdaptedParam(at string) int {
	if c.Lora == nil || c.Excludes(at[:max(0, strings.LastIndexByte(at, '.'))]) {
		return 0
	}
	for param, n := range c.AdaptedParams {
		if at == param || strings.HasSuffix(at, "."+param) {
			return n
		}
	}
	return 0
}
