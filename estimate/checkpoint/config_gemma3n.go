package checkpoint

import (
	"encoding/json"
	"fmt"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
)

// hfGemma3n reads the text model of Gemma 3n.
func hfGemma3n(c *hfConfig, a *architecture) error {
	if err := c.gemma2(a, "Gemma3nForCausalLM"); err != nil {
		return err
	}
	var altUp family.AltUp
	err := c.numbers(
		hfNumber{&a.KVHeads, "num_key_value_heads", c.KVHeads, 2},
		hfNumber{&altUp.Inputs, "altup_num_inputs", c.AltUpInputs, 4},
		hfNumber{&altUp.Rank, "laurel_rank", c.LaurelRank, 64},
		hfNumber{&altUp.Vocab, "vocab_size_per_layer_input", c.BlockVocab, 262_144},
		hfNumber{&altUp.Size, "hidden_size_per_layer_input", c.BlockEmbed, 256},
	)
	if err != nil {
		return err
	}
	if !orBool(c.CorrectScale, true) {
		return c.unknown("altup_correct_scale", "false")
	}
	a.Family, a.AltUp, a.CappedLogits = family.Gemma3n, &altUp, true
	c.Window = orNumber(c.Window, 512)
	if err := c.windows(a, func(layer int) bool { return (layer+1)%5 == 0 }); err != nil {
		return err
	}
	if err := c.thinned(a); err != nil {
		return err
	}
	return c.borrowing(a, 15)
}

// borrowing reads how many of the last layers have no keys and values of their own.
func (c *hfConfig) borrowing(a *architecture, without whole) error {
	if err := a.borrow(int(*orNumber(c.SharedLayers, without))); err != nil {
		return &Error{File: c.file, Where: "num_kv_shared_layers", Err: err}
	}
	return nil
}

// thinned marks the layers whose MLP leaves most elements 0: where the pattern is absent, the first ten of more.
func (c *hfConfig) thinned(a *architecture) error {
	const usual = 10
	kinds := a.kinds()
	pattern := make([]float64, len(kinds))
	if len(kinds) > usual {
		for i := range usual {
			pattern[i] = 0.95
		}
	}
	var all float64
	switch {
	case len(c.Sparsity) == 0 || string(c.Sparsity) == "null":
	case json.Unmarshal(c.Sparsity, &all) == nil:
		for i := range pattern {
			pattern[i] = all
		}
	default:
		if err := json.Unmarshal(c.Sparsity, &pattern); err != nil || len(pattern) != len(kinds) {
			return &Error{File: c.file, Where: "activation_sparsity_pattern", Reason: fmt.Sprintf("it is not a number or one for each of %d layers", a.Blocks)}
		}
	}
	for i, share := range pattern {
		if share > 0 {
			kinds[i] |= family.Thinned
		}
	}
	return nil
}

// hfGemma3nWhole reads Gemma 3n with its towers of images and sounds: they are counted, and not run.
func hfGemma3nWhole(c *hfConfig, a *architecture) error {
	class, err := c.class("Gemma3nForConditionalGeneration")
	if err != nil {
		return err
	}
	text, err := c.part(orEmpty(c.Text), "gemma3n_text")
	if err != nil {
		return err
	}
	text.base, text.Architectures = "Gemma3nTextModel", nil
	if err := hfGemma3n(text, a); err != nil {
		return err
	}
	a.NoHead = class == c.base
	if a.Vision, err = c.gemma3nVision(); err == nil {
		a.Audio, err = c.gemma3nAudio()
	}
	return err
}

// orEmpty are settings, or none: what is absent then has its defaults.
func orEmpty(settings json.RawMessage) json.RawMessage {
	if settings == nil {
		return json.RawMessage("{}")
	}
	return settings
}

func (c *hfConfig) gemma3nVision() (*family.Transformer, error) {
	vision, err := c.part(orEmpty(c.VisionConfig), "gemma3n_vision")
	if err != nil {
		return nil, err
	}
	if name := vision.TowerName; name != "" && name != "mobilenetv5_300m_enc" {
		return nil, vision.unknown("architecture", name)
	}
	tower := family.Transformer{Family: family.Gemma3nVision}
	return &tower, vision.numbers(
		hfNumber{&tower.Hidden, "hidden_size", vision.HiddenSize, 2048},
		hfNumber{&tower.Vocab, "vocab_size", vision.Vocabulary, 128},
	)
}

func (c *hfConfig) gemma3nAudio() (*family.Transformer, error) {
	audio, err := c.part(orEmpty(c.AudioConfig), "gemma3n_audio")
	if err != nil {
		return nil, err
	}
	tower := family.Transformer{Family: family.Gemma3nAudio}
	return &tower, audio.numbers(
		hfNumber{&tower.Hidden, "hidden_size", audio.HiddenSize, 1536},
		hfNumber{&tower.Vocab, "vocab_size", audio.Vocabulary, 128},
		hfNumber{&tower.Blocks, "conf_num_hidden_layers", audio.SoundBlocks, 12},
		hfNumber{&tower.Heads, "conf_num_attention_heads", audio.SoundHeads, 8},
		hfNumber{&tower.Patch, "conf_conv_kernel_size", audio.SoundKernel, 5},
		hfNumber{&tower.Channels, "input_feat_size", audio.MelChannels, 128},
	)
}
