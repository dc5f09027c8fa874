package tape

import (
	"fmt"
	"path"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// Base is how the weights of linear layers that are not trained are stored.
type Base uint8

// The ways to store them. A matrix product makes the weight anew in the type of activations, but
// for Int8Base, which does so in the backward pass.
const (
	WholeBase Base = iota // in the type of weights
	// NF4 is that of bitsandbytes (functional.py, QuantState): a float32 for each block of 64
	// elements. FP4 takes as much.
	NF4
	// NF4Double quantizes these in turn: a byte for each block, and a float32 for 256 of those.
	NF4Double
	// Int8Base has a byte for each element and a float32 for each row (arXiv:2208.07339; bitsandbytes).
	Int8Base
	// GPTQBase has 4 bits for each element, a float16 and another 4 bits for each 128 inputs of
	// an output, and the group of each input (arXiv:2210.17323; AutoGPTQ, qlinear_tritonv2.py).
	GPTQBase
)

// groupOfGPTQ is the number of inputs that have a scale together, in most published files.
const groupOfGPTQ = 128

// Quantized holds the weights of linear layers in a Base. They are not trained.
type Quantized struct {
	Base Base
	// Layers are the Linear layers, by name or by a pattern of path.Match for the whole path, as
	// LoRA's Targets; none means all but a head named lm_head, as transformers has it.
	Layers []string
	// Computes is the type of products, bnb_4bit_compute_dtype of transformers; the zero value is
	// that of activations, which are otherwise copied in this type.
	Computes alloc.DType
	// Restores is the type in which a weight is made anew; the zero value is that of products,
	// for which it is otherwise copied once more. bitsandbytes before 0.42 restores float16.
	Restores alloc.DType
	// KeepsInput keeps the inputs of products, as bitsandbytes before 0.43.2 did in vain, as long
	// as the loop's code holds the loss: autograd does not free what is an attribute
	// (autograd/_functions.py, MatMul4Bit; its pull request 1270). Where that is not said, nor PyTorch
	// that it is 2.4 or later, which is of the same month, the upper bounds of training reach there.
	KeepsInput bool
}

// Quantize holds weights as q says, in training and in inference. A size that Stored gave does
// not count then.
func Quantize(q Quantized) Option {
	return func(c *Config) { c.Quantize(q) }
}

// HeldIn says in which Base the files of a model have its weights. Training then holds them so, unless
// Quantize or a LoRA says otherwise; inference goes by Stored.
func HeldIn(b Base) Option { return func(c *Config) { c.held = b } }

// Quantize holds weights as q says; a size of their file does not count then.
func (c *Config) Quantize(q Quantized) { c.Quantized, c.Stored = &q, Amount{} }

func (q *Quantized) check() error {
	if q == nil {
		return nil
	}
	if err := constant("Quantize: Base", q.Base, GPTQBase, "from WholeBase to GPTQBase"); err != nil {
		return err
	}
	for _, d := range []alloc.DType{q.Computes, q.Restores} {
		if d != 0 && !isFloat(d) {
			return fmt.Errorf("Quantize: %v is not a type that products compute in: want one such as float16", d)
		}
	}
	return patterns("Quantize: Layers", q.Layers)
}

// holds reports whether the weight of the Linear at a path is quantized.
func (q *Quantized) Holds(at string) bool {
	switch {
	case q == nil || q.Base == WholeBase:
		return false
	case len(q.Layers) == 0:
		return !isHead(at)
	}
	return NamedX(q.Layers, at)
}

// named reports whether one of the patterns names the Linear at a path.
func NamedX(patterns []string, at string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return names(p, at) })
}

// names reports whether p names the Linear at a path: a pattern, the layer's own name, or AllLinear.
func names(p, at string) bool {
	match, _ := path.Match(p, at)
	return match || strings.HasSuffix(at, "."+p) || p == AllLinear && !isHead(at)
}

// isHead reports whether the Linear at a path is the model's head.
func isHead(at string) bool { return at == "lm_head" || strings.HasSuffix(at, ".lm_head") }
