package checkpoint

import (
	"encoding/json"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
)

func hfCLIP(c *hfConfig, a *architecture) error {
	return c.pair(a, family.CLIP, "clip_text_model", "clip_vision_model")
}

func hfSigLIP(c *hfConfig, a *architecture) error {
	return c.pair(a, family.SigLIP, "siglip_text_model", "siglip_vision_model")
}

// pair reads the towers of texts and images of CLIP and SigLIP.
func (c *hfConfig) pair(a *architecture, f family.Family, textType, visionType string) error {
	if _, err := c.class(); err != nil {
		return err
	}
	if c.Text == nil || c.VisionConfig == nil {
		return &Error{File: c.file, Where: "text_config, vision_config", Reason: "the key is missing"}
	}
	text, err := c.part(c.Text, textType)
	if err != nil {
		return err
	}
	vision, err := c.part(c.VisionConfig, visionType)
	if err != nil {
		return err
	}
	if f == family.SigLIP && text.ProjectionSize != nil && vision.HiddenSize != nil && *text.ProjectionSize != *vision.HiddenSize {
		return c.unknown("projection_size", "another width than the images'")
	}
	a.Family = f
	err = text.numbers(
		hfNumber{&a.Hidden, "hidden_size", text.HiddenSize, 0},
		hfNumber{&a.Blocks, "num_hidden_layers", text.Layers, 0},
		hfNumber{&a.Heads, "num_attention_heads", text.Heads, 0},
		hfNumber{&a.FFN, "intermediate_size", text.Intermediate, 0},
		hfNumber{&a.Vocab, "vocab_size", text.Vocabulary, 0},
		hfNumber{&a.Positions, "max_position_embeddings", text.Context, 77},
		hfNumber{&a.Classes, "projection_dim", c.ProjectionDim, 512},
	)
	if err == nil {
		err = text.activation(a, text.HiddenAct, "quick_gelu")
	}
	if err != nil {
		return err
	}
	tower := family.Transformer{Family: family.CLIPVision}
	if err := vision.tower(&tower); err != nil {
		return err
	}
	var seen architecture
	if err := vision.activation(&seen, vision.HiddenAct, "quick_gelu"); err != nil {
		return err
	}
	tower.Activation = seen.Activation
	return c.vision(a, &tower)
}

func hfDINOv2(c *hfConfig, a *architecture) error {
	class, err := c.class("Dinov2ForImageClassification")
	if err != nil {
		return err
	}
	if !orBool(c.QKVBias, true) || !orBool(c.MaskToken, true) {
		return c.unknown("qkv_bias, use_mask_token", "false")
	}
	ratio := 4.0
	if c.MLPRatio != nil {
		ratio = *c.MLPRatio
	}
	c.Intermediate = new(whole(1)) // computed below
	if err := c.encoder(a); err != nil {
		return err
	}
	a.Family, a.GatedFFN = family.DINOv2, orBool(c.SwiGLU, false)
	if err := c.times(&a.FFN, "mlp_ratio", a.Hidden, ratio); err != nil {
		return err
	}
	if a.GatedFFN { // two thirds, rounded up to a multiple of 8
		a.FFN = (int(float64(a.FFN)*2/3) + 7) / 8 * 8
	}
	if class != c.base {
		a.Classes = c.labels()
	}
	return c.numbers(
		hfNumber{&a.Image, "image_size", c.ImageSize, 224},
		hfNumber{&a.Patch, "patch_size", c.PatchSize, 14},
		hfNumber{&a.Channels, "num_channels", c.Channels, 3},
	)
}

func hfSwin(c *hfConfig, a *architecture) error {
	class, err := c.class("SwinForImageClassification")
	if err != nil {
		return err
	}
	if !orBool(c.QKVBias, true) || orBool(c.AbsolutePositions, false) {
		return c.unknown("qkv_bias, use_absolute_embeddings", "another value than the usual")
	}
	var heads []int
	if len(c.Depths) == 0 || json.Unmarshal(c.NumHeads, &heads) != nil || len(heads) != len(c.Depths) {
		return &Error{File: c.file, Where: "depths, num_heads", Reason: "they are not lists of the same length"}
	}
	a.Family, a.Dropout, a.DropPath, a.Heads = family.Swin, c.HiddenDropout, c.DropPath, 1
	for i, depth := range c.Depths {
		if depth < 1 || heads[i] < 1 || depth > maxBlocks || heads[i] > largestNumber || i >= maxBlocks {
			return &Error{File: c.file, Where: "depths, num_heads", Reason: fmt.Sprintf("%d blocks of %d heads", depth, heads[i])}
		}
		a.Stages = append(a.Stages, family.Stage{Blocks: depth, Heads: heads[i]})
		a.Blocks += depth
	}
	if class != c.base {
		a.Classes = c.labels()
	}
	err = c.numbers(
		hfNumber{&a.Hidden, "embed_dim", c.EmbedDim, 96},
		hfNumber{&a.Image, "image_size", c.ImageSize, 224},
		hfNumber{&a.Patch, "patch_size", c.PatchSize, 4},
		hfNumber{&a.Channels, "num_channels", c.Channels, 3},
		hfNumber{&a.Window, "window_size", c.WindowSize, 7},
	)
	if err != nil {
		return err
	}
	ratio := 4.0
	if c.MLPRatio != nil {
		ratio = *c.MLPRatio
	}
	if err := c.times(&a.FFN, "mlp_ratio", a.Hidden, ratio); err != nil {
		return err
	}
	return c.activation(a, c.HiddenAct, "gelu")
}
