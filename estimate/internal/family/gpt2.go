package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// GPT2 has LayerNorm before each part, learned positions, biases, packed projections.
var GPT2 = &Family{
	Name:   "GPT-2",
	Layers: gpt2,
	style:  style{mlp: phiMLP, attention: packedAttention},
	Types: []Type{
		{Name: "gpt2", Base: "GPT2Model", Read: readGPT2},
		{Name: "gpt_bigcode", Base: "GPTBigCodeModel", Read: readBigCode},
	},
	GGUF: []GGUF{
		{Name: "gpt2", Read: LearnedPositions},
		{Name: "starcoder", With: Transformer{Activation: layer.UseGELUTanh}, Read: LearnedPositions},
	},
}

func gpt2(c Transformer) []tape.Layer {
	layers := []tape.Layer{tape.As("transformer", tape.Sequential{
		tape.As("wte", layer.Embedding{Num: c.Vocab, Dim: c.Hidden, Split: true}),
		tape.As("wpe", Positions{Num: c.Positions, Dim: c.Hidden}),
		tape.As("drop", c.Drop()),
		tape.As("h", tape.Repeat{N: c.Blocks, Layer: gpt2Block(c)}),
		tape.As("ln_f", layer.LayerNorm{Size: c.Hidden}),
	})}
	if !c.NoHead {
		head := layer.Linear{In: c.Hidden, Out: c.Vocab, NoBias: true, Split: layer.ByColumns}
		if c.Tied {
			head.Tied = ".transformer.wte.weight"
		}
		layers = append(layers, layer.Headed(tape.As("lm_head", head), true)...)
	}
	return layers
}

func gpt2Block(c Transformer) tape.Layer {
	return tape.Sequential{
		tape.Skip(
			tape.As("ln_1", layer.LayerNorm{Size: c.Hidden}),
			tape.As("attn", WithDropout{"resid_dropout", layer.Attention{
				Hidden: c.Hidden, Heads: c.Heads, KVHeads: c.KVHeads, HeadSize: c.HeadSize, Packed: true, Plain: c.Plain, Dropout: c.Dropout, Returns: true, Always: c.KVHeads == 1, // GPTBigCode does not turn use_cache off
				Names: &layer.AttentionNames{Packed: "c_attn", Out: "c_proj"},
			}, c.Drop()}),
		),
		tape.Skip(
			tape.As("ln_2", layer.LayerNorm{Size: c.Hidden}),
			tape.As("mlp", WithDropout{"dropout", layer.MLP{
				Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseNewGELU), Names: &[3]string{"c_fc", "act", "c_proj"},
			}, c.Drop()}),
		),
	}
}

func readBigCode(c *Config, a *Model) {
	readGPT2(c, a)
	if c.Flag("multi_query", true) {
		a.KVHeads = 1
	}
	c.Activation(a, c.Word("activation_function"), "gelu_pytorch_tanh")
}

func readGPT2(c *Config, a *Model) {
	class := c.Class("GPT2LMHeadModel", "GPTBigCodeForCausalLM")
	if c.Flag("add_cross_attention", false) {
		c.Unknown("add_cross_attention", "true")
	}
	c.Number(&a.Hidden, "n_embd", 0)
	c.Number(&a.Blocks, "n_layer", 0)
	c.Number(&a.Heads, "n_head", 0)
	c.Number(&a.Positions, "n_positions", 0)
	c.Number(&a.Vocab, "vocab_size", 0)
	a.NoHead, a.Tied = class == c.Base, c.Flag("tie_word_embeddings", true)
	a.Dropout = max(c.Dropout("resid_pdrop"), c.Dropout("embd_pdrop"), c.Dropout("attn_pdrop"))
	c.Number(&a.FFN, "n_inner", 4*a.Hidden)
	c.Activation(a, c.Word("activation_function"), "gelu_new")
}

// OPT has LayerNorm, learned positions, ReLU.
var OPT = &Family{
	Name:  "OPT",
	style: style{raw: true, names: decoderNames{root: "model.decoder", last: "final_layer_norm"}, norm: layerNorm, embedded: optEmbedded, block: optBlock, still: true, attention: optAttention, mlp: optMLP, last: optLast},
	Types: []Type{{Name: "opt", Base: "OPTModel", Read: readOPT, Text: true}},
}

// OptPadding is the number of positions in OPT's table before the first token.
const OptPadding = 2

func optEmbedded(c Transformer) []tape.Layer {
	var layers []tape.Layer
	if c.EmbedDim != 0 && c.EmbedDim != c.Hidden {
		layers = append(layers, tape.As("project_in", layer.Linear{In: c.EmbedDim, Out: c.Hidden, NoBias: true}))
	}
	return append(layers, tape.As("embed_positions", Positions{Num: c.Positions + OptPadding, Dim: c.Hidden, Each: true, Padding: OptPadding}))
}

// optLast returns the last norm, unless norms come after each part, and the projection to the
// embedding's width.
func optLast(c Transformer) []tape.Layer {
	var layers []tape.Layer
	if !c.NormAfter {
		layers = append(layers, tape.As("final_layer_norm", layer.LayerNorm{Size: c.Hidden}))
	}
	if c.EmbedDim != 0 && c.EmbedDim != c.Hidden {
		layers = append(layers, tape.As("project_out", layer.Linear{In: c.Hidden, Out: c.EmbedDim, NoBias: true}))
	}
	return layers
}

func optMLP(c Transformer) tape.Layer {
	c.Activation = setting.Or(c.Activation, layer.UseReLU)
	return plainMLP(c, "fc1", "activation_fn", "fc2")
}

func optAttention(_ Transformer, a *layer.Attention) {
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "out_proj"}
	a.Scaled = true
}

// optBlock puts the layers of the MLP at the level of the attention, as OPT names them.
func optBlock(c Transformer, b blockParts) tape.Layer {
	attention, mlp := tape.Sequential{b.attention, tape.Inline(b.dropout)}, tape.Sequential{tape.Inline(b.mlp.Layer), tape.Inline(b.dropout)}
	first, second := tape.As("self_attn_layer_norm", b.norm), tape.As("final_layer_norm", b.norm)
	if c.NormAfter {
		return DecoderBlock{tape.Sequential{tape.Skip(attention...), first, tape.Skip(mlp...), second}}
	}
	return DecoderBlock{tape.Sequential{tape.Skip(append(tape.Sequential{first}, attention...)...), tape.Skip(append(tape.Sequential{second}, mlp...)...)}}
}

func readOPT(c *Config, a *Model) {
	if !c.Flag("enable_bias", true) || !c.Flag("layer_norm_elementwise_affine", true) {
		c.Unknown("enable_bias, layer_norm_elementwise_affine", "false")
	}
	a.Bias, a.NormAfter, a.Dropout = true, !c.Flag("do_layer_norm_before", true), c.Dropout("dropout")
	c.Move("intermediate_size", "ffn_dim")
	c.decoder(a, 0, true)
	c.Number(&a.Positions, "max_position_embeddings", 2048)
	c.Number(&a.EmbedDim, "word_embed_proj_dim", a.Hidden)
	c.Activation(a, c.Word("activation_function"), "relu")
}
