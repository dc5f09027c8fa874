package checkpoint

import (
	"cmp"
	"encoding/json"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
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
	Projected    *whole   `json:"caption_projection_dim"`
	MaxSide      *whole   `json:"pos_embed_max_size"`
	Dual         []int    `json:"dual_attention_layers"`
	QKNorm       string   `json:"qk_norm"`
	TwoTimes     *bool    `json:"zero_cond_t"`
	TimeKinds    *bool    `json:"use_additional_t_cond"`
	Layered      *bool    `json:"use_layer3d_rope"`
}

// denoiser reads the numbers that all have in common.
func (c *hfConfig) denoiser(a *architecture, of family.Family, heads, headSize, blocks, channels, patch int) (*diffusersConfig, error) {
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
	a.Family, a.Denoiser = of, &family.Denoiser{Out: out}
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
	d, err := c.denoiser(a, family.Flux, 24, 128, 19, 64, 1)
	if err == nil {
		err = c.flux(a, d, 38, 4096, false, 4)
	}
	if err != nil {
		return err
	}
	return c.numbers(hfNumber{&a.Denoiser.PooledDim, "pooled_projection_dim", d.Pooled, 768})
}

func hfFlux2(c *hfConfig, a *architecture) error {
	d, err := c.denoiser(a, family.Flux2, 48, 128, 8, 128, 1)
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

func hfQwenImage(c *hfConfig, a *architecture) error {
	d, err := c.denoiser(a, family.QwenImage, 24, 128, 60, 64, 2)
	if err != nil {
		return err
	}
	if orBool(d.TwoTimes, false) || orBool(d.TimeKinds, false) || orBool(d.Layered, false) {
		return c.unknown("zero_cond_t, use_additional_t_cond, use_layer3d_rope", "true")
	}
	if d.Out == nil {
		a.Denoiser.Out = 16
	}
	return c.flux(a, d, 1, 3584, false, 4)
}

func hfSD3(c *hfConfig, a *architecture) error {
	d, err := c.denoiser(a, family.SD3, 18, 64, 18, 16, 2)
	if err != nil {
		return err
	}
	m, projected, side := a.Denoiser, 0, 0
	err = c.numbers(
		hfNumber{&a.Image, "sample_size", d.Sample, 128},
		hfNumber{&m.TextDim, "joint_attention_dim", d.Text, 4096},
		hfNumber{&m.PooledDim, "pooled_projection_dim", d.Pooled, 2048},
		hfNumber{&projected, "caption_projection_dim", d.Projected, 1152},
		hfNumber{&side, "pos_embed_max_size", d.MaxSide, 96},
	)
	if err != nil {
		return err
	}
	for i, block := range d.Dual {
		if block != i {
			return c.unknown("dual_attention_layers", "others than the first")
		}
	}
	m.DualBlocks = len(d.Dual)
	switch {
	case projected != a.Hidden:
		return c.unknown("caption_projection_dim", "another width than the model's")
	case d.QKNorm != "" && d.QKNorm != "rms_norm":
		return c.unknown("qk_norm", d.QKNorm)
	case a.Image%a.Patch != 0 || a.Image/a.Patch > side:
		return &Error{File: c.file, Where: "sample_size", Reason: fmt.Sprintf("an image of %d does not divide into at most %d patches of %d along a side", a.Image, side, a.Patch)}
	case d.QKNorm != "":
		a.QKNorm = layer.NormHeads
	}
	if err := c.times(&a.Positions, "pos_embed_max_size", side, float64(side)); err != nil {
		return err
	}
	return c.times(&a.FFN, "attention_head_dim", a.Hidden, 4)
}

func hfPixArt(c *hfConfig, a *architecture) error {
	d, err := c.denoiser(a, family.PixArt, 16, 72, 28, 4, 2)
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

// usualSide is the side of the latent image that FLUX makes where nobody says it, of 1024 x 1024 pixels.
// Four of its pixels are a place.
const usualSide = 128

// usualCaption is the number of tokens of a text for PixArt-Sigma; for Stable Diffusion 3 it is 333.
const usualCaption = 300

// makesImages reports whether the model makes images.
func (a *architecture) makesImages() bool { return a.image != nil || a.Denoiser != nil }

// imageInput is a noisy image of the usual size and a text of so many tokens, 0 for the usual number.
func (a *architecture) imageInput(batch, length int) estimate.Option {
	side := a.latentSide()
	switch {
	case a.image != nil:
		return a.image.input(batch, length)
	case a.Image > 0: // what reads images and no patches
		return estimate.All(estimate.InputShape(batch, a.Channels, side, side), estimate.InputShape(batch, cmp.Or(length, usualCaption), a.Denoiser.TextDim))
	}
	return estimate.All(estimate.InputShape(batch, side*side/4, a.Channels), estimate.InputShape(batch, cmp.Or(length, usualTokens), a.Denoiser.TextDim))
}

// latentSide is the side of the latent image that the model makes.
func (a *architecture) latentSide() int {
	if u, ok := a.image.(unet); ok {
		return u.side
	}
	return cmp.Or(a.latent, a.Image, usualSide)
}
