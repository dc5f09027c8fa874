package estimate

import "github.com/gpumemtrack/gpumemtrack/alloc"

// styles has the families that are decoders; the others have functions of their own. What a row
// leaves out is as in Llama.
var styles = map[Family]style{
	Llama:  {},
	Gemma:  {embedded: embedScaled, mlp: gemmaMLP, norm: gemmaNorm},
	Gemma2: {embedded: embedScaled, mlp: gemmaMLP, norm: gemmaNorm, attention: gemma2Attention, block: normedAround("input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm", "post_feedforward_layernorm")},
	OLMo2:  {norm: lateNorm, attention: olmo2Attention, block: normedAfter},
	GPTOSS: {norm: lateNorm, attention: ossAttention, mixture: func(_ Transformer, m MoE) Layer { return ossMoE{m} }},
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
	Ministral3: {attention: func(_ Transformer, a *Attention) { a.placed = true }},
	HunYuan:    {attention: hunyuanAttention},
	Arcee:      {mlp: nemotronMLP},
	EXAONE4:    {block: normedAfter},
	MiniMaxM2:  {attention: minimaxAttention, mixture: routedBy(loneSigmoid)},
	GraniteMoE: {names: decoderNames{mlp: "block_sparse_moe"}, embedded: multiplied, block: multipliedBlock, after: multiplied, mixture: routedBy(topRouter)},
	Granite:    {embedded: multiplied, block: multipliedBlock, after: multiplied},
	Cohere:     {norm: cohereNorm, block: sideBySide("", "", "input_layernorm"), attention: cohereAttention, after: multiplied},
	Starcoder2: {norm: layerNorm, mlp: plainMLP("c_fc", "act", "c_proj"), block: starcoderBlock},
	StableLM:   {norm: layerNorm, block: stableBlock, attention: stableAttention},
	OLMo:       {norm: olmoNorm, attention: olmoAttention},
	Nemotron:   {norm: shiftedLayerNorm, mlp: nemotronMLP, attention: joinedAttention},
	PhiMoE:     {norm: layerNorm, mixture: routedBy(sparseMixer)},
	Llama4:     {names: decoderNames{mlp: "feed_forward"}, attention: llama4Attention, mixture: func(_ Transformer, m MoE) Layer { return llama4MoE{m} }},
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

func layerNorm(c Transformer) Layer  { return LayerNorm{Size: c.Hidden} }
func lateNorm(c Transformer) Layer   { return RMSNorm{Size: c.Hidden, Unfused: true, Late: true} }
func gemmaNorm(c Transformer) Layer  { return RMSNorm{Size: c.Hidden, Unfused: true, Shifted: true} }
func cohereNorm(c Transformer) Layer { return wideNorm{Heads: 1, Size: c.Hidden} }
func olmoNorm(c Transformer) Layer   { return plainNorm{c.Hidden} }

func shiftedLayerNorm(c Transformer) Layer { return shiftedNorm{c.Hidden} }

func embedScaled(Transformer) []Layer { return []Layer{Named{"embed_scale", scale{}}} }
func multiplied(Transformer) []Layer  { return []Layer{inline{multiple{}}} }

func dropoutAs(name string) func(Transformer) []Layer {
	return func(c Transformer) []Layer { return []Layer{Named{name, c.dropout()}} }
}

func phiEmbedded(c Transformer) []Layer {
	if c.PlainEmbeddings {
		c.Dropout = 0
	}
	return []Layer{Named{"embed_dropout", c.dropout()}}
}

func bloomEmbedded(c Transformer) []Layer {
	return []Layer{Named{"word_embeddings_layernorm", LayerNorm{Size: c.Hidden}}}
}

// optPadding is the number of positions that OPT's table has before the first.
const optPadding = 2

func optEmbedded(c Transformer) []Layer {
	var layers []Layer
	if c.EmbedDim != 0 && c.EmbedDim != c.Hidden {
		layers = append(layers, Named{"project_in", Linear{In: c.EmbedDim, Out: c.Hidden, NoBias: true}})
	}
	return append(layers, Named{"embed_positions", positions{Num: c.Positions + optPadding, Dim: c.Hidden, each: true, padding: optPadding}})
}

// optLast is the last norm, which models with norms after each part do not have, and the way back to the
// embedding's width.
func optLast(c Transformer) []Layer {
	var layers []Layer
	if !c.NormAfter {
		layers = append(layers, Named{"final_layer_norm", LayerNorm{Size: c.Hidden}})
	}
	if c.EmbedDim != 0 && c.EmbedDim != c.Hidden {
		layers = append(layers, Named{"project_out", Linear{In: c.Hidden, Out: c.EmbedDim, NoBias: true}})
	}
	return layers
}

func gemmaMLP(c Transformer) Layer {
	return GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: or(c.Activation, UseGELUTanh), Bias: c.Bias, thinned: c.thinned}
}

func packedMLP(c Transformer) Layer {
	return GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Packed: true}
}

func chatGLMMLP(c Transformer) Layer {
	return GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Packed: true, names: &gatedNames{both: "dense_h_to_4h", down: "dense_4h_to_h"}}
}

func phiMLP(c Transformer) Layer {
	return MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: or(c.Activation, UseNewGELU)}
}

// plainMLP is an MLP without a gate, whose parts have these names.
func plainMLP(up, act, down string) func(Transformer) Layer {
	return func(c Transformer) Layer {
		return MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, NoBias: !c.Bias, names: &[3]string{up, act, down}}
	}
}

func optMLP(c Transformer) Layer {
	c.Activation = or(c.Activation, UseReLU)
	return plainMLP("fc1", "activation_fn", "fc2")(c)
}

func bloomMLP(c Transformer) Layer {
	c.Activation = or(c.Activation, useBloomGELU)
	return plainMLP("dense_h_to_4h", "gelu_impl", "dense_4h_to_h")(c)
}

func nemotronMLP(c Transformer) Layer {
	return MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: or(c.Activation, UseSquaredReLU), NoBias: !c.Bias, names: &[3]string{"up_proj", "act_fn", "down_proj"}}
}

// routedBy is the usual mixture with a router.
func routedBy(r Router) func(Transformer, MoE) Layer {
	return func(_ Transformer, m MoE) Layer {
		m.Router = r
		return m
	}
}

func gemma2Attention(_ Transformer, a *Attention) { a.masks = 2 }
func packedAttention(_ Transformer, a *Attention) { a.Packed, a.sliced, a.joined = true, true, true }
func joinedAttention(c Transformer, a *Attention) {
	a.joined = a.RotaryDim != 0 && a.RotaryDim < a.size()
}

func olmoAttention(c Transformer, a *Attention) { a.clipped, a.tables = c.ClipQKV, alloc.Float32 }

// olmo2Attention has tables for layers with a window and for those without, if there are both.
func olmo2Attention(c Transformer, a *Attention) {
	a.QKNorm, a.lateNorm, a.tables = NormAllHeads, true, alloc.Float32
	for _, kind := range c.Kinds {
		if kind&Windowed != 0 {
			a.rotations = 2
		}
	}
}

func glmAttention(c Transformer, a *Attention) {
	joinedAttention(c, a)
	a.anew = true
}

func chatGLMAttention(c Transformer, a *Attention) {
	joinedAttention(c, a)
	a.Packed, a.names = true, packedNames
}

func seedAttention(c Transformer, a *Attention) { a.Dropout = c.ScoreDropout }

func ernieAttention(_ Transformer, a *Attention) { a.tables, a.anew = alloc.Float32, true }

func hunyuanAttention(_ Transformer, a *Attention) {
	a.QKNorm, a.normLast = NormHeads, true
	a.names = &attentionNames{"q_proj", "k_proj", "v_proj", "", "o_proj", "query_layernorm", "key_layernorm"}
}

func minimaxAttention(_ Transformer, a *Attention) { a.joined, a.QKNorm = true, NormAllHeads }

func cohereAttention(c Transformer, a *Attention) {
	if c.QKNorm != NoQKNorm {
		a.headNorm = func(heads, size int) Layer { return wideNorm{heads, size} }
	}
}

func stableAttention(c Transformer, a *Attention) {
	joinedAttention(c, a)
	a.names = &attentionNames{"q_proj", "k_proj", "v_proj", "", "o_proj", "q_layernorm", "k_layernorm"}
	if c.QKNorm != NoQKNorm {
		a.headNorm = func(heads, size int) Layer { return eachHead{heads, size} }
	}
}

func ossAttention(_ Transformer, a *Attention) {
	a.masks, a.Sinks, a.paired, a.NoBias, a.NoOutBias = 2, true, true, false, false
}

func phiAttention(c Transformer, a *Attention) {
	a.NoBias, a.NoOutBias, a.joined = false, false, true
	a.RotaryDim = c.rotated()
	a.names = &attentionNames{q: "q_proj", k: "k_proj", v: "v_proj", out: "dense"}
}

// packedNames are those of GPT-NeoX and its successors.
var packedNames = &attentionNames{packed: "query_key_value", out: "dense"}

func neoxAttention(_ Transformer, a *Attention) {
	a.Packed, a.joined, a.names = true, true, packedNames
}

func falconAttention(c Transformer, a *Attention) {
	a.Packed, a.sliced, a.names, a.copied, a.masked = true, true, packedNames, true, true
	a.spread = c.TwoNorms
	if c.Alibi {
		a.Rotary, a.biased, a.copied = false, true, false
	}
}

func bloomAttention(_ Transformer, a *Attention) {
	a.Packed, a.sliced, a.names, a.batched = true, true, packedNames, true
}

func optAttention(_ Transformer, a *Attention) {
	a.names = &attentionNames{q: "q_proj", k: "k_proj", v: "v_proj", out: "out_proj"}
	a.scaled = true
}

func starcoderBlock(c Transformer, b blockParts) Layer {
	return decoderBlock{Sequential{
		residual(Named{"input_layernorm", b.norm}, b.attention, inline{b.dropout}),
		residual(Named{"post_attention_layernorm", b.norm}, b.mlp, inline{b.dropout}),
	}}
}

// multipliedBlock is Llama's with a factor on what each part adds.
func multipliedBlock(_ Transformer, b blockParts) Layer {
	return decoderBlock{Sequential{
		residual(Named{"input_layernorm", b.norm}, b.attention, inline{multiple{}}),
		residual(Named{"post_attention_layernorm", b.norm}, b.mlp, inline{multiple{}}),
	}}
}

func stableBlock(c Transformer, b blockParts) Layer {
	if c.Parallel {
		return sideBySide("", "dropout", "input_layernorm")(c, b)
	}
	return normedBefore("", "dropout")(c, b)
}

func neoxBlock(c Transformer, b blockParts) Layer {
	if c.Parallel {
		return sideBySide("post_attention_dropout", "post_mlp_dropout", "input_layernorm", "post_attention_layernorm")(c, b)
	}
	return normedBefore("post_attention_dropout", "post_mlp_dropout")(c, b)
}

func falconBlock(c Transformer, b blockParts) Layer {
	switch {
	case c.Parallel && c.TwoNorms:
		return sideBySide("", "", "ln_attn", "ln_mlp")(c, b)
	case c.Parallel:
		return sideBySide("", "", "input_layernorm")(c, b)
	default:
		return normedBefore("", "")(c, b)
	}
}

func bloomBlock(c Transformer, b blockParts) Layer { return normedBefore("", "")(c, b) }

// optBlock has the parts of the MLP beside the attention.
func optBlock(c Transformer, b blockParts) Layer {
	attention, mlp := Sequential{b.attention, inline{b.dropout}}, Sequential{inline{b.mlp.Layer}, inline{b.dropout}}
	first, second := Named{"self_attn_layer_norm", b.norm}, Named{"final_layer_norm", b.norm}
	if c.NormAfter {
		return decoderBlock{Sequential{residual(attention...), first, residual(mlp...), second}}
	}
	return decoderBlock{Sequential{residual(append(Sequential{first}, attention...)...), residual(append(Sequential{second}, mlp...)...)}}
}
