package family

import (
	"github.com/gpumemtrack/gpumemtrack/alloc"
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
		tape.If(c.KVHeads == 1, tape.Inline(Constants{{Name: "bias", Shape: alloc.Shape{c.Positions, c.Positions}, DType: alloc.Bool}})), // GPTBigCode's mask
		tape.As("drop", c.Drop()),
		tape.As("h", tape.Repeat{N: c.Blocks, Layer: gpt2Block(c)}),
		tape.As("ln_f", layer.LayerNorm{Size: c.Hidden}),
	})}
	if c.Classes != 0 {
		return append(layers, c.classifier(c.Hidden)...)
	}
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
	c.Harmless("num_key_value_heads") // it follows from multi_query
	if c.Flag("multi_query", true) {
		a.KVHeads = 1
	}
	c.Activation(a, c.Word("activation_function"), "gelu_pytorch_tanh")
}

func readGPT2(c *Config, a *Model) {
	c.heads(a, "GPT2LMHeadModel", "GPTBigCodeForCausalLM")
	if c.Flag("add_cross_attention", false) {
		c.Unknown("add_cross_attention", "true")
	}
	c.Number(&a.Hidden, "n_embd", 0)
	c.Number(&a.Blocks, "n_layer", 0)
	c.Number(&a.Heads, "n_head", 0)
	c.Number(&a.Positions, "n_positions", 0)
	c.Number(&a.Vocab, "vocab_size", 0)
	a.Tied = c.Flag("tie_word_embeddings", true)
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

// optOwn is what only OPT has.
type optOwn struct {
	unnormed bool // no norm follows the blocks (_remove_final_layer_norm)
}

// optLast returns the last norm, unless norms come after each part, and the projection to the
// embedding's width.
func optLast(c Transformer) []tape.Layer {
	var layers []tape.Layer
	if own := Own[optOwn](c); !c.NormAfter && (own == nil || !own.unnormed) {
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
	a.Own = &optOwn{unnormed: c.Flag("_remove_final_layer_norm", false)}
	c.Number(&a.Positions, "max_position_embeddings", 2048)
	c.Number(&a.EmbedDim, "word_embed_proj_dim", a.Hidden)
	c.Activation(a, c.Word("activation_function"), "relu")
}

// The families in this file follow the source of transformers. Their sizes equal published ones.
// What their attention keeps, in elementary operations, was not measured.

// GPTJ has attention and MLP in parallel, which read the same LayerNorm; partly rotary, a head with a bias
// (modeling_gptj.py).
var GPTJ = &Family{
	Name: "GPT-J",
	style: style{
		raw: true, untabled: true, headBias: true, names: decoderNames{root: "transformer", embed: "wte", blocks: "h", last: "ln_f", attention: "attn"}, norm: layerNorm,
		embedded: gptjEmbedded, block: func(_ Transformer, b blockParts) tape.Layer {
			return sideBySide(b, "resid_dropout", "mlp_dropout", "ln_1")
		}, attention: gptjAttention, mlp: gptjMLP,
	},
	Types: []Type{{Name: "gptj", Base: "GPTJModel", Keys: gptjKeys, Read: readGPTJ}},
}

// GPTNeo has LayerNorm before each part, learned positions, and every other layer a window (modeling_gpt_neo.py).
var GPTNeo = &Family{
	Name:  "GPT-Neo",
	whole: true,
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
	c.Set("intermediate_size", 4*min(max(1, c.Whole("hidden_size", 1)), LargestNumber/4)) // whatever expansion_ratio says
	c.decoder(a, 0, true)
	a.Dropout = max(c.Dropout("resid_pdrop"), c.Dropout("emb_pdrop"))
	a.Activation = layer.UseGELU
}

func gptjEmbedded(c Transformer) []tape.Layer {
	table := Constants{{Name: "embed_positions", Shape: alloc.Shape{c.Positions, c.rotated()}, DType: alloc.Float32}}
	return append(dropoutAs(c, "drop"), tape.As("rotary_table", table))
}

func gptjAttention(c Transformer, a *layer.Attention) {
	a.Anew, a.Apart, a.Dropout = true, true, c.ScoreDropout
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "out_proj"}
}

func gptjMLP(c Transformer) tape.Layer {
	return layer.MLP{Hidden: c.Hidden, FFN: c.FFN, Activation: setting.Or(c.Activation, layer.UseNewGELU), Names: &[3]string{"fc_in", "act", "fc_out"}}
}

func gptNeoEmbedded(c Transformer) []tape.Layer {
	masks := Constants{{Name: "bias", Shape: alloc.Shape{c.Blocks, 1, c.Positions, c.Positions}, DType: alloc.Bool}} // one in each block's attention
	return []tape.Layer{tape.As("wpe", Positions{Num: c.Positions, Dim: c.Hidden}), tape.As("drop", c.Drop()), tape.As("masks", masks)}
}

func gptNeoAttention(c Transformer, a *layer.Attention) {
	a.Eager, a.OutBias, a.Dropout = true, true, c.ScoreDropout
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
	c.Number(&a.Positions, "max_position_embeddings", 2048)
	a.Dropout, a.ScoreDropout = max(c.Dropout("resid_pdrop"), c.Dropout("embd_pdrop")), c.Dropout("attn_pdrop")
	c.Activation(a, c.Word("activation_function"), "gelu_new")
}

var gptNeoKeys = map[string]string{"num_layers": "num_hidden_layers", "num_heads": "num_attention_heads"}

func readGPTNeo(c *Config, a *Model) {
	c.Harmless("attention_layers") // they follow from attention_types
	wideMLP(c)
	c.decoder(a, 0, true)
	c.Number(&a.Positions, "max_position_embeddings", 2048)
	a.Dropout, a.ScoreDropout = max(c.Dropout("resid_dropout"), c.Dropout("embed_dropout")), c.Dropout("attention_dropout")
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
