package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// SeedOSS is Llama with dropout after each part.
var SeedOSS = &Family{
	Name:  "Seed-OSS",
	style: style{block: starcoderBlock, attention: seedAttention},
	Types: []Type{{Name: "seed_oss", Base: "SeedOssModel", Read: readSeedOSS}},
	GGUF:  []GGUF{{Name: "seed_oss", Read: packedBiases}},
}

// Ernie is Llama with rotation in float32 (ERNIE 4.5).
var Ernie = &Family{
	Name:  "ERNIE 4.5",
	style: style{attention: ernieAttention},
	Types: []Type{{Name: "ernie4_5", Base: "Ernie4_5Model", Read: readErnie}},
	GGUF:  []GGUF{{Name: "ernie4_5"}},
}

// HunYuan is Llama with norms of rotated queries and keys.
var HunYuan = &Family{
	Name:  "HunYuan",
	style: style{attention: hunyuanAttention},
	Types: []Type{{Name: "hunyuan_v1_dense", Base: "HunYuanDenseV1Model", Read: readHunYuan}},
	GGUF:  []GGUF{{Name: "hunyuan-dense"}, {Name: "hunyuan-moe", Read: ggufHunYuanMoE}},
}

// MiniMaxM2 is Llama with a mixture, partly rotary, norms of queries and keys.
var MiniMaxM2 = &Family{
	Name:  "MiniMax M2",
	style: style{attention: minimaxAttention, mixture: func(_ Transformer, m layer.MoE) tape.Layer { return routedBy(m, layer.LoneSigmoid) }},
	Types: []Type{{Name: "minimax_m2", Base: "MiniMaxM2Model", Read: readMiniMaxM2}},
	GGUF:  []GGUF{{Name: "minimax-m2", With: Transformer{Attention: Attention{QKNorm: layer.NormHeads}}, Rotary: true, Read: ggufMiniMaxM2}},
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

func readSeedOSS(c *Config, a *Model) {
	if c.Flag("attention_out_bias", false) || c.Flag("mlp_bias", false) {
		c.Unknown("attention_out_bias, mlp_bias", "true")
	}
	a.QKVBias, a.Dropout, a.ScoreDropout = c.Flag("attention_bias", true), c.Dropout("residual_dropout"), c.Dropout("attention_dropout")
	c.likeLlama(a)
}

func readErnie(c *Config, a *Model) {
	a.Bias = c.Flag("use_bias", false)
	c.likeLlama(a)
}

func readHunYuan(c *Config, a *Model) {
	c.noBias()
	c.likeLlama(a)
}

func readMiniMaxM2(c *Config, a *Model) {
	c.rotatedInPart(a, 1)
	if c.Has("rotary_dim") {
		c.Number(&a.RotaryDim, "rotary_dim", 0)
	}
	c.mixture(a, "num_local_experts", 256, 8)
}

// Granite is Llama with constant factors.
var Granite = &Family{
	Name:  "Granite",
	style: style{embedded: multiplied, block: multipliedBlock, after: multiplied},
	Types: []Type{{Name: "granite", Base: "GraniteModel", Read: readGranite}},
	GGUF:  []GGUF{{Name: "granite", Biases: true}},
}

// GraniteMoE is Granite with a mixture.
var GraniteMoE = &Family{
	Name:  "Granite MoE",
	style: style{names: decoderNames{mlp: "block_sparse_moe"}, embedded: multiplied, block: multipliedBlock, after: multiplied, mixture: func(_ Transformer, m layer.MoE) tape.Layer { return routedBy(m, layer.TopRouter) }},
	Types: []Type{{Name: "granitemoe", Base: "GraniteMoeModel", Read: readGraniteMoE}},
	GGUF:  []GGUF{{Name: "granitemoe"}},
}

// GraniteMoEShared is Granite MoE with an MLP for every token beside the mixture.
var GraniteMoEShared = &Family{
	Name:  "Granite MoE shared",
	style: style{embedded: multiplied, block: graniteHybridBlock, after: multiplied, mixture: graniteMixture},
	Types: []Type{{Name: "granitemoeshared", Base: "GraniteMoeSharedModel", Read: readGraniteMoEShared}},
}

// graniteMixture returns the mixture, with the MLP for every token if there is one.
func graniteMixture(c Transformer, m layer.MoE) tape.Layer {
	if c.SharedFFN > 0 {
		return graniteBoth(c, m)
	}
	return tape.Sequential{tape.As("block_sparse_moe", routedBy(m, layer.TopRouter))}
}

func readGranite(c *Config, a *Model) {
	c.biases(a)
	c.likeLlama(a)
}

func readGraniteMoE(c *Config, a *Model) {
	a.AttentionBias = c.Flag("attention_bias", false)
	c.likeLlama(a)
	c.mixture(a, "num_local_experts", 8, 2)
}

func readGraniteMoEShared(c *Config, a *Model) {
	readGraniteMoE(c, a)
	if c.Whole("shared_intermediate_size", 0) != 0 {
		c.Number(&a.SharedFFN, "shared_intermediate_size", 0)
	}
}

// Helium is Llama whose norms scale in float32, and whose neighbouring elements rotate as pairs.
var Helium = &Family{
	Name:  "Helium",
	style: style{norm: heliumNorm, attention: func(_ Transformer, a *layer.Attention) { a.Anew = true }},
	Types: []Type{{Name: "helium", Base: "HeliumModel", Read: readHelium}},
}

func heliumNorm(c Transformer) tape.Layer {
	return layer.RMSNorm{Size: c.Hidden, Unfused: true, Late: true, Widens: true}
}

// readHelium reads Helium, whose attention has biases before the heads, and as many elements in all heads as in Hidden.
func readHelium(c *Config, a *Model) {
	a.QKVBias, a.MLPBias = c.Flag("attention_bias", false), c.Flag("mlp_bias", false)
	c.likeLlama(a)
	if setting.Product(a.Heads, a.HeadWidth()) != a.Hidden {
		c.Unknown("head_dim", "another width of all heads than hidden_size")
	}
}

// Starcoder2 has LayerNorm, biases, an MLP without a gate.
var Starcoder2 = &Family{
	Name:  "StarCoder2",
	style: style{norm: layerNorm, mlp: func(c Transformer) tape.Layer { return plainMLP(c, "c_fc", "act", "c_proj") }, block: starcoderBlock},
	Types: []Type{{Name: "starcoder2", Base: "Starcoder2Model", Read: readStarcoder2}},
	GGUF:  []GGUF{{Name: "starcoder2", With: Transformer{Bias: true, Activation: layer.UseGELUTanh}}},
}

// StableLM has LayerNorm, partly rotary, gated MLP.
var StableLM = &Family{
	Name:  "StableLM",
	style: style{norm: layerNorm, block: stableBlock, attention: stableAttention},
	Types: []Type{{Name: "stablelm", Base: "StableLmModel", Read: readStableLM}},
	GGUF:  []GGUF{{Name: "stablelm", Rotary: true, Read: ggufStableLM}},
}

// Nemotron has LayerNorm with shifted weights, squared ReLU.
var Nemotron = &Family{
	Name:  "Nemotron",
	style: style{norm: shiftedLayerNorm, mlp: nemotronMLP, attention: joinedAttention},
	Types: []Type{{Name: "nemotron", Base: "NemotronModel", Read: readNemotron}},
	GGUF:  []GGUF{{Name: "nemotron", Rotary: true, Biases: true}},
}

func shiftedLayerNorm(c Transformer) tape.Layer { return layer.ShiftedNorm{Size: c.Hidden} }

func stableAttention(c Transformer, a *layer.Attention) {
	joinedAttention(c, a)
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Packed: "", Out: "o_proj", QNorm: "q_layernorm", KNorm: "k_layernorm"}
	if c.QKNorm != layer.NoQKNorm {
		a.HeadNorm = func(heads, size int) tape.Layer { return layer.EachHead{Heads: heads, Size: size} }
	}
}

func stableBlock(c Transformer, b blockParts) tape.Layer {
	if c.Parallel {
		return sideBySide(b, "", "dropout", "input_layernorm")
	}
	return normedBefore(b, "", "dropout")
}

func readStarcoder2(c *Config, a *Model) {
	a.Bias, a.Window, a.Dropout = c.Flag("use_bias", true), c.Whole("sliding_window", 0), c.Dropout("residual_dropout")
	c.likeLlama(a)
}

func readStableLM(c *Config, a *Model) {
	a.QKVBias, a.Parallel, a.Dropout = c.Flag("use_qkv_bias", false), c.Flag("use_parallel_residual", false), c.Dropout("hidden_dropout")
	if c.Flag("qk_layernorm", false) {
		a.QKNorm = layer.NormHeads
	}
	c.rotatedInPart(a, 0.25)
}

func readNemotron(c *Config, a *Model) {
	c.biases(a)
	c.rotatedInPart(a, 0.5)
}

func ggufStableLM(m *Metadata, a *Model) {
	m.headNorms(a)
	a.Parallel, a.QKVBias = !m.has("blk.0.ffn_norm.weight"), m.has("blk.0.attn_q.bias")
}
