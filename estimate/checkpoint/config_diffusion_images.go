package checkpoint

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// imageModel is a model of images that is no transformer.
type imageModel interface {
	Layers() []tape.Layer
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

	// Of a U-Net.
	Heads        each    `json:"attention_head_dim"` // as the key is called, it is their number
	Transformers each    `json:"transformer_layers_per_block"`
	Text         *whole  `json:"cross_attention_dim"`
	Linear       *bool   `json:"use_linear_projection"`
	Added        string  `json:"addition_embed_type"`
	AddedDim     *whole  `json:"projection_class_embeddings_input_dim"`
	Mid          *string `json:"mid_block_type"`
	OnlyCross    *bool   `json:"only_cross_attention"`
	Dual         *bool   `json:"dual_cross_attention"`
	Classes      string  `json:"class_embed_type"`
	ClassCount   *whole  `json:"num_class_embeds"`
	TextType     string  `json:"encoder_hid_dim_type"`
	TimeType     string  `json:"time_embedding_type"`
	TimeShift    string  `json:"resnet_time_scale_shift"`
}

// each is a number for each block, which may be written once for all.
type each []whole

// UnmarshalJSON implements json.Unmarshaler.
func (e *each) UnmarshalJSON(text []byte) error {
	var all []whole
	if json.Unmarshal(text, &all) == nil {
		*e = all
		return nil
	}
	var one whole
	if err := json.Unmarshal(text, &one); err != nil {
		return err
	}
	*e = each{one}
	return nil
}

// block is the number of block i of n, or what is taken without the key.
func (c *hfConfig) block(key string, e each, i, n, without int) (int, error) {
	value := 0
	switch {
	case len(e) == 0:
		return without, nil
	case len(e) == 1:
		i = 0
	case len(e) != n:
		return 0, &Error{File: c.file, Where: key, Reason: fmt.Sprintf("it has %d entries for %d blocks", len(e), n)}
	}
	err := c.numbers(hfNumber{&value, key, &e[i], 0})
	return value, err
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

// blockKinds checks that the blocks are of the kinds that are known.
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
	family.Autoencoder
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
	m := autoencoder{Autoencoder: family.Autoencoder{Channels: widths, Depth: depth, Groups: groups, NoAttention: !orBool(v.MidAttention, true), NoQuant: !orBool(v.PostQuant, true)}}
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

// unet denoises latent images, which have the usual side.
type unet struct {
	family.UNet
	side int
}

// usualClip is the number of tokens that CLIP reads.
const usualClip = 77

func (u unet) input(batch, length int) estimate.Option {
	return estimate.All(estimate.InputShape(batch, u.Channels, u.side, u.side), estimate.InputShape(batch, cmp.Or(length, usualClip), u.TextDim))
}

func hfUNet(c *hfConfig, a *architecture) error {
	var v convolutionsConfig
	widths, depth, groups, err := c.convolutions(&v, 2)
	if err != nil {
		return err
	}
	u := unet{UNet: family.UNet{Depth: depth, Groups: groups, Linear: orBool(v.Linear, false)}}
	err = c.numbers(
		hfNumber{&u.Channels, "in_channels", v.In, 4}, hfNumber{&u.Out, "out_channels", v.Out, 4},
		hfNumber{&u.TextDim, "cross_attention_dim", v.Text, 1280}, hfNumber{&u.side, "sample_size", v.Sample, 64},
	)
	if err == nil {
		err = c.unetSettings(&v)
	}
	if err == nil && v.Added != "" {
		err = c.numbers(hfNumber{&u.AddedDim, "projection_class_embeddings_input_dim", v.AddedDim, 0})
	}
	if err == nil {
		u.Levels, u.Middle, err = c.unetLevels(&v, widths)
	}
	a.image = u
	return err
}

// unetSettings refuses what makes another U-Net than those of Stable Diffusion.
func (c *hfConfig) unetSettings(v *convolutionsConfig) error {
	mid := "UNetMidBlock2DCrossAttn"
	if v.Mid != nil {
		mid = *v.Mid
	}
	for _, s := range []struct{ key, value, usual string }{
		{"mid_block_type", mid, "UNetMidBlock2DCrossAttn"}, {"class_embed_type", v.Classes, ""}, {"encoder_hid_dim_type", v.TextType, ""},
		{"time_embedding_type", cmp.Or(v.TimeType, "positional"), "positional"}, {"resnet_time_scale_shift", cmp.Or(v.TimeShift, "default"), "default"},
		{"addition_embed_type", cmp.Or(v.Added, "text_time"), "text_time"},
	} {
		if s.value != s.usual {
			return c.unknown(s.key, s.value)
		}
	}
	if orBool(v.OnlyCross, false) || orBool(v.Dual, false) || v.ClassCount != nil {
		return c.unknown("only_cross_attention, dual_cross_attention, num_class_embeds", "another value than the usual")
	}
	return nil
}

// unetLevels are the resolutions and the blocks in the middle. The way up has the same as the way down.
func (c *hfConfig) unetLevels(v *convolutionsConfig, widths []int) (levels []family.UNetLevel, middle int, err error) {
	n := len(widths)
	plain := make([]bool, n)
	for key, kinds := range map[string][]string{"down_block_types": v.Down, "up_block_types": v.Up} {
		if err := c.blockKinds(key, kinds, n, "CrossAttnDownBlock2D", "DownBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"); err != nil {
			return nil, 0, err
		}
	}
	for i, kind := range v.Down {
		plain[i] = kind == "DownBlock2D"
		if plain[i] != (v.Up[n-1-i] == "UpBlock2D") {
			return nil, 0, c.unknown("up_block_types", "another order than that of down_block_types")
		}
	}
	for i, width := range widths {
		l := family.UNetLevel{Channels: width}
		if l.Heads, err = c.block("attention_head_dim", v.Heads, i, n, 8); err == nil {
			l.Blocks, err = c.block("transformer_layers_per_block", v.Transformers, i, n, 1)
		}
		if err != nil {
			return nil, 0, err
		}
		if l.Blocks > maxBlocks {
			return nil, 0, &Error{File: c.file, Where: "transformer_layers_per_block", Reason: fmt.Sprintf("%d blocks, more than %d", l.Blocks, maxBlocks)}
		}
		if middle = l.Blocks; plain[i] {
			l.Blocks = 0
		}
		levels = append(levels, l)
	}
	return levels, middle, nil
}
