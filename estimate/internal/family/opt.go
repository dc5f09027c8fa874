package family

import (
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/setting"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// OPT has LayerNorm, learned positions, ReLU.
var OPT = Register(&Family{
	Name:  "OPT",
	style: style{raw: true, names: decoderNames{root: "model.decoder", last: "final_layer_norm"}, norm: layerNorm, embedded: optEmbedded, block: optBlock, still: true, attention: optAttention, mlp: optMLP, last: optLast},
	Types: []Type{
		{Name: "opt", Base: "OPTModel", Read: readOPT},
	},
})

// OptPadding is the number of positions that OPT's table has before the first.
const OptPadding = 2

func optEmbedded(c Transformer) []tape.Layer {
	var layers []tape.Layer
	if c.EmbedDim != 0 && c.EmbedDim != c.Hidden {
		layers = append(layers, tape.Named{Name: "project_in", Layer: layer.Linear{In: c.EmbedDim, Out: c.Hidden, NoBias: true}})
	}
	return append(layers, tape.Named{Name: "embed_positions", Layer: Positions{Num: c.Positions + OptPadding, Dim: c.Hidden, Each: true, Padding: OptPadding}})
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

func optMLP(c Transformer) tape.Layer {
	c.Activation = setting.Or(c.Activation, layer.UseReLU)
	return plainMLP("fc1", "activation_fn", "fc2")(c)
}

func optAttention(_ Transformer, a *layer.Attention) {
	a.Names = &layer.AttentionNames{Q: "q_proj", K: "k_proj", V: "v_proj", Out: "out_proj"}
	a.Scaled = true
}

// optBlock has the parts of the MLP beside the attention.
func optBlock(c Transformer, b blockParts) tape.Layer {
	attention, mlp := tape.Sequential{b.attention, tape.Inlined{Layer: b.dropout}}, tape.Sequential{tape.Inlined{Layer: b.mlp.Layer}, tape.Inlined{Layer: b.dropout}}
	first, second := tape.Named{Name: "self_attn_layer_norm", Layer: b.norm}, tape.Named{Name: "final_layer_norm", Layer: b.norm}
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
	c.decoder(a, "OPTForCausalLM", 0, true)
	c.Number(&a.Positions, "max_position_embeddings", 2048)
	c.Number(&a.EmbedDim, "word_embed_proj_dim", a.Hidden)
	c.Activation(a, c.Word("activation_function"), "relu")
}
