package family

import (
	"cmp"
	"encoding/json"
	"slices"
	"strings"

	"github.com/gpumemtrack/gpumemtrack/estimate/internal/layer"
)

// class returns the class of the model, which must be the family's base or one with a
// head that is known.
func (c *Config) class(heads ...string) string {
	classes := c.names("architectures")
	if len(classes) == 0 {
		return c.Base
	}
	if classes[0] != c.Base && !slices.Contains(heads, classes[0]) {
		c.unknown("architectures", classes[0])
	}
	return classes[0]
}

// labels is the width of a classifier; transformers takes 2 where there is no id2label.
func (c *Config) labels() int {
	var labels map[string]string
	if !c.decode("id2label", &labels) {
		return max(1, min(c.whole("num_labels", 2), largestNumber))
	}
	return max(1, len(labels))
}

// decoder reads what all decoders with rotary positions have in common. kvHeads is the
// number where the key is absent, 0 for as many as heads.
func (c *Config) decoder(a *Model, causal string, kvHeads int, tied bool) {
	classifier := strings.TrimSuffix(causal, "ForCausalLM") + "ForSequenceClassification"
	class := c.class(causal, classifier)
	if class == classifier {
		a.Classes = c.labels()
	}
	c.number(&a.Hidden, "hidden_size", 0)
	c.number(&a.Blocks, "num_hidden_layers", 0)
	c.number(&a.Heads, "num_attention_heads", 0)
	c.number(&a.FFN, "intermediate_size", 0)
	c.number(&a.Vocab, "vocab_size", 0)
	a.NoHead, a.Tied = class != causal, c.flag("tie_word_embeddings", tied)
	c.optional(&a.HeadSize, "head_dim")
	c.number(&a.KVHeads, "num_key_value_heads", cmp.Or(kvHeads, a.Heads))
}

// likeLlama reads a decoder that differs from Llama by little more than its layers.
func (c *Config) likeLlama(a *Model, causal string) {
	c.decoder(a, causal, 0, false)
	c.activation(a, c.text("hidden_act"), "silu")
}

// rotatedInPart is likeLlama for families whose heads rotate in part.
func (c *Config) rotatedInPart(a *Model, causal string, without float64) {
	c.likeLlama(a, causal)
	c.rotaryPart(a, without)
}

// encoder reads what BERT and ViT have in common.
func (c *Config) encoder(a *Model) {
	c.number(&a.Hidden, "hidden_size", 0)
	c.number(&a.Blocks, "num_hidden_layers", 0)
	c.number(&a.Heads, "num_attention_heads", 0)
	c.number(&a.FFN, "intermediate_size", 0)
	a.Dropout = max(c.dropout("hidden_dropout_prob"), c.dropout("attention_probs_dropout_prob"))
	c.activation(a, c.text("hidden_act"), "gelu")
}

// activations has the functions whose memory is known, by their names.
var activations = map[string]layer.Activation{
	"silu": layer.UseSiLU, "swish": layer.UseSiLU, "gelu": layer.UseGELU, "gelu_new": layer.UseNewGELU,
	"gelu_pytorch_tanh": layer.UseGELUTanh, "relu": layer.UseReLU, "quick_gelu": layer.UseQuickGELU,
	"relu2": layer.UseSquaredReLU,
}

func (c *Config) activation(a *Model, name, without string) {
	var ok bool
	if a.Activation, ok = activations[cmp.Or(name, without)]; !ok {
		c.unknown("activation", name)
	}
}

// sameBias reads biases of all projections or of none.
func (c *Config) sameBias(a *Model) {
	a.Bias = c.flag("attention_bias", false)
	if a.Bias != c.flag("mlp_bias", false) {
		c.unknown("attention_bias", "a value other than mlp_bias has")
	}
}

// noBias refuses projections of attention with biases.
func (c *Config) noBias() {
	if c.flag("attention_bias", false) {
		c.unknown("attention_bias", "true")
	}
}

// rotaryPart reads what part of a head rotates.
func (c *Config) rotaryPart(a *Model, without float64) {
	part := c.ratio("partial_rotary_factor", c.ratio("rotary_pct", without)) // the latter is GPT-NeoX's name of it
	var rope struct {
		Part *float64 `json:"partial_rotary_factor"`
	}
	if c.decode("rope_parameters", &rope); rope.Part != nil {
		part = *rope.Part
	}
	if !(part > 0 && part <= 1) {
		c.fail("partial_rotary_factor", "it is not above 0 and at most 1")
		return
	}
	a.RotaryDim = int(part * float64(a.headSize()))
}

// layerTypes is what each layer is, nil where the key is absent.
func (c *Config) layerTypes(a *Model) []string {
	types := c.names("layer_types")
	if types != nil && len(types) != a.Blocks {
		c.fail("layer_types", "it has %d entries for %d layers", len(types), a.Blocks)
		return nil
	}
	return types
}

// windows reads the sliding window, of so many tokens where the key is absent, and which layers do not have it: those
// that layer_types tells, or where it is absent those that full says, by the number from 0.
func (c *Config) windows(a *Model, without int, full func(layer int) bool) {
	if a.Window = c.whole("sliding_window", without); a.Window == 0 {
		return
	}
	types := c.layerTypes(a)
	for _, t := range types {
		if strange(t) {
			c.unknown("layer_types", t)
		}
	}
	a.mark(Windowed, func(layer int) bool {
		if types != nil {
			return types[layer] != "full_attention"
		}
		return !full(layer)
	})
}

// strange reports a layer_type that is neither with nor without a sliding window.
func strange(layer string) bool { return layer != "full_attention" && layer != "sliding_attention" }

// turnedWindows reads which layers have a window; the others do not rotate if there are such.
func (c *Config) turnedWindows(a *Model) {
	every := max(1, c.whole("sliding_window_pattern", 4))
	c.windows(a, 0, each(every))
	a.stillBeyondWindow()
}

// each reports every so many-th layer.
func each(n int) func(layer int) bool {
	return func(layer int) bool { return (layer+1)%n == 0 }
}

// unrotated marks the layers that do not rotate: those for which no_rope_layers has a 0, or where
// it is absent each fourth or what no_rope_layer_interval says.
func (c *Config) unrotated(a *Model) {
	still, rotate := each(max(1, c.whole("no_rope_layer_interval", 4))), c.list("no_rope_layers")
	if len(rotate) != 0 && len(rotate) != a.Blocks {
		c.fail("no_rope_layers", "it has %d entries for %d layers", len(rotate), a.Blocks)
		return
	}
	a.mark(NoRotation, func(layer int) bool {
		if len(rotate) == 0 {
			return still(layer)
		}
		return rotate[layer] == 0
	})
}

// borrowing reads how many of the last layers have no keys and values of their own.
func (c *Config) borrowing(a *Model, without int) {
	c.keep("num_kv_shared_layers", a.borrow(c.whole("num_kv_shared_layers", without)))
}

// mixture reads the numbers of a mixture of experts, of which number is the key.
func (c *Config) mixture(a *Model, number string, experts, top int) {
	c.number(&a.Experts, number, experts)
	c.number(&a.TopK, "num_experts_per_tok", top)
}

// CacheAlone is what a config.json of an unknown family tells of its keys and values, false if it tells too little.
func CacheAlone(name string, text json.RawMessage) (Model, bool) {
	a := Model{Type: name}
	c := newConfig(known{}, text, new(error))
	if c.has("text_config") {
		c = c.component("text_config", "")
	}
	c.number(&a.Hidden, "hidden_size", 0)
	c.number(&a.Blocks, "num_hidden_layers", 0)
	c.number(&a.Heads, "num_attention_heads", 0)
	c.number(&a.KVHeads, "num_key_value_heads", a.Heads)
	c.number(&a.HeadSize, "head_dim", max(1, a.Hidden/a.Heads))
	c.borrowing(&a, 0)
	if types := c.names("layer_types"); types != nil && !slices.ContainsFunc(types, strange) {
		c.windows(&a, 0, nil)
	}
	return a, *c.err == nil && a.check() == nil
}
