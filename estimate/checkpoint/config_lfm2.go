package checkpoint

import (
	"fmt"
	"slices"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// hfLFM2 reads LFM2, some of whose layers attend and the others have a short convolution.
func hfLFM2(c *hfConfig, a *architecture) error {
	if orBool(c.ShortBias, false) {
		return c.unknown("conv_bias", "true")
	}
	if err := c.of(a, family.LFM2, "Lfm2ForCausalLM"); err != nil {
		return err
	}
	a.QKNorm = layer.NormHeads
	if err := c.numbers(hfNumber{&a.ShortConv, "conv_L_cache", c.ShortKernel, 3}); err != nil {
		return err
	}
	if err := c.adjustFFN(a); err != nil {
		return err
	}
	if c.LayerTypes != nil && len(c.LayerTypes) != a.Blocks {
		return &Error{File: c.file, Where: "layer_types", Reason: fmt.Sprintf("it has %d entries for %d layers", len(c.LayerTypes), a.Blocks)}
	}
	kinds := a.kinds()
	for i := range kinds {
		attends := c.Attending == nil || slices.Contains(c.Attending, i)
		if c.LayerTypes != nil {
			attends = c.LayerTypes[i] != "conv"
		}
		if !attends {
			kinds[i] |= family.Recurrent
		}
	}
	return nil
}

// adjustFFN makes the MLP's width of the one that the settings have: two thirds, times a factor, up to a multiple.
func (c *hfConfig) adjustFFN(a *architecture) error {
	if !orBool(c.AdjustFFN, true) {
		return nil
	}
	a.FFN -= a.FFN/3 + (a.FFN%3+2)/3
	if c.FFNTimes != nil {
		multiple := 0
		if err := c.times(&a.FFN, "block_ffn_dim_multiplier", a.FFN, *c.FFNTimes); err != nil {
			return err
		}
		if err := c.numbers(hfNumber{&multiple, "block_multiple_of", c.FFNMultiple, 256}); err != nil {
			return err
		}
		if rest := a.FFN % multiple; rest != 0 {
			if a.FFN > largestNumber-multiple {
				return c.unknown("block_multiple_of", "such a number")
			}
			a.FFN += multiple - rest
		}
	}
	return nil
}
