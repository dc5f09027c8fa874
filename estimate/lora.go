package estimate

import (
	"fmt"
	"path"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/alloc"
)

// LoRA trains adapters of low rank for linear layers, y = Wx + BAx, and freezes all else
// (arXiv:2106.09685), as Hugging Face's PEFT does.
type LoRA struct {
	Rank int
	// Targets name the Linear layers that get adapters, by the name in the layer that holds
	// them, such as "q_proj", or by a pattern of path.Match for the whole path; AllLinear are all but
	// a head named lm_head.
	Targets []string
	Dropout float64     // of an adapter's input
	DType   alloc.DType // of adapters; the zero value is float32, as in PEFT
	Base    Base        // how the weights of linear layers are held
}

// AllLinear is PEFT's target_modules="all-linear".
const AllLinear = "all-linear"

// Base is how the weights of linear layers with adapters are stored. Those of a head named
// lm_head stay as they are.
type Base uint8

// The ways of bitsandbytes (functional.py, QuantState): NF4 has a float32 for each block of 64
// elements, and with double quantization a byte, and a float32 for 256 of those. A matrix product
// makes the weight anew in the type of activations.
const (
	WholeBase Base = iota // in the type of weights
	NF4
	NF4Double
	Int8Base
)

func (l *LoRA) check() error {
	if l == nil {
		return nil
	}
	switch {
	case l.Rank < 1 || l.Rank > maxField:
		return fmt.Errorf("a Rank of %d: want 1 or more", l.Rank)
	case len(l.Targets) == 0:
		return fmt.Errorf("there are no Targets: name linear layers, such as q_proj")
	case !(l.Dropout >= 0 && l.Dropout < 1):
		return fmt.Errorf("a Dropout of %v: want 0 or more and less than 1", l.Dropout)
	case l.DType != 0 && !l.DType.Valid():
		return fmt.Errorf("%v is not an element type", l.DType)
	case l.Base > Int8Base:
		return fmt.Errorf("Base is %d: want one of the constants, from WholeBase to Int8Base", l.Base)
	}
	return nil
}

// targets reports whether the layer at a path gets an adapter.
func (l *LoRA) targets(at string) (which int, ok bool) {
	for i, target := range l.Targets {
		if target == AllLinear && !isHead(at) {
			return i, true
		}
		if match, _ := path.Match(target, at); match || at == target || strings.HasSuffix(at, "."+target) {
			return i, true
		}
	}
	return 0, false
}

// quantizes reports whether the weight of a Linear at a path is held in another type.
func (l *LoRA) quantizes(at string) bool {
	return l != nil && l.Base != WholeBase && !isHead(at)
}

// isHead reports whether the Linear at a path is the model's head.
func isHead(at string) bool { return at == "lm_head" || strings.HasSuffix(at, ".lm_head") }
