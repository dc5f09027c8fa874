package checkpoint

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

func hfGemma(c *hfConfig, a *architecture) error {
	if err := c.decoder(a, "GemmaForCausalLM", 0, true); err != nil {
		return err
	}
	if err := c.noBias(); err != nil {
		return err
	}
	a.Family = family.Gemma
	// Gemma runs gelu_pytorch_tanh even where hidden_act says gelu.
	if err := c.activation(a, c.HiddenActivation, "gelu_pytorch_tanh"); err != nil {
		return err
	}
	return c.numbers(hfNumber{&a.HeadSize, "head_dim", c.HeadSize, 256})
}

func hfGemma2(c *hfConfig, a *architecture) error {
	err := c.gemma2(a, "Gemma2ForCausalLM")
	if c.Window == nil {
		c.Window = new(whole(4096))
	}
	a.CappedScores, a.CappedLogits = true, true // without the keys too
	if err != nil {
		return err
	}
	return c.windows(a, func(layer int) bool { return layer%2 == 1 })
}

func hfGemma3(c *hfConfig, a *architecture) error {
	if err := c.gemma2(a, "Gemma3ForCausalLM"); err != nil {
		return err
	}
	if c.Window == nil {
		c.Window = new(whole(4096))
	}
	a.QKNorm = layer.NormHeads
	a.CappedScores, a.CappedLogits = c.ScoreCap != nil, c.LogitCap != nil
	every := 6
	if c.WindowPattern != nil {
		every = max(1, int(*c.WindowPattern))
	}
	return c.windows(a, func(layer int) bool { return (layer+1)%every == 0 })
}

// gemma2 reads what Gemma 2 and 3 have in common.
func (c *hfConfig) gemma2(a *architecture, causal string) error {
	if err := c.decoder(a, causal, 4, true); err != nil {
		return err
	}
	if err := c.noBias(); err != nil {
		return err
	}
	a.Family = family.Gemma2
	if err := c.activation(a, c.HiddenActivation, "gelu_pytorch_tanh"); err != nil {
		return err
	}
	return c.numbers(hfNumber{&a.HeadSize, "head_dim", c.HeadSize, 256})
}

// hfGemma3Vision reads Gemma 3 with its vision tower, which is a SigLIP: the tower is
// counted, and not run.
func hfGemma3Vision(c *hfConfig, a *architecture) error {
	class, err := c.class("Gemma3ForConditionalGeneration")
	if err != nil {
		return err
	}
	if c.Text == nil || c.VisionConfig == nil {
		return &Error{File: c.file, Where: "text_config, vision_config", Reason: "the key is missing"}
	}
	text, err := c.part(c.Text, "gemma3_text")
	if err != nil {
		return err
	}
	vision, err := c.part(c.VisionConfig, "siglip_vision_model")
	if err != nil {
		return err
	}
	text.base, text.Architectures = "Gemma3TextModel", nil
	// What transformers takes where text_config leaves it out.
	text.Heads, text.Vocabulary = orNumber(text.Heads, 8), orNumber(text.Vocabulary, 262_208)
	text.Tied = c.Tied
	if err := hfGemma3(text, a); err != nil {
		return err
	}
	a.NoHead = class == c.base
	tower := family.Transformer{Family: family.ViT, Activation: layer.UseGELUTanh}
	err = vision.numbers(
		hfNumber{&tower.Hidden, "hidden_size", vision.HiddenSize, 768},
		hfNumber{&tower.Blocks, "num_hidden_layers", vision.Layers, 12},
		hfNumber{&tower.Heads, "num_attention_heads", vision.Heads, 12},
		hfNumber{&tower.FFN, "intermediate_size", vision.Intermediate, 3072},
		hfNumber{&tower.Image, "image_size", vision.ImageSize, 224},
		hfNumber{&tower.Patch, "patch_size", vision.PatchSize, 16},
		hfNumber{&tower.Channels, "num_channels", vision.Channels, 3},
	)
	if err != nil {
		return err
	}
	seen := architecture{Transformer: tower}
	if err := seen.check(); err != nil {
		return &Error{File: c.file, Where: "vision_config", Err: err}
	}
	a.Vision = &tower
	return nil
}
