package vision

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// BEiT is ViT with learned score biases by distance instead of positions, and learned factors on
// each part's output (arXiv:2106.08254; transformers' modeling_beit.py).
var BEiT = &family.Family{
	Name:   "BEiT",
	Layers: beit,
	Images: true,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "beit", Base: "BeitModel", Read: readBEiT}},
}

// beitSettings holds what only BEiT has.
type beitSettings struct {
	masked   bool // there is a token for masked patches
	placed   bool // positions are learned
	biased   bool // each block has biases of its own
	shared   bool // all blocks share one bias
	scaled   bool // learned factors multiply each part's output
	predicts bool // the head predicts the tokens of masked patches
	averaged bool // the output is the mean of the patches, not the class token
}

func beit(c family.Transformer) []tape.Layer {
	own := family.Own[beitSettings](c)
	if own == nil {
		own = &beitSettings{biased: true, scaled: true, averaged: true}
	}
	side := min(c.Side(), setting.MaxField)
	cut := patches{
		projection: layer.Conv2d{In: setting.Or(c.Channels, 3), Out: c.Hidden, Kernel: c.Patch, Stride: c.Patch},
		tokens:     min(setting.Product(side, side), setting.MaxField-1) + 1, hidden: c.Hidden, dropout: c.Drop(), unplaced: !own.placed, masked: own.masked,
	}
	around := min(2*side-1, 1<<14)
	table := func(shared bool) *layer.RelativeBias { // also for the class token to patches, patches to it, and it to itself
		bias := &layer.RelativeBias{Buckets: around*around + 3, Once: true, Name: "attention.relative_position_bias.relative_position_bias_table"}
		if shared {
			bias.Name = "relative_position_bias.relative_position_bias_table"
		}
		return bias
	}
	var all *layer.RelativeBias
	if own.shared {
		all = table(true)
	}
	blocks := make(tape.Sequential, 0, min(max(0, c.Blocks), family.MaxBlocks))
	for range cap(blocks) {
		bias := all
		if own.biased {
			bias = table(false)
		}
		blocks = append(blocks, beitBlock(c, own, bias))
	}
	body := tape.Sequential{tape.As("embeddings", cut), tape.As("encoder.layer", blocks)}
	if own.predicts {
		if !own.averaged {
			body = append(body, tape.As("layernorm", layer.LayerNorm{Size: c.Hidden}))
		}
		return []tape.Layer{
			tape.As("beit", body), tape.As("layernorm", layer.LayerNorm{Size: c.Hidden}), tape.Inline(patchesAlone{side}), tape.Inline(contiguous{}),
			tape.As("lm_head", layer.Output{Linear: layer.Linear{In: c.Hidden, Out: c.Vocab}}),
		}
	}
	if own.averaged {
		body = append(body, tape.Inline(meanPlace{}), tape.As("pooler.layernorm", layer.LayerNorm{Size: c.Hidden}))
	} else {
		body = append(body, tape.As("layernorm", layer.LayerNorm{Size: c.Hidden}), tape.Inline(family.First{}))
	}
	if c.Classes == 0 || c.NoHead {
		return []tape.Layer{tape.Inline(body)}
	}
	return []tape.Layer{tape.As("beit", body), tape.As("classifier", layer.Linear{In: c.Hidden, Out: c.Classes})}
}

func beitBlock(c family.Transformer, own *beitSettings, bias *layer.RelativeBias) tape.Layer {
	attention := layer.Attention{
		Hidden: c.Hidden, Heads: c.Heads, HeadSize: c.HeadSize, Plain: c.Plain, Dropout: c.Dropout, NoKeyBias: true, Bias: bias,
		Names: &layer.AttentionNames{Q: "attention.query", K: "attention.key", V: "attention.value", Out: "output.dense"},
	}
	first := []tape.Layer{tape.As("layernorm_before", layer.LayerNorm{Size: c.Hidden}), tape.As("attention", attention), tape.Inline(c.Drop())}
	second := []tape.Layer{
		tape.As("layernorm_after", layer.LayerNorm{Size: c.Hidden}),
		tape.Inline(layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Names: &[3]string{"intermediate.dense", "intermediate.intermediate_act_fn", "output.dense"}}),
		tape.Inline(c.Drop()),
	}
	if own.scaled {
		first, second = append(first, tape.As("lambda_1", layerScale{c.Hidden})), append(second, tape.As("lambda_2", layerScale{c.Hidden}))
	}
	return tape.Sequential{tape.Skip(first...), tape.Skip(second...)}
}

func readBEiT(c *family.Config, a *family.Model) {
	const predicts = "BeitForMaskedImageModeling"
	class := c.Class("BeitForImageClassification", predicts)
	c.Encoder(a)
	c.Pixels(&a.Transformer, 16)
	own := &beitSettings{
		masked: c.Flag("use_mask_token", false), placed: c.Flag("use_absolute_position_embeddings", false),
		biased: c.Flag("use_relative_position_bias", false), shared: c.Flag("use_shared_relative_position_bias", false),
		scaled: c.Ratio("layer_scale_init_value", 0.1) > 0, averaged: c.Flag("use_mean_pooling", true),
		predicts: class == predicts,
	}
	a.Own = own
	switch {
	case !own.predicts:
		a.Classes = c.ClassesOf(class)
	case !own.masked:
		c.Unknown("use_mask_token", "false, with which "+predicts+" cannot mask a patch")
	default:
		c.Number(&a.Vocab, "vocab_size", 8192)
	}
}
