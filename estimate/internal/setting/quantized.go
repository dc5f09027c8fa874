package setting

import (
	"maps"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// How the weights of linear layers that are not trained are stored; in the type of the model's weights if it is empty. A
// matrix product first converts the weight to the type of activations; Int8 does so only in the backward pass.
const (
	// NF4 is bitsandbytes' format of 4 bits for each element and a float32 for each block of 64
	// (functional.py, QuantState). Its FP4 takes as much memory.
	NF4 = "nf4"
	// NF4Double quantizes the blocks' constants again: a byte for each block, and a float32 for
	// every 256 blocks.
	NF4Double = "nf4-double"
	// Int8 has a byte for each element and a float32 for each row (arXiv:2208.07339; bitsandbytes).
	Int8 = "int8"
	// GPTQ has 4 bits for each element, a float16 and another 4 bits for each 128 inputs of
	// an output, and the group of each input (arXiv:2210.17323; AutoGPTQ, qlinear_tritonv2.py).
	GPTQ = "gptq"
	// AWQ has 4 bits for each element, and a float16 and another 4 bits for each 128 inputs of
	// an output (arXiv:2306.00978; AutoAWQ, awq/modules/linear/gemm.py). A product of 1,024 or more
	// tokens unpacks the weight; one of fewer makes eight partial results.
	AWQ = "awq"
)

// FourBits reports whether a base is one of bitsandbytes' of four bits.
func FourBits(base string) bool { return base == NF4 || base == NF4Double }

// GroupOfGPTQ is the number of inputs that share a scale in most published files.
const GroupOfGPTQ = 128

// Quantized is estimate.Quantized.
type Quantized struct {
	Base     string
	Layers   []string
	Computes alloc.DType
	Parts    map[string]string
}

func (q *Quantized) check() error {
	if q == nil {
		return nil
	}
	for _, base := range slices.Sorted(maps.Values(q.Parts)) {
		if err := word("Quantized: Parts", base, NF4, NF4Double, Int8, GPTQ, AWQ); err != nil {
			return err
		}
	}
	if err := word("Quantized: Base", q.Base, NF4, NF4Double, Int8, GPTQ, AWQ); err != nil {
		return err
	}
	if d := q.Computes; d != 0 && !IsFloat(d) {
		return wrong("Quantized: %v is not a type that products compute in: want one such as float16", d)
	}
	return patterns("Quantized: Layers", q.Layers)
}

// Holds reports whether the weight of the Linear at this path is quantized.
func (q *Quantized) Holds(at string) bool { return q.At(at) != "" }

// At returns the base of the Linear at this path; "" if it is not quantized.
func (q *Quantized) At(at string) string {
	if q == nil {
		return ""
	}
	base := q.Base
	if q.Parts != nil {
		part, _, _ := strings.Cut(at, ".")
		base = q.Parts[part]
	}
	if len(q.Layers) == 0 && IsHead(at) || len(q.Layers) > 0 && !Matches(q.Layers, at) {
		return ""
	}
	return base
}

// Matches reports whether one of the patterns names the Linear at this path.
func Matches(patterns []string, at string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return Names(p, at) })
}

// Names reports whether p names the Linear at this path: as a pattern, as the layer's own name, or
// as AllLinear.
func Names(p, at string) bool {
	match, _ := path.Match(p, at)
	return match || strings.HasSuffix(at, "."+p) || p == AllLinear && !IsHead(at)
}
