package llamacpp

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"

	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
	"github.com/gpumemtrack/gpumemtrack/estimate/nn"
)

// Quantization is one of the mixtures of types that llama.cpp's llama-quantize makes, such as
// "Q4_K_M": most matrices in one type, and some that matter more in wider ones. Quantizations lists those that are known,
// and QuantizationNamed reads a name as people write it.
type Quantization string

// Stored returns the option that stores a model's weights as a GGUF file of this mixture does, for inference. Each matrix
// has the type that llama.cpp's quantizer chooses without an importance matrix (src/llama-quant.cpp, llama_tensor_get_type,
// release v0.5.0 of 2026). Vectors stay in float32. The error says that there is no such Quantization, or is that of Model
// for layers that are not valid.
func (q Quantization) Stored(layers []nn.Layer) (estimate.Option, error) {
	return q.stored(layers, false)
}

// StoredBefore2026 is Stored by the quantizers of older builds, which have rules of their own for projections that make
// queries, keys and values together: until pull request 19770 of March 2026 took them for those of values. The errors are those of
// Stored.
func (q Quantization) StoredBefore2026(layers []nn.Layer) (estimate.Option, error) {
	return q.stored(layers, true)
}

func (q Quantization) stored(layers []nn.Layer, old bool) (estimate.Option, error) {
	var a setting.Amount
	var s setting.LayerSizes
	var embedding alloc.Bytes
	head := false
	m, err := q.mixture()
	if err != nil {
		return nil, err
	}
	params, err := tape.Parameters(layer.From(layers))
	if e := (*tape.LayerError)(nil); errors.As(err, &e) {
		return nil, (*estimate.LayerError)(e)
	}
	if err != nil {
		return nil, err
	}
	m.hold(params, old, func(w tensor, bytes alloc.Bytes) {
		a.Count += w.elements
		a.Bytes += bytes
		n, inBlock := setting.NumberIn(w.path)
		switch {
		case inBlock && n < tape.MaxLayers:
			if n >= len(s.Blocks) {
				s.Blocks = append(s.Blocks, make([]alloc.Bytes, n+1-len(s.Blocks))...)
			}
			s.Blocks[n] += bytes
		case w.input:
			s.Input += bytes
			if strings.Contains(w.path, "per_layer") {
				s.PerLayer += bytes
			}
			embedding = max(embedding, bytes)
		default:
			s.Output += bytes
			head = head || w.category == isOutput
		}
	})
	if !head {
		s.Tied = embedding
		s.Output += embedding
	}
	return setting.Func(func(c *setting.Config) { c.Stored, c.Sizes = a, &s }), nil
}

// hold calls each with the size of every tensor.
func (q mixture) hold(params []tape.Parameter, old bool, each func(tensor, alloc.Bytes)) {
	tensors := tensorsOf(params)
	c := chooser{name: q.name, base: q.base, old: old, model: modelOf(params, tensors)}
	for _, t := range tensors {
		of := typeF32
		if t.category != isWide {
			of = c.of(t)
		}
		b := blocks[of]
		each(t, alloc.Bytes(t.elements/int64(b.Elements)*int64(b.Bytes)))
	}
}

// Quantizations returns the mixtures that are known, by size as they make a model of 8 G parameters.
func Quantizations() []Quantization {
	names := make([]Quantization, len(mixtures))
	for i, m := range mixtures {
		names[i] = m.name
	}
	return names
}

// UsualQuantizations returns those among which BestQuantization chooses, smallest first: the others need an importance matrix
// to be of use, or are superseded by one of the same size.
func UsualQuantizations() []Quantization {
	var names []Quantization
	for _, m := range mixtures {
		if m.usual {
			names = append(names, m.name)
		}
	}
	return names
}

// QuantizationNamed returns the mixture of a name in any case, such as "q4_k_m". As for llama-quantize, "q4_k" is "Q4_K_M";
// "mxfp4" is "MXFP4_MOE". The error lists those that are known.
func QuantizationNamed(name string) (Quantization, error) {
	of := Quantization(strings.ToUpper(name))
	if long, ok := map[Quantization]Quantization{"Q3_K": "Q3_K_M", "Q4_K": "Q4_K_M", "Q5_K": "Q5_K_M", "MXFP4": "MXFP4_MOE"}[of]; ok {
		of = long
	}
	_, err := of.mixture()
	if err != nil {
		return "", err
	}
	return of, nil
}

func (q Quantization) mixture() (mixture, error) {
	i := slices.IndexFunc(mixtures, func(m mixture) bool { return m.name == q })
	if i < 0 {
		return mixture{}, fmt.Errorf("estimate: no Quantization is named %q: want one of %v", string(q), Quantizations())
	}
	return mixtures[i], nil
}

// mixture is what a Quantization means: the type of most matrices. usual marks UsualQuantizations.
type mixture struct {
	name  Quantization
	base  kind
	usual bool
}

// mixtures are the quantizations, smallest first (src/llama-quant.cpp, llama_ftype_get_default_type).
var mixtures = []mixture{
	{"IQ1_S", typeIQ1S, false}, {"IQ1_M", typeIQ1M, false}, {"TQ1_0", typeTQ10, false}, {"IQ2_XXS", typeIQ2XXS, false},
	{"TQ2_0", typeTQ20, false}, {"IQ2_XS", typeIQ2XS, false}, {"IQ2_S", typeIQ2XS, false}, {"IQ2_M", typeIQ2S, false},
	{"Q2_K_S", typeQ2K, false}, {"Q2_K", typeQ2K, true}, {"IQ3_XXS", typeIQ3XXS, false}, {"IQ3_XS", typeIQ3S, false},
	{"Q3_K_S", typeQ3K, true}, {"IQ3_S", typeIQ3S, false}, {"IQ3_M", typeIQ3S, false}, {"Q3_K_M", typeQ3K, true}, {"Q3_K_L", typeQ3K, true},
	{"IQ4_XS", typeIQ4XS, false}, {"Q4_0", typeQ40, true}, {"Q4_K_S", typeQ4K, true}, {"IQ4_NL", typeIQ4NL, false}, {"Q4_K_M", typeQ4K, true},
	{"Q4_1", typeQ41, false}, {"Q5_0", typeQ50, true}, {"Q5_K_S", typeQ5K, true}, {"Q5_K_M", typeQ5K, true}, {"Q5_1", typeQ51, false},
	{"Q6_K", typeQ6K, true}, {"Q8_0", typeQ80, true}, {"MXFP4_MOE", typeMXFP4, false}, {"F16", typeF16, true}, {"BF16", typeBF16, false},
}

// kind is a type of ggml.
type kind string

// The types that hold weights.
const (
	typeF32    kind = "F32"
	typeF16    kind = "F16"
	typeBF16   kind = "BF16"
	typeQ40    kind = "Q4_0"
	typeQ41    kind = "Q4_1"
	typeQ50    kind = "Q5_0"
	typeQ51    kind = "Q5_1"
	typeQ80    kind = "Q8_0"
	typeQ2K    kind = "Q2_K"
	typeQ3K    kind = "Q3_K"
	typeQ4K    kind = "Q4_K"
	typeQ5K    kind = "Q5_K"
	typeQ6K    kind = "Q6_K"
	typeIQ1S   kind = "IQ1_S"
	typeIQ1M   kind = "IQ1_M"
	typeIQ2XXS kind = "IQ2_XXS"
	typeIQ2XS  kind = "IQ2_XS"
	typeIQ2S   kind = "IQ2_S"
	typeIQ3XXS kind = "IQ3_XXS"
	typeIQ3S   kind = "IQ3_S"
	typeIQ4NL  kind = "IQ4_NL"
	typeIQ4XS  kind = "IQ4_XS"
	typeTQ10   kind = "TQ1_0"
	typeTQ20   kind = "TQ2_0"
	typeMXFP4  kind = "MXFP4"
)

// blocks says how each type is stored (ggml/src/ggml-common.h).
var blocks = map[kind]setting.Blocks{
	typeF32: {Elements: 1, Bytes: 4}, typeF16: {Elements: 1, Bytes: 2}, typeBF16: {Elements: 1, Bytes: 2},
	typeQ40: setting.Q4_0, typeQ41: {Elements: 32, Bytes: 20}, typeQ50: setting.Q5_0, typeQ51: setting.Q5_1, typeQ80: setting.Q8_0,
	typeQ2K: {Elements: 256, Bytes: 84}, typeQ3K: {Elements: 256, Bytes: 110}, typeQ4K: {Elements: 256, Bytes: 144},
	typeQ5K: {Elements: 256, Bytes: 176}, typeQ6K: {Elements: 256, Bytes: 210}, typeIQ1S: {Elements: 256, Bytes: 50}, typeIQ1M: {Elements: 256, Bytes: 56},
	typeIQ2XXS: {Elements: 256, Bytes: 66}, typeIQ2XS: {Elements: 256, Bytes: 74}, typeIQ2S: {Elements: 256, Bytes: 82},
	typeIQ3XXS: {Elements: 256, Bytes: 98}, typeIQ3S: {Elements: 256, Bytes: 110}, typeIQ4NL: {Elements: 32, Bytes: 18}, typeIQ4XS: {Elements: 256, Bytes: 136},
	typeTQ10: {Elements: 256, Bytes: 54}, typeTQ20: {Elements: 256, Bytes: 66}, typeMXFP4: {Elements: 32, Bytes: 17},
}

// narrower has the type that a matrix gets whose rows the blocks of its own do not divide (src/llama-quant.cpp,
// tensor_type_fallback). If those of that one do not either, it is float16.
var narrower = sync.OnceValue(func() map[kind]kind {
	all := map[kind]kind{typeQ2K: typeQ40, typeQ3K: typeQ40, typeTQ10: typeQ40, typeTQ20: typeQ40, typeQ4K: typeQ50, typeQ5K: typeQ51, typeQ6K: typeQ80}
	for _, k := range []kind{typeIQ1S, typeIQ1M, typeIQ2XXS, typeIQ2XS, typeIQ2S, typeIQ3XXS, typeIQ3S, typeIQ4XS} {
		all[k] = typeIQ4NL
	}
	return all
})

// fitting returns the type in which rows of so many elements are stored.
func fitting(of kind, row int) kind {
	for _, k := range []kind{of, setting.Or(narrower()[of], typeF16)} {
		if row%blocks[k].Elements == 0 {
			return k
		}
	}
	return typeF16
}
