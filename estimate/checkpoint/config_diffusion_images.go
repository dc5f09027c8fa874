package checkpoint

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// imageModel is a model of images that is no transformer.
type imageModel interface {
	Layers() []estimate.Layer
	// input are so many images of the usual size and texts of so many tokens, 0 for the usual number.
	input(batch, length int) estimate.Option
}

// convolutionsConfig has the keys of a config.json that diffusers writes of a convolutional model.
type convolutionsConfig struct {
	Blocks       []whole  `json:"block_out_channels"`
	Down         []string `json:"down_block_types"`
	Up           []string `json:"up_block_types"`
	Depth        *whole   `json:"layers_per_block"`
	Groups       *whole   `json:"norm_num_groups"`
	In           *whole   `json:"in_channels"`
	Out          *whole   `json:"out_channels"`
	Latent       *whole   `json:"latent_channels"`
	Sample       *whole   `json:"sample_size"`
	Quant        *bool    `json:"use_quant_conv"`
	PostQuant    *bool    `json:"use_post_quant_conv"`
	MidAttention *bool    `json:"mid_block_add_attention"`
	Activation   string   `json:"act_fn"`
}

// convolutions reads the widths of the blocks and what else all have.
func (c *hfConfig) convolutions(v *convolutionsConfig, depth int) (widths []int, layers, groups int, err error) {
	if err := json.Unmarshal(c.raw, v); err != nil {
		return nil, 0, 0, &Error{File: c.file, Err: err}
	}
	if len(v.Blocks) == 0 || len(v.Blocks) > 16 {
		return nil, 0, 0, &Error{File: c.file, Where: "block_out_channels", Reason: fmt.Sprintf("it has %d entries: want 1 to 16", len(v.Blocks))}
	}
	for i := range v.Blocks {
		n := 0
		if err := c.numbers(hfNumber{&n, "block_out_channels", &v.Blocks[i], 0}); err != nil {
			return nil, 0, 0, err
		}
		widths = append(widths, n)
	}
	if act := cmp.Or(v.Activation, "silu"); act != "silu" && act != "swish" {
		return nil, 0, 0, c.unknown("act_fn", act)
	}
	err = c.numbers(hfNumber{&layers, "layers_per_block", v.Depth, depth}, hfNumber{&groups, "norm_num_groups", v.Groups, 32})
	if err == nil && layers > maxBlocks {
		err = &Error{File: c.file, Where: "layers_per_block", Reason: fmt.Sprintf("%d blocks, more than %d", layers, maxBlocks)}
	}
	return widths, layers, groups, err
}

// kinds checks that the blocks are of the kinds that are known.
func (c *hfConfig) blockKinds(key string, have []string, want int, known ...string) error {
	if len(have) != want {
		return &Error{File: c.file, Where: key, Reason: fmt.Sprintf("it has %d entries for %d blocks", len(have), want)}
	}
	for _, kind := range have {
		ok := false
		for _, k := range known {
			ok = ok || k == kind
		}
		if !ok {
			return c.unknown(key, kind)
		}
	}
	return nil
}

// autoencoder decodes latent images, which have the usual side.
type autoencoder struct {
	estimate.Autoencoder
	side int
}

func (a autoencoder) input(batch, _ int) estimate.Option {
	return estimate.InputShape(batch, a.Latent, a.side, a.side)
}

func hfAutoencoder(c *hfConfig, a *architecture) error {
	var v convolutionsConfig
	widths, depth, groups, err := c.convolutions(&v, 1)
	if err != nil {
		return err
	}
	m := autoencoder{Autoencoder: estimate.Autoencoder{Channels: widths, Depth: depth, Groups: groups, NoAttention: !orBool(v.MidAttention, true), NoQuant: !orBool(v.PostQuant, true)}}
	if orBool(v.Quant, true) == m.NoQuant {
		return c.unknown("use_quant_conv, use_post_quant_conv", "one of the two")
	}
	out, sample := 0, 0
	err = c.numbers(
		hfNumber{&m.Image, "in_channels", v.In, 3}, hfNumber{&out, "out_channels", v.Out, 3},
		hfNumber{&m.Latent, "latent_channels", v.Latent, 4}, hfNumber{&sample, "sample_size", v.Sample, 32},
	)
	if err == nil && out != m.Image {
		err = c.unknown("out_channels", "another number than in_channels")
	}
	if err == nil {
		err = c.blockKinds("down_block_types", v.Down, len(widths), "DownEncoderBlock2D")
	}
	if err == nil {
		err = c.blockKinds("up_block_types", v.Up, len(widths), "UpDecoderBlock2D")
	}
	m.side = max(1, sample>>(len(widths)-1))
	a.image = m
	return err
}
