package checkpoint

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate"
)

// diffusersConfig has the keys of a config.json that diffusers writes of a transformer that makes images. What is
// absent has the defaults of src/diffusers/models/transformers there.
type diffusersConfig struct {
	Heads        *whole   `json:"num_attention_heads"`
	HeadSize     *whole   `json:"attention_head_dim"`
	Blocks       *whole   `json:"num_layers"`
	SingleBlocks *whole   `json:"num_single_layers"`
	Channels     *whole   `json:"in_channels"`
	Out          *whole   `json:"out_channels"`
	Patch        *whole   `json:"patch_size"`
	Text         *whole   `json:"joint_attention_dim"`
	Pooled       *whole   `json:"pooled_projection_dim"`
	Caption      *whole   `json:"caption_channels"`
	Cross        *whole   `json:"cross_attention_dim"`
	Sample       *whole   `json:"sample_size"`
	TimeFeatures *whole   `json:"timestep_guidance_channels"`
	FFNRatio     *float64 `json:"mlp_ratio"`
	Guided       *bool    `json:"guidance_embeds"`
	Sized        *bool    `json:"use_additional_conditions"`
	Bias         *bool    `json:"attention_bias"`
	Affine       *bool    `json:"norm_elementwise_affine"`
	Norm         string   `json:"norm_type"`
	Attention    string   `json:"attention_type"`
	Activation   string   `json:"activation_fn"`
}

// denoiser reads the numbers that all have in common.
func (c *hfConfig) denoiser(a *architecture, family estimate.Family, heads, headSize, blocks, channels, patch int) (*diffusersConfig, error) {
	d := &diffusersConfig{}
	if err := json.Unmarshal(c.raw, d); err != nil {
		return nil, &Error{File: c.file, Err: err}
	}
	out := 0
	err := c.numbers(
		hfNumber{&a.Heads, "num_attention_heads", d.Heads, heads},
		hfNumber{&a.HeadSize, "attention_head_dim", d.HeadSize, headSize},
		hfNumber{&a.Blocks, "num_layers", d.Blocks, blocks},
		hfNumber{&a.Channels, "in_channels", d.Channels, channels},
		hfNumber{&a.Patch, "patch_size", d.Patch, patch},
	)
	if err == nil {
		err = c.numbers(hfNumber{&out, "out_channels", d.Out, a.Channels})
	}
	if err == nil {
		err = c.times(&a.Hidden, "attention_head_dim", a.Heads, float64(a.HeadSize))
	}
	if err != nil {
		return nil, err
	}
	a.Family, a.Denoiser = family, &estimate.Denoiser{Out: out}
	return d, nil
}

// flux reads what FLUX.1 and FLUX.2 have in common.
func (c *hfConfig) flux(a *architecture, d *diffusersConfig, single, text int, guided bool, ratio float64) error {
	m := a.Denoiser
	m.Guided = orBool(d.Guided, guided)
	err := c.numbers(
		hfNumber{&m.SingleBlocks, "num_single_layers", d.SingleBlocks, single},
		hfNumber{&m.TextDim, "joint_attention_dim", d.Text, text},
	)
	if err == nil && m.SingleBlocks > maxBlocks {
		err = &Error{File: c.file, Where: "num_single_layers", Reason: fmt.Sprintf("%d blocks, more than %d", m.SingleBlocks, maxBlocks)}
	}
	if err == nil {
		err = c.times(&m.Out, "patch_size", m.Out, float64(a.Patch)*float64(a.Patch))
	}
	if err == nil {
		err = c.times(&a.FFN, "mlp_ratio", a.Hidden, ratio)
	}
	return err
}

func hfFlux(c *hfConfig, a *architecture) error {
	d, err := c.denoiser(a, estimate.Flux, 24, 128, 19, 64, 1)
	if err == nil {
		err = c.flux(a, d, 38, 4096, false, 4)
	}
	if err != nil {
		return err
	}
	return c.numbers(hfNumber{&a.Denoiser.PooledDim, "pooled_projection_dim", d.Pooled, 768})
}

func hfFlux2(c *hfConfig, a *architecture) error {
	d, err := c.denoiser(a, estimate.Flux2, 48, 128, 8, 128, 1)
	if err != nil {
		return err
	}
	if d.TimeFeatures != nil && *d.TimeFeatures != 256 {
		return c.unknown("timestep_guidance_channels", "another number than 256")
	}
	ratio := 3.0
	if d.FFNRatio != nil {
		ratio = *d.FFNRatio
	}
	return c.flux(a, d, 48, 15360, true, ratio)
}

func hfPixArt(c *hfConfig, a *architecture) error {
	d, err := c.denoiser(a, estimate.PixArt, 16, 72, 28, 4, 2)
	if err != nil {
		return err
	}
	cross := 0
	err = c.numbers(
		hfNumber{&a.Image, "sample_size", d.Sample, 128},
		hfNumber{&a.Denoiser.TextDim, "caption_channels", d.Caption, 0},
		hfNumber{&cross, "cross_attention_dim", d.Cross, a.Hidden},
	)
	if err != nil {
		return err
	}
	switch {
	case cmp.Or(d.Norm, "ada_norm_single") != "ada_norm_single" || orBool(d.Affine, false):
		return c.unknown("norm_type, norm_elementwise_affine", "another norm than ada_norm_single without weights")
	case cmp.Or(d.Attention, "default") != "default" || !orBool(d.Bias, true) || cross != a.Hidden:
		return c.unknown("attention_type, attention_bias, cross_attention_dim", "another attention than the usual")
	case cmp.Or(d.Activation, "gelu-approximate") != "gelu-approximate":
		return c.unknown("activation_fn", d.Activation)
	case a.Image%a.Patch != 0:
		return &Error{File: c.file, Where: "sample_size", Reason: fmt.Sprintf("an image of %d does not divide into patches of %d", a.Image, a.Patch)}
	}
	a.Denoiser.Sized = orBool(d.Sized, a.Image == 128)
	return c.times(&a.FFN, "attention_head_dim", a.Hidden, 4)
}

// The image that FLUX makes where nobody says it, of 1024 x 1024 pixels: places of 16 x 16 pixels.
const usualPlaces = 64 * 64

// The tokens of a text for PixArt-Sigma.
const usualCaption = 300

// denoiserInput is a noisy image and a text of so many tokens, 0 for the usual number.
func (a *architecture) denoiserInput(batch, length int) estimate.Option {
	if a.Family == estimate.PixArt {
		return estimate.All(estimate.InputShape(batch, a.Channels, a.Image, a.Image), estimate.InputShape(batch, cmp.Or(length, usualCaption), a.Denoiser.TextDim))
	}
	return estimate.All(estimate.InputShape(batch, usualPlaces, a.Channels), estimate.InputShape(batch, cmp.Or(length, usualTokens), a.Denoiser.TextDim))
}
