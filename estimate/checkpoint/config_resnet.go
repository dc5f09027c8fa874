package checkpoint

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
)

// resNet is a ResNet that sees images of a side.
type resNet struct {
	family.ResNet
	side int
}

func (m resNet) input(batch, _ int) estimate.Option {
	return estimate.InputShape(batch, m.Channels, m.side, m.side)
}

func hfResNet(c *hfConfig, a *architecture) error {
	class, err := c.class("ResNetForImageClassification")
	if err != nil {
		return err
	}
	var m resNet
	err = c.numbers(
		hfNumber{&m.Channels, "num_channels", c.Channels, 3},
		hfNumber{&m.Width, "embedding_size", c.EmbedWidth, 64},
		hfNumber{&m.side, "image_size", c.ImageSize, 224},
	)
	if err != nil {
		return err
	}
	if m.Widths, m.Depths, err = c.stages([]int{256, 512, 1024, 2048}, []int{3, 4, 6, 3}); err != nil {
		return err
	}
	switch c.BlockType {
	case "", "bottleneck":
	case "basic":
		m.Basic = true
	default:
		return c.unknown("layer_type", c.BlockType)
	}
	m.EarlyHalf, m.EarlyPlace = orBool(c.EarlyHalf, false), orBool(c.EarlyPlace, false)
	if err := c.activation(a, c.HiddenAct, "relu"); err != nil {
		return err
	}
	m.Activation, a.Activation = a.Activation, 0
	if class != c.base {
		m.Classes = c.labels()
	}
	a.image = m
	return nil
}

// stages reads the widths of the stages of a convolutional model and how many blocks each has.
func (c *hfConfig) stages(widths, depths []int) ([]int, []int, error) {
	if c.StageWidths != nil {
		widths = c.StageWidths
	}
	if c.Depths != nil {
		depths = c.Depths
	}
	if len(widths) != len(depths) || len(widths) == 0 {
		return nil, nil, &Error{File: c.file, Where: "hidden_sizes, depths", Reason: fmt.Sprintf("%d and %d stages", len(widths), len(depths))}
	}
	for i, depth := range depths {
		if widths[i] < 4 || widths[i] > largestNumber || depth < 1 || depth > maxBlocks {
			return nil, nil, &Error{File: c.file, Where: "hidden_sizes, depths", Reason: fmt.Sprintf("stage %d has %d blocks of %d channels", i, depth, widths[i])}
		}
	}
	return widths, depths, nil
}
