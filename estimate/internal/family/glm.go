package family

import (
	"encoding/json"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
	"github.com/gpumemtrack/gpumemtrack/estimate/internal/tape"
)

// GLM is Llama with packed gates and partly rotary.
var GLM = &Family{
	Name:  "GLM",
	style: style{mlp: packedMLP, attention: glmAttention},
	Types: []Type{{Name: "glm", Base: "GlmModel", Read: readGLM}},
	GGUF:  []GGUF{{Name: "chatglm", Rotary: true, Read: packedBiases}},
}

// GLM4 is GLM with norms before and after each part.
var GLM4 = &Family{
	Name: "GLM-4",
	style: style{mlp: packedMLP, attention: glmAttention, block: func(_ Transformer, b blockParts) tape.Layer {
		return normedAround(b, "input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm", "post_mlp_layernorm")
	}},
	Types: []Type{{Name: "glm4", Base: "Glm4Model", Read: readGLM4}, {Name: "glm4v_text", Base: "Glm4vTextModel", Read: readGLM4VText, Text: true}},
	GGUF:  []GGUF{{Name: "glm4", Rotary: true, Read: packedBiases}},
}

// ChatGLM is GLM with packed projections of attention, from its own code.
var ChatGLM = &Family{
	Name:  "ChatGLM",
	style: style{names: decoderNames{root: "transformer", embed: "embedding.word_embeddings", blocks: "encoder.layers", last: "encoder.final_layernorm", attention: "self_attention", head: "output_layer"}, norm: lateNorm, mlp: chatGLMMLP, attention: chatGLMAttention},
	Types: []Type{{Name: "chatglm", Base: "ChatGLMModel", Keys: chatGLMKeys, Read: readChatGLM}},
}

// GLM4MoE is Llama with partly rotary attention and a mixture (GLM-4.5).
var GLM4MoE = &Family{
	Name:  "GLM-4.5",
	style: style{attention: joinedAttention},
	Types: []Type{{Name: "glm4_moe", Base: "Glm4MoeModel", Read: readGLM4MoE}},
	GGUF:  []GGUF{{Name: "glm4moe", Rotary: true, Read: ggufGLM4MoE}},
}

func chatGLMMLP(c Transformer) tape.Layer {
	return layer.GatedMLP{Hidden: c.Hidden, FFN: c.FFN, Activation: c.Activation, Packed: true, Names: &layer.GatedNames{Both: "dense_h_to_4h", Down: "dense_4h_to_h"}}
}

func glmAttention(c Transformer, a *layer.Attention) {
	joinedAttention(c, a)
	a.Anew = !c.Batched // tables of all texts are made once
}

func chatGLMAttention(c Transformer, a *layer.Attention) {
	joinedAttention(c, a)
	a.Packed, a.Names = true, packedNames
}

func readGLM(c *Config, a *Model) {
	a.QKVBias = c.Flag("attention_bias", true)
	c.rotatedInPart(a, 0.5)
}

func readGLM4(c *Config, a *Model) {
	a.QKVBias = c.Flag("attention_bias", true)
	c.rotatedInPart(a, 0.5)
}

// readGLM4VText reads the text part of GLM-4V, each of whose texts has rotary tables of its own.
func readGLM4VText(c *Config, a *Model) {
	a.QKVBias, a.Batched = true, true
	c.Unset("head_dim")
	c.rotatedInPart(a, 1)
}

// readChatGLM reads ChatGLM 2 and 3 and GLM-4, whose code lies beside their weights. Whatever class
// the file names, the one with a head is loaded.
func readChatGLM(c *Config, a *Model) {
	switch {
	case !c.Has("intermediate_size"): // the first ChatGLM
		c.Unknown("ffn_hidden_size", "a model without it")
	case !c.Flag("rmsnorm", true) || !c.Flag("post_layer_norm", true):
		c.Unknown("rmsnorm, post_layer_norm", "false")
	case c.Flag("bias", false) || c.Flag("apply_residual_connection_post_layernorm", false):
		c.Unknown("add_bias_linear, apply_residual_connection_post_layernorm", "true")
	case !c.Flag("multi_query", false):
		c.Unset("num_key_value_heads")
	}
	c.file["architectures"] = json.RawMessage(`["ChatGLMForCausalLM"]`)
	a.QKVBias = c.Flag("qkv_bias", false)
	c.rotatedInPart(a, 0.5)
}

// chatGLMKeys maps the keys of the code beside ChatGLM's weights.
var chatGLMKeys = map[string]string{
	"num_layers": "num_hidden_layers", "padded_vocab_size": "vocab_size", "multi_query_group_num": "num_key_value_heads",
	"kv_channels": "head_dim", "ffn_hidden_size": "intermediate_size", "add_qkv_bias": "qkv_bias", "add_bias_linear": "bias",
	"multi_query_attention": "multi_query",
}

func readGLM4MoE(c *Config, a *Model) { glm4MoE(c, a, 0.5) }

// glm4MoE reads GLM-4.5 and its kin; part is the fraction of a head that rotates if no key says it.
func glm4MoE(c *Config, a *Model, part float64) {
	a.QKVBias = c.Flag("attention_bias", false)
	if c.Flag("use_qk_norm", false) {
		a.QKNorm = layer.NormHeads
	}
	c.Usual("head_dim", c.Whole("hidden_size", 0)/max(1, c.Whole("num_attention_heads", 1))) // it need not divide
	c.rotatedInPart(a, part)
	bestOf(c, a, 1)
}
