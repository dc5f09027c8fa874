package encoder

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/family"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// RoBERTaPreLayerNorm is RoBERTa with norms before each part (transformers' modeling_roberta_prelayernorm.py).
var RoBERTaPreLayerNorm = &family.Family{
	Name:    "RoBERTa PreLayerNorm",
	Padding: 2,
	Layers:  robertaPreLayerNorm,
	Role:    family.Encoder,
	Types:   []family.Type{{Name: "roberta-prelayernorm", Base: "RobertaPreLayerNormModel", Read: readBERT}},
}

// XLMRoBERTaXL is RoBERTa with norms before each part, and none of the embeddings (modeling_xlm_roberta_xl.py).
var XLMRoBERTaXL = &family.Family{
	Name:    "XLM-RoBERTa XL",
	Padding: 2,
	Layers:  xlmRobertaXL,
	Role:    family.Encoder,
	Types:   []family.Type{{Name: "xlm-roberta-xl", Base: "XLMRobertaXLModel", Read: readBERT}},
}

// MegatronBERT is BERT with norms before each part, and none of the embeddings (modeling_megatron_bert.py).
var MegatronBERT = &family.Family{
	Name:   "Megatron-BERT",
	Layers: megatronBERT,
	Role:   family.Encoder,
	Types:  []family.Type{{Name: "megatron-bert", Base: "MegatronBertModel", Read: readBERT}},
}

func robertaPreLayerNorm(c family.Transformer) []tape.Layer {
	norm := tape.As("LayerNorm", layer.LayerNorm{Size: c.Hidden})
	attention, dense, out := preNormParts(c, false)
	block := tape.Sequential{
		tape.As("attention", tape.Residual{Body: tape.Sequential{norm, attention, out(c.Hidden, c.Drop())}}),
		tape.Skip(tape.As("intermediate", append(tape.Sequential{norm}, dense...)), out(c.FFN, c.Drop())),
	}
	body := text{added: bertEmbeddings(c, robertaPositions(c)), blocks: c.Blocks, block: block}.layers(c)
	return robertaHeads(c, append(body, norm))
}

func xlmRobertaXL(c family.Transformer) []tape.Layer {
	norm := layer.LayerNorm{Size: c.Hidden}
	attention, dense, out := preNormParts(c, false)
	block := tape.Sequential{
		tape.As("attention", tape.Residual{Body: tape.Sequential{tape.As("self_attn_layer_norm", norm), attention, out(c.Hidden, c.Drop())}}),
		tape.Skip(tape.As("LayerNorm", norm), tape.As("intermediate", dense), out(c.FFN, tape.Identity{})),
	}
	return robertaHeads(c, text{added: bertEmbeddings(c, robertaPositions(c)), bare: true, blocks: c.Blocks, block: block, last: []tape.Layer{tape.As("LayerNorm", norm)}}.layers(c))
}

func megatronBERT(c family.Transformer) []tape.Layer {
	norm := tape.As("ln", layer.LayerNorm{Size: c.Hidden})
	attention, dense, out := preNormParts(c, true)
	block := tape.Sequential{
		tape.As("attention", tape.Residual{Body: tape.Sequential{norm, attention, out(c.Hidden, c.Drop())}}),
		tape.Skip(norm, tape.As("intermediate", dense), out(c.FFN, c.Drop())),
	}
	positions := family.Positions{Num: c.Positions, Dim: c.Hidden, Buffered: true}
	body := text{added: bertEmbeddings(c, positions), bare: true, blocks: c.Blocks, block: block, last: []tape.Layer{norm}}.layers(c)
	return append(body, bertHeads(c)...)
}

// preNormParts returns attention, the first projection of the MLP with its activation, and a function that returns the
// last projection of a part, with its dropout. eager means that scores are in memory whatever attention the model is
// loaded with.
func preNormParts(c family.Transformer, eager bool) (attention tape.Layer, dense tape.Sequential, out func(in int, dropout tape.Layer) tape.Layer) {
	self := bertAttention(c)
	self.Eager, self.Narrow = eager, eager
	attention = tape.As("self", self)
	dense = tape.Sequential{
		tape.As("dense", layer.Linear{In: c.Hidden, Out: c.FFN, Split: layer.ByColumns}),
		tape.As("intermediate_act_fn", c.Activation.Layer(layer.UseGELU)),
	}
	return attention, dense, func(in int, dropout tape.Layer) tape.Layer {
		return tape.As("output", tape.Sequential{
			tape.As("dense", layer.Linear{In: min(in, setting.MaxField), Out: c.Hidden, Split: layer.ByRows}), tape.As("dropout", dropout),
		})
	}
}
