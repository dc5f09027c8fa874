package checkpoint

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
)

func hfT5(c *hfConfig, a *architecture) error  { return c.t5(a, "T5ForConditionalGeneration") }
func hfMT5(c *hfConfig, a *architecture) error { return c.t5(a, "MT5ForConditionalGeneration") }

func (c *hfConfig) t5(a *architecture, head string) error {
	class, err := c.class(head)
	if err != nil {
		return err
	}
	err = c.numbers(
		hfNumber{&a.Hidden, "d_model", c.HiddenSize, 0},
		hfNumber{&a.Blocks, "num_layers", c.Layers, 0},
		hfNumber{&a.Heads, "num_heads", c.Heads, 0},
		hfNumber{&a.HeadSize, "d_kv", c.HeadSize, 64},
		hfNumber{&a.FFN, "d_ff", c.Intermediate, 0},
		hfNumber{&a.Vocab, "vocab_size", c.Vocabulary, 0},
		hfNumber{&a.Buckets, "relative_attention_num_buckets", c.Buckets, 32},
	)
	if err != nil {
		return err
	}
	a.Family, a.NoHead, a.Tied, a.Dropout = family.T5, class == c.base, true, c.DropoutRate // tied whatever the file says
	name := c.FeedForward
	if name, a.GatedFFN = strings.CutPrefix(name, "gated-"); a.GatedFFN && name == "gelu" {
		name = "gelu_new" // as T5 1.1 has it
	}
	if err := c.activation(a, name, "relu"); err != nil {
		return err
	}
	return c.numbers(hfNumber{&a.DecoderBlocks, "num_decoder_layers", c.DecoderLayers, a.Blocks})
}

func hfBART(c *hfConfig, a *architecture) error {
	return c.bart(a, family.BART, "BartForConditionalGeneration")
}

func hfMBART(c *hfConfig, a *architecture) error {
	return c.bart(a, family.MBART, "MBartForConditionalGeneration")
}

func hfPegasus(c *hfConfig, a *architecture) error {
	return c.bart(a, family.Pegasus, "PegasusForConditionalGeneration")
}

func hfMarian(c *hfConfig, a *architecture) error {
	if !orBool(c.SharedEmbedding, true) {
		return c.unknown("share_encoder_decoder_embeddings", "false")
	}
	return c.bart(a, family.Marian, "MarianMTModel")
}

func (c *hfConfig) bart(a *architecture, f family.Family, head string) error {
	class, err := c.class(head)
	if err != nil {
		return err
	}
	a.Family, a.NoHead = f, class == c.base
	if err := c.halves(a); err != nil {
		return err
	}
	return c.numbers(hfNumber{&a.Positions, "max_position_embeddings", c.Context, 1024})
}

func hfWhisper(c *hfConfig, a *architecture) error {
	class, err := c.class("WhisperForConditionalGeneration")
	if err != nil {
		return err
	}
	a.Family, a.NoHead = family.Whisper, class == c.base
	if err := c.halves(a); err != nil {
		return err
	}
	return c.numbers(
		hfNumber{&a.Channels, "num_mel_bins", c.MelBins, 80},
		hfNumber{&a.SourceLength, "max_source_positions", c.SourcePositions, 1500},
		hfNumber{&a.Positions, "max_target_positions", c.TargetPositions, 448},
	)
}

// halves reads what BART and Whisper have in common.
func (c *hfConfig) halves(a *architecture) error {
	if !orBool(c.Tied, true) {
		return c.unknown("tie_word_embeddings", "false")
	}
	err := c.numbers(
		hfNumber{&a.Hidden, "d_model", c.HiddenSize, 0},
		hfNumber{&a.Blocks, "encoder_layers", c.Layers, 0},
		hfNumber{&a.Heads, "encoder_attention_heads", c.Heads, 0},
		hfNumber{&a.FFN, "encoder_ffn_dim", c.Intermediate, 0},
		hfNumber{&a.Vocab, "vocab_size", c.Vocabulary, 0},
	)
	if err == nil {
		err = c.numbers(
			hfNumber{&a.DecoderBlocks, "decoder_layers", c.DecoderLayers, a.Blocks},
			hfNumber{&a.DecoderHeads, "decoder_attention_heads", c.DecoderHeads, a.Heads},
			hfNumber{&a.DecoderFFN, "decoder_ffn_dim", c.DecoderFFN, a.FFN},
		)
	}
	if err != nil {
		return err
	}
	a.Tied, a.Dropout, a.ScoreDropout = true, c.PlainDropout, c.ScoresDropout
	return c.activation(a, c.ActivationFunction, "gelu")
}
