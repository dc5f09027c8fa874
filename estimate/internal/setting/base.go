package setting

import (
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// How the weights of linear layers that are not trained are stored; in the type of the model's weights without a word. A
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

// FourBits reports whether bitsandbytes quantizes the weights to four bits.
func (q *Quantized) FourBits() bool { return q.Base == NF4 || q.Base == NF4Double }

// GroupOfGPTQ is the number of inputs that share a scale in most published files.
const GroupOfGPTQ = 128

// Quantized is estimate.Quantized.
type Quantized struct {
	Base     string
	Layers   []string
	Computes alloc.DType
}

func (q *Quantized) check() error {
	if q == nil {
		return nil
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
func (q *Quantized) Holds(at string) bool {
	switch {
	case q == nil || q.Base == "":
		return false
	case len(q.Layers) == 0:
		return !isHead(at)
	}
	return Matches(q.Layers, at)
}

// Matches reports whether one of the patterns names the Linear at this path.
func Matches(patterns []string, at string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return Names(p, at) })
}

// Names reports whether p names the Linear at this path: as a pattern, as the layer's own name, or
// as allLinear.
func Names(p, at string) bool {
	match, _ := path.Match(p, at)
	return match || strings.HasSuffix(at, "."+p) || p == allLinear && !isHead(at)
}

// isHead reports whether the Linear at this path is the model's output head.
func isHead(at string) bool { return at == "lm_head" || strings.HasSuffix(at, ".lm_head") }

// LoRA is estimate.LoRA.
type LoRA struct {
	Rank    int
	Targets []string
	Dropout float64
	DType   alloc.DType
}

// allLinear is PEFT's target_modules="all-linear".
const allLinear = "all-linear"

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
