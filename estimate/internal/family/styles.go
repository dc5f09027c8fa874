package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// styles has the families that are decoders; the others have functions of their own. What a row
// leaves out is as in Llama.
var styles = map[Family]style{
	Llama:  {},
	Gemma:  {embedded: embedScaled, mlp: gemmaMLP, norm: gemmaNorm},
	Gemma2: {embedded: embedScaled, mlp: gemmaMLP, norm: gemmaNorm, attention: gemma2Attention, block: normedAround("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")},
	OLMo2:  {norm: lateNorm, attention: olmo2Attention, block: normedAfter},
	GPTOSS: {norm: lateNorm, attention: ossAttention, mixture: func(_ Transformer, m layer.MoE) tape.Layer { return ossMoE{m} }},
	Phi: {names: decoderNames{last: "final_layernorm"}, norm: layerNorm, embedded: phiEmbedded,
		block: sideBySide("resid_dropout", "resid_dropout", "input_layernorm"), attention: phiAttention, mlp: phiMLP},
	Phi3: {block: normedBefore("resid_attn_dropout", "resid_mlp_dropout"), attention: packedAttention, mlp: packedMLP},
	GLM:  {mlp: packedMLP, attention: glmAttention},
	GLM4: {mlp: packedMLP, attention: glmAttention, block: normedAround("input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")},
	ChatGLM: {names: decoderNames{root: "transformer", embed: "embedding.word_embeddings", blocks: "encoder.layers", last: "encoder.final_layernorm", attention: "self_attention", head: "output_layer"},
		norm: lateNorm, mlp: chatGLMMLP, attention: chatGLMAttention},
	GLM4MoE:    {attention: joinedAttention},
	SeedOSS:    {block: starcoderBlock, attention: seedAttention},
	Ernie:      {attention: ernieAttention},
	Ministral3: {attention: func(_ Transformer, a *layer.Attention) { a.Placed = true }},
	HunYuan:    {attention: hunyuanAttention},
	Arcee:      {mlp: nemotronMLP},
	EXAONE4:    {block: normedAfter},
	MiniMaxM2:  {attention: minimaxAttention, mixture: routedBy(layer.LoneSigmoid)},
	GraniteMoE: {names: decoderNames{mlp: "block_sparse_moe"}, embedded: multiplied, block: multipliedBlock, after: multiplied, mixture: routedBy(layer.TopRouter)},
	Granite:    {embedded: multiplied, block: multipliedBlock, after: multiplied},
	Cohere:     {norm: cohereNorm, block: sideBySide("", "", "input_layernorm"), attention: cohereAttention, after: multiplied},
	Starcoder2: {norm: layerNorm, mlp: plainMLP("c_fc", "act", "c_proj"), block: starcoderBlock},
	StableLM:   {norm: layerNorm, block: stableBlock, attention: stableAttention},
	OLMo:       {norm: olmoNorm, attention: olmoAttention},
	Nemotron:   {norm: shiftedLayerNorm, mlp: nemotronMLP, attention: joinedAttention},
	PhiMoE:     {norm: layerNorm, mixture: routedBy(layer.SparseMixer)},
	Llama4:     {names: decoderNames{mlp: "feed_forward"}, attention: llama4Attention, mixture: func(_ Transformer, m layer.MoE) tape.Layer { return llama4MoE{m} }},
	Gemma3n:    {embedded: gemma3nEmbedded, mlp: gemmaMLP, norm: gemma3nNorm, attention: gemma3nAttention, block: gemma3nBlock, last: gemma3nLast},
	LFM2:       {names: decoderNames{last: "embedding_norm", mlp: "feed_forward"}, block: normedBeforeAs("operator_norm", "ffn_norm", "", ""), mlp: lfm2MLP, attention: lfm2Attention},
	Qwen3Next:  {norm: gemmaNorm, attention: qwen3NextAttention},
	GPTNeoX: {names: decoderNames{root: "gpt_neox", embed: "embed_in", last: "final_layer_norm", attention: "attention"}, norm: layerNorm,
		embedded: dropoutAs("emb_dropout"), block: neoxBlock, attention: neoxAttention, mlp: plainMLP("dense_h_to_4h", "act", "dense_4h_to_h")},
	Falcon: {names: decoderNames{root: "transformer", embed: "word_embeddings", blocks: "h", last: "ln_f", attention: "self_attention"}, norm: layerNorm,
		block: falconBlock, attention: falconAttention, mlp: plainMLP("dense_h_to_4h", "act", "dense_4h_to_h")},
	Bloom: {names: decoderNames{root: "transformer", embed: "word_embeddings", blocks: "h", last: "ln_f", attention: "self_attention"}, norm: layerNorm,
		embedded: bloomEmbedded, block: bloomBlock, still: true, mlp: bloomMLP, attention: bloomAttention},
	OPT: {names: decoderNames{root: "model.decoder", last: "final_layer_norm"}, norm: layerNorm,
		embedded: optEmbedded, block: optBlock, still: true, attention: optAttention, mlp: optMLP, last: optLast},
}

func layerNorm(c Transformer) tape.Layer { return layer.LayerNorm{Size: c.Hidden} }

func lateNorm(c Transformer) tape.Layer {
	return layer.RMSNorm{Size: c.Hidden, Unfused: true, Late: true}
}

func gemmaNorm(c Transformer) tape.Layer {
	return layer.RMSNorm{Size: c.Hidden, Unfused: true, Shifted: true}
}

func cohereNorm(c Transformer) tape.Layer { return layer.WideNorm{Heads: 1, Size: c.Hidden} }

func olmoNorm(c Transformer) tape.Layer { return layer.PlainNorm{Size: c.Hidden} }

func shiftedLayerNorm(c Transformer) tape.Layer { return layer.ShiftedNorm{Size: c.Hidden} }

func embedScaled(Transformer) []tape.Layer {
	return []tape.Layer{tape.Named{Name: "embed_scale", Layer: scale{}}}
}

func multiplied(Transformer) []tape.Layer { return []tape.Layer{tape.Inlined{Layer: layer.Multiple{}}} }

func dropoutAs(name string) func(Transformer) []tape.Layer {
	return func(c Transformer) []tape.Layer { return []tape.Layer{tape.Named{Name: name, Layer: c.dropout()}} }
}

func phiEmbedded(c Transformer) []tape.Layer {
	if c.PlainEmbeddings {
		c.Dropout = 0
	}
	return []tape.Layer{tape.Named{Name: "embed_dropout", Layer: c.dropout()}}
}

func bloomEmbedded(c Transformer) []tape.Layer {
	return []tape.Layer{tape.Named{Name: "word_embeddings_layernorm", Layer: layer.LayerNorm{Size: c.Hidden}}}
}

// optPadding is the number of positions that OPT's table has before the first.
const optPadding = 2

func optEmbedded(c Transformer) []tape.Layer {
	var layers []tape.Layer
	if c.EmbedDim != 0 && c.EmbedDim != c.Hidden {
		layers = append(layers, tape.Named{Name: "project_in", Layer: layer.Linear{In: c.EmbedDim, Out: c.Hidden, NoBias: true}})
	}
	return append(layers, tape.Named{Name: "embed_positions", Layer: positions{Num: c.Positions + optPadding, Dim: c.Hidden, each: true, padding: optPadding}})
}

// optLast is the last norm, which models with norms after each part do not have, and the way back to the
// embedding's width.
func optLast(c Transformer) []tape.Layer {
	var layers []tape.Layer
	if !c.NormAfter {
		layers = append(layers, tape.Named{Name: "final_layer_norm", Layer: layer.LayerNorm{Size: c.Hidden}})
	}
	if c.EmbedDim != 0 && c.EmbedDim != c.Hidden {
		layers = append(layers, tape.Named{Name: "project_out", Layer: layer.Linear{In: c.Hidden, Out: c.EmbedDim, NoBias: true}})
	}
	return layers
}

func gemmaMLP(c Transformer) tape.Layer {
	return layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseGELUTanh), Bias: c.Bias, Thinned: c.thinned}
}

func packedMLP(c Transformer) tape.Layer {
	return layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Packed: true}
}

func chatGLMMLP(c Transformer) tape.Layer {
	return layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Packed: true, Names: &layer.GatedNames{Both: "dense_h_to_4h", Down: "dense_4h_to_h"}}
}

func phiMLP(c Transformer) tape.Layer {
	return layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseNewGELU)}
}

// plainMLP is an MLP without a gate, whose parts have these names.
func plainMLP(up, act, down string) func(Transformer) tape.Layer {
	return func(c Transformer) tape.Layer {
		return layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, NoBias: !c.Bias, Names: &[3]string{up, act, down}}
	}
}

func optMLP(c Transformer) tape.Layer {
	c.Activation = setting.Or(c.Activation, layer.UseReLU)
	return plainMLP("fc1", "activation_fn", "fc2")(c)
}

func bloomMLP(c Transformer) tape.Layer {
	c.Activation = setting.Or(c.Activation, layer.UseBloomGELU)
	return plainMLP("dense_h_to_4h", "gelu_impl", "dense_4h_to_h")(c)
}

func nemotronMLP(c Transformer) tape.Layer {
	return layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseSquaredReLU), NoBias: !c.Bias, Names: &[3]string{"up_proj", "act_fn", "down_proj"}}
}

// routedBy is the usual mixture with a router.
func routedBy(r layer.Router) func(Transformer, layer.MoE) tape.Layer {
	return func(_ Transformer, m layer.MoE) tape.Layer {
		m.Router = r
		return m
	}
}

func gemma2Attention(_ Transformer, a *layer.Attention) { a.Masks = 2 }

func packedAttention(_ Transformer, a *layer.Attention) {
	a.Packed, a.Sliced, a.Joined = true, true, true
}

func joinedAttention(c Transformer, a *layer.Attention) {
	a.Joined = a.RotaryDim != 0 && a.RotaryDim < a.Size()
}

func olmoAttention(c Transformer, a *layer.Attention) { a.Clipped, a.Tables = c.ClipQKV, alloc.Float32 }

// olmo2Attention has tables for layers with a window and for those without, if there are both.
func olmo2Attention(c Transformer, a *layer.Attention) {
	a.QKNorm, a.LateNorm, a.Tables = layer.NormAllHeads, true, alloc.Float32
	for _, kind := range c.Kinds {
		if kind&Windowed != 0 {
			a.Rotations = 2
		}
	}
}

func glmAttention(c Transformer, a *layer.Attention) {
	joinedAttention(c, a)
	a.Anew = true
}

func chatGLMAttention(c Transformer, a *layer.Attention) {
	joinedAttention(c, a)
	a.Packed, a.Names = true, packedNames
}

func seedAttention(c Transformer, a *layer.Attention) { a.Dropout = c.ScoreDropout }

func ernieAttention(_ Transformer, a *layer.Attention) { a.Tables, a.Anew = alloc.Float32, true }

func hunyuanAttention(_ Transformer, a *layer.Attention) {
	a.QKNorm, a.NormLast = layer.NormHeads, true
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Packed: "", Out: "o_proj", QNorm: "query_layernorm", KNorm: "key_layernorm"}
}

func minimaxAttention(_ Transformer, a *layer.Attention) {
	a.Joined, a.QKNorm = true, layer.NormAllHeads
}

func cohereAttention(c Transformer, a *layer.Attention) {
	if c.QKNorm != layer.NoQKNorm {
		a.HeadNorm = func(heads, size int) tape.Layer { return layer.WideNorm{Heads: heads, Size: size} }
	}
}

func stableAttention(c Transformer, a *layer.Attention) {
	joinedAttention(c, a)
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Packed: "", Out: "o_proj", QNorm: "q_layernorm", KNorm: "k_layernorm"}
	if c.QKNorm != layer.NoQKNorm {
		a.HeadNorm = func(heads, size int) tape.Layer { return layer.EachHead{Heads: heads, Size: size} }
	}
}

func ossAttention(_ Transformer, a *layer.Attention) {
	a.Masks, a.Sinks, a.Paired, a.NoBias, a.NoOutBias = 2, true, true, false, false
}

func phiAttention(c Transformer, a *layer.Attention) {
	a.NoBias, a.NoOutBias, a.Joined = false, false, true
	a.RotaryDim = c.rotated()
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "dense"}
}

// packedNames are those of GPT-NeoX and its successors.
var packedNames = &layer.AttentionNames{Packed: "query_key_value", Out: "dense"}

func neoxAttention(_ Transformer, a *layer.Attention) {
	a.Packed, a.Joined, a.Names = true, true, packedNames
}

func falconAttention(c Transformer, a *layer.Attention) {
	a.Packed, a.Sliced, a.Names, a.Copied, a.Masked = true, true, packedNames, true, true
	a.Spread = c.TwoNorms
	if c.Alibi {
		a.Rotary, a.Biased, a.Copied = false, true, false
	}
}

func bloomAttention(_ Transformer, a *layer.Attention) {
	a.Packed, a.Sliced, a.Names, a.Batched = true, true, packedNames, true
}

func optAttention(_ Transformer, a *layer.Attention) {
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "out_proj"}
	a.Scaled = true
}

func starcoderBlock(c Transformer, b blockParts) tape.Layer {
	return decoderBlock{tape.Sequential{
		tape.Skip(tape.Named{Name: "input_layernorm", Layer: b.norm}, b.attention, tape.Inlined{Layer: b.dropout}),
		tape.Skip(tape.Named{Name: "post_attention_layernorm", Layer: b.norm}, b.mlp, tape.Inlined{Layer: b.dropout}),
	}}
}

// multipliedBlock is Llama's with a factor on what each part adds.
func multipliedBlock(_ Transformer, b blockParts) tape.Layer {
	return decoderBlock{tape.Sequential{
		tape.Skip(tape.Named{Name: "input_layernorm", Layer: b.norm}, b.attention, tape.Inlined{Layer: layer.Multiple{}}),
		tape.Skip(tape.Named{Name: "post_attention_layernorm", Layer: b.norm}, b.mlp, tape.Inlined{Layer: layer.Multiple{}}),
	}}
}

func stableBlock(c Transformer, b blockParts) tape.Layer {
	if c.Parallel {
		return sideBySide("", "dropout", "input_layernorm")(c, b)
	}
	return normedBefore("", "dropout")(c, b)
}

func neoxBlock(c Transformer, b blockParts) tape.Layer {
	if c.Parallel {
		return sideBySide("post_attention_dropout", "post_mlp_dropout", "input_layernorm", "post_attention_layernorm")(c, b)
	}
	return normedBefore("post_attention_dropout", "post_mlp_dropout")(c, b)
}

func falconBlock(c Transformer, b blockParts) tape.Layer {
	switch {
	case c.Parallel && c.TwoNorms:
		return sideBySide("", "", "ln_attn", "ln_mlp")(c, b)
	case c.Parallel:
		return sideBySide("", "", "input_layernorm")(c, b)
	default:
		return normedBefore("", "")(c, b)
	}
}

func bloomBlock(c Transformer, b blockParts) tape.Layer { return normedBefore("", "")(c, b) }

// optBlock has the parts of the MLP beside the attention.
func optBlock(c Transformer, b blockParts) tape.Layer {
	attention, mlp := tape.Sequential{b.attention, tape.Inlined{Layer: b.dropout}}, tape.Sequential{tape.Inlined{Layer: b.mlp.Layer}, tape.Inlined{Layer: b.dropout}}
	first, second := tape.Named{Name: "self_attn_layer_norm", Layer: b.norm}, tape.Named{Name: "final_layer_norm", Layer: b.norm}
	if c.NormAfter {
		return decoderBlock{tape.Sequential{tape.Skip(attention...), first, tape.Skip(mlp...), second}}
	}
	return decoderBlock{tape.Sequential{tape.Skip(append(tape.Sequential{first}, attention...)...), tape.Skip(append(tape.Sequential{second}, mlp...)...)}}
}
