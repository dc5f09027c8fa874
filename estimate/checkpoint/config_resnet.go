package checkpoint

import (
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// resNet is a ResNet that sees images of a side.
type resNet struct {
	estimate.ResNet
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
	if m.Widths, m.Depths = c.StageWidths, c.Depths; m.Widths == nil {
		m.Widths = []int{256, 512, 1024, 2048}
	}
	if m.Depths == nil {
		m.Depths = []int{3, 4, 6, 3}
	}
	if len(m.Widths) != len(m.Depths) || len(m.Widths) == 0 {
		return &Error{File: c.file, Where: "hidden_sizes, depths", Reason: fmt.Sprintf("%d and %d stages", len(m.Widths), len(m.Depths))}
	}
	for i := range m.Widths {
		width, depth := m.Widths[i], m.Depths[i]
		if width < 4 || width > largestNumber || depth < 1 || depth > maxBlocks {
			return &Error{File: c.file, Where: "hidden_sizes, depths", Reason: fmt.Sprintf("stage %d has %d blocks of %d channels", i, depth, width)}
		}
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
