package checkpoint

import (
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
)

// encoder reads what BERT and ViT have in common.
func (c *hfConfig) encoder(a *architecture) error {
	err := c.numbers(
		hfNumber{&a.Hidden, "hidden_size", c.HiddenSize, 0},
		hfNumber{&a.Blocks, "num_hidden_layers", c.Layers, 0},
		hfNumber{&a.Heads, "num_attention_heads", c.Heads, 0},
		hfNumber{&a.FFN, "intermediate_size", c.Intermediate, 0},
	)
	if err != nil {
		return err
	}
	a.Dropout = max(c.HiddenDropout, c.ProbsDropout)
	return c.activation(a, c.HiddenAct, "gelu")
}

func hfBERT(c *hfConfig, a *architecture) error {
	return c.bert(a, family.BERT, "Bert")
}

func hfRoBERTa(c *hfConfig, a *architecture) error { return c.bert(a, family.RoBERTa, "Roberta") }
func hfXLMRoBERTa(c *hfConfig, a *architecture) error {
	return c.bert(a, family.RoBERTa, "XLMRoberta")
}

func hfCamemBERT(c *hfConfig, a *architecture) error {
	return c.bert(a, family.RoBERTa, "Camembert")
}

// hfALBERT reads ALBERT, all of whose blocks share their parameters.
func hfALBERT(c *hfConfig, a *architecture) error {
	if *orNumber(c.LayerGroups, 1) != 1 || *orNumber(c.InnerGroups, 1) != 1 {
		return c.unknown("num_hidden_groups, inner_group_num", "more than 1")
	}
	if err := c.bert(a, family.ALBERT, "Albert"); err != nil {
		return err
	}
	a.HeadDropout = c.LabelDropout
	return c.numbers(hfNumber{&a.EmbedDim, "embedding_size", c.EmbedWidth, 128})
}

func hfELECTRA(c *hfConfig, a *architecture) error {
	class, err := c.class("ElectraForPreTraining", "ElectraForMaskedLM", "ElectraForSequenceClassification")
	if err != nil {
		return err
	}
	c.Architectures = nil
	if err := c.bert(a, family.ELECTRA, "Electra"); err != nil {
		return err
	}
	switch class {
	case "ElectraForPreTraining":
		a.Detects = true
	case "ElectraForMaskedLM":
		a.MaskedLM = true
	case "ElectraForSequenceClassification":
		a.Classes = c.labels()
	}
	return c.numbers(hfNumber{&a.EmbedDim, "embedding_size", c.EmbedWidth, 128})
}

// hfModernBERT reads ModernBERT, in which each third layer attends to all.
func hfModernBERT(c *hfConfig, a *architecture) error {
	class, err := c.class("ModernBertForMaskedLM", "ModernBertForSequenceClassification")
	if err != nil {
		return err
	}
	if orBool(c.AttentionBias, false) || orBool(c.MLPBias, false) || orBool(c.NormBias, false) || orBool(c.ClassBias, false) || !orBool(c.DecoderBias, true) {
		return c.unknown("attention_bias, mlp_bias, norm_bias, classifier_bias, decoder_bias", "such a value")
	}
	c.HiddenAct = c.HiddenActivation
	if err := c.encoder(a); err != nil {
		return err
	}
	a.Family, a.Tied, a.NoHead, a.Dropout = family.ModernBERT, orBool(c.Tied, true), class == c.base, 0
	if class == "ModernBertForSequenceClassification" {
		a.Classes = c.labels()
	}
	c.Window = new(max(1, *orNumber(c.Near, 128)/2))
	every := max(1, int(*orNumber(c.FarEvery, 3)))
	if err := c.windows(a, func(layer int) bool { return layer%every == 0 }); err != nil {
		return err
	}
	return c.numbers(hfNumber{&a.Vocab, "vocab_size", c.Vocabulary, 0})
}

func hfMPNet(c *hfConfig, a *architecture) error {
	class, err := c.class("MPNetForMaskedLM", "MPNetForSequenceClassification")
	if err != nil {
		return err
	}
	if err := c.encoder(a); err != nil {
		return err
	}
	a.Family, a.Tied, a.MaskedLM = family.MPNet, orBool(c.Tied, true), class == "MPNetForMaskedLM"
	if class == "MPNetForSequenceClassification" {
		a.Classes = c.labels()
	}
	return c.numbers(
		hfNumber{&a.Vocab, "vocab_size", c.Vocabulary, 0},
		hfNumber{&a.Positions, "max_position_embeddings", c.Context, 512},
		hfNumber{&a.Buckets, "relative_attention_num_buckets", c.Buckets, 32},
	)
}

// bert reads BERT and its successors, whose classes begin with a name.
func (c *hfConfig) bert(a *architecture, f family.Family, name string) error {
	class, err := c.class(name+"ForMaskedLM", name+"ForSequenceClassification", name+"ForTokenClassification")
	if err != nil {
		return err
	}
	class = strings.TrimPrefix(class, name)
	if p := c.PositionEncoding; p != "" && p != "absolute" {
		return c.unknown("position_embedding_type", p)
	}
	if orBool(c.CrossAttention, false) {
		return c.unknown("add_cross_attention", "true")
	}
	if err := c.encoder(a); err != nil {
		return err
	}
	err = c.numbers(
		hfNumber{&a.Vocab, "vocab_size", c.Vocabulary, 0},
		hfNumber{&a.Positions, "max_position_embeddings", c.Context, 0},
		hfNumber{&a.Types, "type_vocab_size", c.TokenTypes, 2},
	)
	a.Family, a.Tied = f, orBool(c.Tied, true)
	switch class { // NoHead is without the pooler
	case "ForMaskedLM":
		a.NoHead, a.MaskedLM = true, true
	case "ForSequenceClassification", "ForTokenClassification":
		a.NoHead = class == "ForTokenClassification"
		a.Classes = c.labels()
	}
	return err
}

func hfDistilBERT(c *hfConfig, a *architecture) error {
	class, err := c.class("DistilBertForMaskedLM", "DistilBertForSequenceClassification")
	if err != nil {
		return err
	}
	if err := c.encoder(a); err != nil {
		return err
	}
	a.Family, a.Tied, a.Dropout = family.DistilBERT, orBool(c.Tied, true), max(c.PlainDropout, c.ScoresDropout)
	switch class {
	case "DistilBertForMaskedLM":
		a.MaskedLM = true
	case "DistilBertForSequenceClassification":
		a.Classes, a.HeadDropout = c.labels(), c.ClassDropout
	}
	if err := c.activation(a, c.ActivationName, "gelu"); err != nil {
		return err
	}
	return c.numbers(
		hfNumber{&a.Vocab, "vocab_size", c.Vocabulary, 0},
		hfNumber{&a.Positions, "max_position_embeddings", c.Context, 512},
	)
}

func hfViT(c *hfConfig, a *architecture) error {
	return c.vit(a, family.ViT, "ViTForImageClassification")
}

func hfDeiT(c *hfConfig, a *architecture) error {
	return c.vit(a, family.DeiT, "DeiTForImageClassification", "DeiTForImageClassificationWithTeacher")
}

// vit reads ViT and DeiT.
func (c *hfConfig) vit(a *architecture, f family.Family, heads ...string) error {
	class, err := c.class(heads...)
	if err != nil {
		return err
	}
	if !orBool(c.QKVBias, true) {
		return c.unknown("qkv_bias", "false")
	}
	if err := c.encoder(a); err != nil {
		return err
	}
	a.Family, a.Pooler, a.Teacher = f, class == c.base, strings.HasSuffix(class, "WithTeacher")
	if !a.Pooler {
		a.Classes = c.labels()
	}
	return c.numbers(
		hfNumber{&a.Image, "image_size", c.ImageSize, 224},
		hfNumber{&a.Patch, "patch_size", c.PatchSize, 16},
		hfNumber{&a.Channels, "num_channels", c.Channels, 3},
	)
}
