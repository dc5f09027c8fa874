package checkpoint

import (
	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
)

// convNeXt is a ConvNeXt that sees images of a side.
type convNeXt struct {
	family.ConvNeXt
	side int
}

func (m convNeXt) input(batch, _ int) estimate.Option {
	return estimate.InputShape(batch, m.Channels, m.side, m.side)
}

func hfConvNeXt(c *hfConfig, a *architecture) error {
	class, err := c.class("ConvNextForImageClassification")
	if err != nil {
		return err
	}
	m := convNeXt{ConvNeXt: family.ConvNeXt{DropPath: c.DropPath, NoScale: c.LayerScale != nil && *c.LayerScale <= 0}}
	err = c.numbers(
		hfNumber{&m.Channels, "num_channels", c.Channels, 3},
		hfNumber{&m.Patch, "patch_size", c.PatchSize, 4},
		hfNumber{&m.side, "image_size", c.ImageSize, 224},
	)
	if err != nil {
		return err
	}
	if m.Widths, m.Depths, err = c.stages([]int{96, 192, 384, 768}, []int{3, 3, 9, 3}); err != nil {
		return err
	}
	if err := c.activation(a, c.HiddenAct, "gelu"); err != nil {
		return err
	}
	m.Activation, a.Activation = a.Activation, 0
	if class != c.base {
		m.Classes = c.labels()
	}
	a.image = m
	return nil
}
