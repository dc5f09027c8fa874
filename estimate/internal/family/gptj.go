package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// The families in this file follow the source of transformers. Their sizes equal published ones.
// What their attention keeps, in elementary operations, was not measured.

// GPTJ has attention and MLP in parallel, which read the same LayerNorm; partly rotary, a head with a bias
// (modeling_gptj.py).
var GPTJ = &Family{
	Name: "GPT-J",
	style: style{
		raw: true, untabled: true, headBias: true, names: decoderNames{root: "transformer", embed: "wte", blocks: "h", last: "ln_f", attention: "attn"}, norm: layerNorm,
		embedded: func(c Transformer) []tape.Layer { return dropoutAs(c, "drop") }, block: func(_ Transformer, b blockParts) tape.Layer {
			return sideBySide(b, "resid_dropout", "mlp_dropout", "ln_1")
		}, attention: gptjAttention, mlp: gptjMLP,
	},
	Types: []Type{{Name: "gptj", Base: "GPTJModel", Keys: gptjKeys, Read: readGPTJ}},
}

// GPTNeo has LayerNorm before each part, learned positions, and every other layer a window (modeling_gpt_neo.py).
var GPTNeo = &Family{
	Name: "GPT-Neo",
	style: style{
		raw: true, still: true, names: decoderNames{root: "transformer", embed: "wte", blocks: "h", last: "ln_f", attention: "attn.attention"}, norm: layerNorm,
		embedded: gptNeoEmbedded, block: func(_ Transformer, b blockParts) tape.Layer {
			return normedBeforeAs(b, "ln_1", "ln_2", "resid_dropout", "mlp_dropout")
		}, attention: gptNeoAttention, mlp: gptNeoMLP,
	},
	Types: []Type{{Name: "gpt_neo", Base: "GPTNeoModel", Keys: gptNeoKeys, Read: readGPTNeo}},
}

// MPT has LayerNorm without biases before each part, biases of scores in place of rotation, packed projections
// (modeling_mpt.py).
var MPT = &Family{
	Name: "MPT",
	style: style{
		raw: true, still: true, names: decoderNames{root: "transformer", embed: "wte", blocks: "blocks", last: "norm_f", attention: "attn", mlp: "ffn"}, norm: mptNorm,
		block: func(_ Transformer, b blockParts) tape.Layer {
			return normedBeforeAs(b, "norm_1", "norm_2", "resid_attn_dropout", "hidden_dropout")
		}, attention: mptAttention, mlp: func(c Transformer) tape.Layer { return plainMLP(c, "up_proj", "act", "down_proj") },
	},
	Types: []Type{{Name: "mpt", Base: "MptModel", Keys: mptKeys, Read: readMPT}},
}

func mptNorm(c Transformer) tape.Layer { return layer.LayerNorm{Size: c.Hidden, NoBias: true} }

func mptAttention(_ Transformer, a *layer.Attention) {
	a.Packed, a.Eager = true, true
	a.Names = &layer.AttentionNames{Packed: "Wqkv", Out: "out_proj"}
}

var mptKeys = map[string]string{"d_model": "hidden_size", "n_layers": "num_hidden_layers", "n_heads": "num_attention_heads", "max_seq_len": "max_position_embeddings"}

func readMPT(c *Config, a *Model) {
	if !c.Flag("no_bias", true) {
		c.Unknown("no_bias", "false")
	}
	width := c.Ratio("expansion_ratio", 4)
	c.Times(&a.FFN, "expansion_ratio", min(max(1, c.Whole("hidden_size", 1)), LargestNumber), width)
	c.Set("intermediate_size", a.FFN)
	c.decoder(a, 0, true)
	a.Dropout = max(c.Dropout("resid_pdrop"), c.Dropout("emb_pdrop"))
	a.Activation = layer.UseGELU
}

func gptjAttention(_ Transformer, a *layer.Attention) {
	a.Eager, a.Complex = true, true
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "out_proj"}
}

func gptjMLP(c Transformer) tape.Layer {
	return layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseNewGELU), Names: &[3]string{"fc_in", "act", "fc_out"}}
}

func gptNeoEmbedded(c Transformer) []tape.Layer {
	return []tape.Layer{tape.As("wpe", Positions{Num: c.Positions, Dim: c.Hidden}), tape.As("drop", c.Drop())}
}

func gptNeoAttention(_ Transformer, a *layer.Attention) {
	a.Eager, a.OutBias = true, true
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "out_proj"}
}

func gptNeoMLP(c Transformer) tape.Layer {
	return layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseNewGELU), Names: &[3]string{"c_fc", "act", "c_proj"}}
}

var gptjKeys = map[string]string{"n_embd": "hidden_size", "n_layer": "num_hidden_layers", "n_head": "num_attention_heads", "n_inner": "intermediate_size", "n_positions": "max_position_embeddings"}

func readGPTJ(c *Config, a *Model) {
	wideMLP(c)
	c.decoder(a, 0, false)
	c.Number(&a.RotaryDim, "rotary_dim", 64)
	a.Dropout = max(c.Dropout("resid_pdrop"), c.Dropout("embd_pdrop"), c.Dropout("attn_pdrop"))
	c.Activation(a, c.Word("activation_function"), "gelu_new")
}

var gptNeoKeys = map[string]string{"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}

func readGPTNeo(c *Config, a *Model) {
	wideMLP(c)
	c.decoder(a, 0, true)
	c.Number(&a.Positions, "max_position_embeddings", 2048)
	a.Dropout = max(c.Dropout("resid_dropout"), c.Dropout("embed_dropout"), c.Dropout("attention_dropout"))
	c.Activation(a, c.Word("activation_function"), "gelu_new")
	a.Window = c.Whole("window_size", 256)
	local := localLayers(c, a.Blocks)
	a.mark(Windowed, func(block int) bool { return block < len(local) && local[block] })
}

// localLayers returns which layers have a window. attention_types lists pairs of kinds and
// repetitions; without it, every other layer has one.
func localLayers(c *Config, blocks int) []bool {
	local := make([]bool, 0, max(0, min(blocks, MaxBlocks)))
	var pairs [][2]any
	if !c.Decode("attention_types", &pairs) {
		pairs = [][2]any{{[]any{"global", "local"}, float64(MaxBlocks)}}
	}
	for _, p := range pairs {
		kinds, _ := p[0].([]any)
		times, _ := p[1].(float64)
		for range int(max(0, min(times, MaxBlocks))) {
			for _, kind := range kinds {
				if len(local) == cap(local) {
					return local
				}
				local = append(local, kind == "local")
			}
		}
	}
	return local
}

// wideMLP makes the MLP four times as wide as the model if no setting says its width.
func wideMLP(c *Config) {
	c.Usual("intermediate_size", 4*min(c.Whole("hidden_size", 0), LargestNumber/4))
}

// GPTNeoX has LayerNorm, partly rotary, packed projections, biases.
var GPTNeoX = &Family{
	Name:  "GPT-NeoX",
	style: style{raw: true, names: decoderNames{root: "gpt_neox", embed: "embed_in", last: "final_layer_norm", attention: "attention"}, norm: layerNorm, embedded: func(c Transformer) []tape.Layer { return dropoutAs(c, "emb_dropout") }, block: neoxBlock, attention: neoxAttention, mlp: func(c Transformer) tape.Layer { return plainMLP(c, "dense_h_to_4h", "act", "dense_4h_to_h") }},
	Types: []Type{{Name: "gpt_neox", Base: "GPTNeoXModel", Read: readGPTNeoX}},
	GGUF:  []GGUF{{Name: "gptneox", With: Transformer{Bias: true, Parallel: true, Activation: layer.UseGELU}, Rotary: true, Read: ggufGPTNeoX}},
}

func neoxAttention(_ Transformer, a *layer.Attention) {
	a.Packed, a.Joined, a.Widens, a.Names = true, true, true, packedNames
}

func neoxBlock(c Transformer, b blockParts) tape.Layer {
	if c.Parallel {
		return sideBySide(b, "post_attention_dropout", "post_mlp_dropout", "input_layernorm", "post_attention_layernorm")
	}
	return normedBefore(b, "post_attention_dropout", "post_mlp_dropout")
}

func readGPTNeoX(c *Config, a *Model) {
	a.Bias, a.Parallel, a.Dropout = c.Flag("attention_bias", true), c.Flag("use_parallel_residual", true), c.Dropout("hidden_dropout")
	if !a.Bias {
		c.Unknown("attention_bias", "false")
	}
	c.rotatedInPart(a, 0.25)
}

func ggufGPTNeoX(m *Metadata, a *Model) {
	a.Parallel = m.Flag("gptneox.use_parallel_residual", a.Parallel)
}
