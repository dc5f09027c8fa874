package checkpoint

import (
	"encoding/json"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

func hfMamba(c *hfConfig, a *architecture) error {
	class, err := c.class("MambaForCausalLM")
	if err != nil {
		return err
	}
	a.Family, a.NoHead, a.Tied, a.Heads = family.Mamba, class == c.base, orBool(c.Tied, true), 1
	if !orBool(c.ConvBias, true) {
		return c.unknown("use_conv_bias", "false")
	}
	s := layer.StateSpace{Bias: orBool(c.UseBias, false)}
	a.Mixer = &s
	err = c.numbers(
		hfNumber{&a.Hidden, "hidden_size", c.HiddenSize, 0},
		hfNumber{&a.Blocks, "num_hidden_layers", c.Layers, 0},
		hfNumber{&a.Vocab, "vocab_size", c.Vocabulary, 0},
		hfNumber{&s.State, "state_size", c.StateSize, 16},
		hfNumber{&s.Kernel, "conv_kernel", c.ConvKernel, 4},
	)
	if err != nil {
		return err
	}
	expand := 2.0
	if c.Expand != nil {
		expand = *c.Expand
	}
	if err := c.times(&s.Inner, "expand", a.Hidden, expand); err != nil {
		return err
	}
	var rank whole
	if json.Unmarshal(c.TimeStepRank, &rank) != nil { // "auto"
		rank = whole(a.Hidden+15) / 16
	}
	return c.numbers(hfNumber{&s.Rank, "time_step_rank", &rank, 0})
}
